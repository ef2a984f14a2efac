package batch

import "github.com/evenkeel/evenkeel/internal/units"

// Bound is a time that no plan of the problem planned last beats: cheap enough for
// every batch of a training loop, and lower than LowerBound.
func (pl *Planner) Bound() units.Seconds {
	return units.Seconds(pl.bound)
}

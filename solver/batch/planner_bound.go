package batch

import "github.com/evenkeel/evenkeel/internal/units"

// Bound is a time that no plan of the problem planned last beats: quickBound, cheap
// enough for every batch of a training loop, and no more than LowerBound.
func (pl *Planner) Bound() units.Seconds {
	return units.Seconds(pl.bound * (1 - rounding))
}

package batch

import "github.com/evenkeel/evenkeel/internal/units"

// Bound is QuickBound of the problem planned last: a time that no plan beats, cheap
// enough for every batch of a training loop, and lower than LowerBound.
func (pl *Planner) Bound() units.Seconds {
	return units.Seconds(pl.bound * (1 - rounding))
}

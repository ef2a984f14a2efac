package batch

import "github.com/evenkeel/evenkeel/internal/units"

// Bound is a lower bound, in seconds, of the time of every plan of the last problem
// planned. It is cheap enough for every batch of a training loop, and LowerBound is at
// least as tight.
func (pl *Planner) Bound() units.Seconds {
	return units.Seconds(pl.bound * (1 - rounding))
}

package main

import (
	"context"

	"github.com/evenkeel/evenkeel/solver"
)

// lessFree is the way out of keeping memory free, where any is; empty where none is.
func (o problem) lessFree() string {
	if reserve, err := o.memoryReserve(); err != nil || reserve == 0 || o.priced.costs != "" {
		return ""
	}
	return solver.NothingKept("")
}

// lessFreeHelps is lessFree where it is tried and suffices: what fits says of a problem by
// itself, within mostTries. What is not known by then is not named.
func (o problem) lessFreeHelps(ctx context.Context, fits func(context.Context, problem) bool) string {
	less := o.lessFree()
	if less == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, mostTries)
	defer cancel()
	if o.reserve = "0%"; !fits(ctx, o) {
		return ""
	}
	return less
}

package batch

import (
	"context"

	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Strategy finds a plan for a problem.
type Strategy interface {
	recommend.Strategy
	// Solve returns the best plan that it finds or, when ctx ends, the best so far. The plan
	// has ranks (Place) and times (Evaluate). Unless ctx ends, the same problem gives the
	// same plan: no clock and no unseeded random number is used. The exception is FlexSP,
	// which as published limits the processor time of each mixed-integer program; where one
	// is not solved within the limit, its plan may depend on the machine.
	//
	// Errors: *TooLongError, *IllegalError if the strategy has no plan for such devices or
	// prices, or ctx's error if it ends before any plan is found.
	Solve(ctx context.Context, p *Problem) (*Plan, error)
}

// What strategies are, and why one has no plan.
type (
	Claims       = recommend.Claims
	IllegalError = recommend.IllegalError
)

package batch

import "context"

// Strategy finds a plan for a problem.
type Strategy interface {
	// Name is the strategy's name in documents and on the command line.
	Name() string
	// Claims says what the strategy is and how it is shown.
	Claims() Claims
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

// Claims says what a strategy is.
type Claims struct {
	Baseline  bool   // what people run today
	Published bool   // the algorithm of a paper
	Slow      bool   // may take minutes where others take milliseconds
	Doc       string // one sentence for the user
}

// IllegalError says why a strategy has no plan for a problem.
type IllegalError struct{ Why string }

// Error gives the reason.
func (e *IllegalError) Error() string { return e.Why }

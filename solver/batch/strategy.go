package batch

import "context"

// Strategy turns a problem into a plan.
type Strategy interface {
	// Name is how documents and the command line call it.
	Name() string
	// Claims says what its result may be taken for.
	Claims() Claims
	// Solve returns the best plan it finds, evaluated and placed, and when ctx ends
	// the best so far. Without recourse to clocks or chance: the same problem gives
	// the same plan, unless ctx ends. FlexSP alone, as published, has processor time
	// for each programme: its plan may be another where one is not solved in it.
	//
	// Errors: *TooLongError, *IllegalError if the strategy has no plan for such
	// devices or prices, or that of ctx if it ends before any plan is found.
	Solve(ctx context.Context, p *Problem) (*Plan, error)
}

// Claims is what a strategy may be held to.
type Claims struct {
	Baseline  bool   // what people run today
	Published bool   // the algorithm of a paper
	Slow      bool   // it may take minutes where others take milliseconds
	Doc       string // one sentence
}

// IllegalError says why a strategy has no plan for a problem.
type IllegalError struct{ Why string }

// Error gives the reason.
func (e *IllegalError) Error() string { return e.Why }

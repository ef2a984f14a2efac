package strategy

import (
	"context"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Strategy finds a layout for a problem.
type Strategy interface {
	// Name is the strategy's name in documents and on the command line.
	Name() string
	// Claims says what the strategy is and how Solve treats it.
	Claims() Claims
	// Solve returns the best layout that it finds or, when ctx ends, the best so far. It
	// uses no clocks and no unseeded randomness: unless ctx ends, the same problem gives the
	// same result. report may be nil. Result.Step may be nil; SolveEach fills it.
	//
	// Errors: *MemoryError if no layout fits (the result then holds the one nearest to
	// fitting), *IllegalError if the cluster allows no layout of this kind, or ctx's error
	// if it ends before any layout fits.
	Solve(ctx context.Context, p *Problem, report func(Progress)) (Result, error)
}

// Claims says what a strategy is.
type Claims struct {
	Baseline  bool   // what people run today: always solved, and shown beside the answer
	Published bool   // the algorithm of a paper: always solved and shown, too
	Doc       string // one sentence for the user
}

// Progress is the state of a running strategy.
type Progress struct {
	Strategy  string
	Evaluated int           // layouts simulated so far
	Best      units.Seconds // step time of the best layout that fits; 0 while there is none
}

// Result is the layout that a strategy found.
type Result struct {
	Layout    costmodel.Layout
	Step      *costmodel.Step // its simulated step; nil where the strategy did not need it
	Evaluated int             // layouts simulated
	Stopped   bool            // ctx ended before the strategy did
	Why       string          // describes the layout, for the user
}

// IllegalError says that a cluster allows no layout of a strategy's kind at all, as
// opposed to one that does not fit its memory.
type IllegalError struct {
	Strategy string
	Reason   string
}

// Error names the strategy and what it lacks.
func (e *IllegalError) Error() string { return e.Strategy + ": " + e.Reason }

// Illegal is the error of a strategy that has no layout for a reason.
func Illegal(strategy, reason string) *IllegalError {
	return &IllegalError{Strategy: strategy, Reason: reason}
}

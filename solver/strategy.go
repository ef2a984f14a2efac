package solver

import (
	"context"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Strategy finds a layout for a problem.
type Strategy interface {
	// Name is the strategy's name in documents and on the command line.
	Name() string
	// Claims says what the strategy is and how Solve treats it.
	Claims() Claims
	// Solve returns the best layout that it finds or, when ctx ends, the best so far. It
	// uses no clocks and no unseeded randomness: unless ctx ends, the same problem gives the
	// same result. report may be nil. Result.Step may be nil; the function Solve fills it.
	//
	// Errors: *MemoryError if no layout fits (the result then holds the one nearest to
	// fitting), *IllegalError if the cluster allows no layout of this kind,
	// *InfeasibleError, or ctx's error if it ends before any layout fits.
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

// Strategies lists all strategies in the order in which they are solved: baselines, then
// published algorithms, then evenkeel's own, which starts from the layouts of those
// before.
func Strategies() []Strategy {
	all := named()
	return all[:len(all)-1]
}

// named are all strategies that can be asked for by name: those that are always there to
// be solved, and one that picks from the layouts of another.
func named() []Strategy {
	ours, sure := newEvenKeel()
	return []Strategy{ring{}, ulysses{}, usp{}, uspSubset{}, hexiSeq{}, ours, sure}
}

// lookupAny finds a strategy that a plan may name: one of Strategies, or a layout
// that was given.
func lookupAny(name string) (Strategy, error) {
	if name == (fixed{}).Name() {
		return fixed{}, nil
	}
	return Lookup(name)
}

// Lookup finds a strategy by name. The error lists the names and the nearest.
func Lookup(name string) (Strategy, error) {
	var names []string
	for _, s := range named() {
		if s.Name() == name {
			return s, nil
		}
		names = append(names, s.Name())
	}
	return nil, recommend.Unknown(name, names)
}

package solver

import (
	"context"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Strategy turns a problem into a layout.
type Strategy interface {
	// Name is how documents and the command line call it.
	Name() string
	// Claims says what its result may be taken for.
	Claims() Claims
	// Solve returns the best layout it finds, and when ctx ends the best so
	// far. report may be nil. Without recourse to clocks or chance: the same
	// problem gives the same result, unless ctx ends.
	//
	// Result.Step may be nil: Solve fills it.
	//
	// Errors: *MemoryError (with the layout that does not fit in the result),
	// *IllegalError if there is no layout of the kind on the cluster,
	// *InfeasibleError, or that of ctx if it ends before any layout fits.
	Solve(ctx context.Context, p *Problem, report func(Progress)) (Result, error)
}

// Claims is what a strategy may be held to.
type Claims struct {
	Baseline  bool   // what people run today: always solved, shown beside the answer
	Published bool   // the algorithm of a paper: always solved and shown too
	Doc       string // one sentence
}

// Progress is a strategy's account while it works.
type Progress struct {
	Strategy  string
	Evaluated int           // layouts simulated so far
	Best      units.Seconds // of a layout that fits; 0 while there is none
}

// Result is a layout with its simulated step.
type Result struct {
	Layout    costmodel.Layout
	Step      *costmodel.Step // nil where the strategy had no need of it
	Evaluated int             // layouts simulated
	Stopped   bool            // ctx ended before the strategy did
	Why       string          // what the layout is, in words
}

// Strategies lists all there are in the order in which they are solved: baselines
// first, then published ones, then ours, which starts from the others' plans.
func Strategies() []Strategy {
	return []Strategy{ring{}, ulysses{}, usp{}, uspSubset{}, hexiSeq{}, evenKeel{}}
}

// named are all strategies that can be asked for by name: those that are always there to
// be solved, and one that picks from the layouts of another.
func named() []Strategy { return append(Strategies(), evenSure{}) }

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

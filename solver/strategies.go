package solver

import (
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/evenkeel"
	"github.com/evenkeel/evenkeel/solver/internal/hexiseq"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Strategy describes an algorithm that finds layouts.
type Strategy struct {
	Name      string
	Doc       string // one sentence for the user
	Baseline  bool   // what people run today: always solved, and shown beside the answer
	Published bool   // the algorithm of a paper: always solved and shown, too
}

// Names lists the strategies that Lookup finds, in the order in which they are solved.
func Names() []string {
	var names []string
	for _, s := range strategies() {
		names = append(names, s.Name())
	}
	return names
}

// Lookup finds a strategy by name, evenkeel-sure among them, which picks from the layouts of
// another. The error lists the names and the nearest.
func Lookup(name string) (Strategy, error) {
	for _, s := range strategies() {
		if s.Name() == name {
			return described(s), nil
		}
	}
	return Strategy{}, recommend.Unknown(name, Names())
}

// lookupAny finds a strategy that a plan may name: one to be looked up, or a layout that was
// given.
func lookupAny(name string) (Strategy, error) {
	if s := (fixed{}); s.Name() == name {
		return described(s), nil
	}
	return Lookup(name)
}

func described(s strategy.Strategy) Strategy {
	c := s.Claims()
	return Strategy{Name: s.Name(), Doc: c.Doc, Baseline: c.Baseline, Published: c.Published}
}

// strategies are all that can be asked for by name, to solve one problem with, in the order in
// which they are solved: baselines, then published algorithms, then evenkeel's own, which
// starts from the layouts of those before, and the surer one, which picks from its.
func strategies() []strategy.Strategy {
	ours, sure := evenkeel.New()
	return append(baseline.Strategies(), hexiseq.HexiSeq{}, ours, sure)
}

package evenkeel

import (
	"context"

	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Evenkeel is the strategy.
type Evenkeel struct {
	found []found // what the last search simulated, for Sure: of the usual work, then of what effort adds
}

// New is evenkeel, and evenkeel-sure to solve after it.
func New() (*Evenkeel, *Sure) {
	x := &Evenkeel{}
	return x, &Sure{after: x}
}

// Name and SureName are those of the two.
const (
	Name     = "evenkeel"
	SureName = "evenkeel-sure"
)

// Name implements strategy.Strategy.
func (*Evenkeel) Name() string { return Name }

// Claims implements strategy.Strategy.
func (*Evenkeel) Claims() strategy.Claims {
	return strategy.Claims{Doc: "groups, tokens and heads by each rank's own pace under its memory, then local search on simulated time"}
}

// Solve implements strategy.Strategy.
func (x *Evenkeel) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	x.found = nil
	s := newSearch(ctx, p, x.Name(), report)
	if err := s.seed(); err != nil {
		s.Fail(err)
		return s.result()
	}
	s.look(1)
	s.hide()
	x.found = append(x.found, found{s.runners.inOrder(), 1})
	if p.Effort > 1 {
		s.work, s.limited = 0, false
		s.look(p.Effort)
		x.found = append(x.found, found{s.runners.inOrder(), p.Effort})
	}
	return s.result()
}

// found is layouts that a search simulated, by time, and how many times the usual work it did
// for them.
type found struct {
	runners []runner
	effort  float64
}

// look searches with so many times the usual budget, on top of what was found.
func (s *search) look(effort float64) {
	s.explore(effort)
	s.settle(effort)
}

// explore looks at groups and shares, one by one and in twos, and at further ones.
func (s *search) explore(effort float64) {
	seeds := s.starts
	s.est.twoBatch = false
	s.budget = budgetOf(len(s.p.Ranks)) * effort
	var twos float64
	s.budget, twos = s.parts()
	if ends := s.run(); twos > 0 {
		s.inTwos(ends, twos)
	}
	s.further(twos > 0, effort)
	s.starts = seeds
}

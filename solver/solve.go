package solver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Default is the strategy that Solve runs when none is named.
const Default = "evenkeel"

// Solve runs every baseline and the named strategies (Default if there are
// none) and returns the plan to recommend: the fastest that fits, or the
// strongest baseline if the fastest gains less than the cost model can tell.
// When ctx ends the strategies return their best so far. report may be nil.
//
// Errors: an unknown strategy, *InfeasibleError if nothing fits, that of ctx if
// it ends before anything that fits is found, *costmodel.MissingLawError.
func Solve(ctx context.Context, p *Problem, names []string, report func(Progress)) (*Plan, error) {
	todo, err := chooseStrategies(names)
	if err != nil {
		return nil, err
	}
	if no := p.proveInfeasible(); no != nil {
		return nil, no
	}
	bound, err := LowerBound(p)
	if err != nil {
		return nil, err
	}
	var found []attempt
	for _, s := range todo {
		a := attempt{strategy: s}
		a.Result, err = s.Solve(ctx, p, report)
		if err != nil && !errors.As(err, &a.misfit) {
			return nil, fmt.Errorf("strategy %s: %w", s.Name(), err)
		}
		found = append(found, a)
	}
	return p.pick(found, bound)
}

func chooseStrategies(names []string) ([]Strategy, error) {
	if len(names) == 0 {
		names = []string{Default}
	}
	for _, n := range names {
		if _, err := Lookup(n); err != nil {
			return nil, err
		}
	}
	var todo []Strategy
	for _, s := range Strategies() {
		if s.Claims().Baseline || slices.Contains(names, s.Name()) {
			todo = append(todo, s)
		}
	}
	return todo, nil
}

// attempt is a strategy's result, which may not fit.
type attempt struct {
	Result
	strategy  Strategy
	misfit    *MemoryError
	gainError units.Seconds
}

func (a *attempt) time() units.Seconds { return a.Step.Time.Mid }

// fastest is the fastest attempt that fits and is wanted, or nil; ties go to
// the first.
func fastest(found []attempt, wanted func(*attempt) bool) *attempt {
	var best *attempt
	for i := range found {
		a := &found[i]
		if a.misfit == nil && wanted(a) && (best == nil || a.time() < best.time()) {
			best = a
		}
	}
	return best
}

// pick chooses among attempts and writes the plan.
func (p *Problem) pick(found []attempt, bound units.Seconds) (*Plan, error) {
	chosen := fastest(found, func(*attempt) bool { return true })
	if chosen == nil {
		return nil, p.noneFits(found)
	}
	base := fastest(found, func(a *attempt) bool { return a.strategy.Claims().Baseline })
	if base != nil {
		for i := range found {
			if err := p.weigh(&found[i], base); err != nil {
				return nil, err
			}
		}
		if tied(chosen, base) {
			chosen = base
		}
	}
	plan := &Plan{
		Simulated: p.Profile.Simulated, Job: p.Job, Strategy: chosen.strategy.Name(),
		Ranks: p.planRanks(chosen.Layout), Ring: chosen.Layout.Ring, Step: *chosen.Step,
		Bound: bound, Gap: gapOf(chosen.time(), bound), Warnings: warnings(found), Notes: notModelled(),
	}
	for i := range found {
		plan.Compared = append(plan.Compared, candidate(&found[i], chosen, base, bound))
	}
	return plan, plan.Validate()
}

// noneFits reports the layout that came nearest.
func (p *Problem) noneFits(found []attempt) *InfeasibleError {
	var nearest *MemoryError
	for _, a := range found {
		if nearest == nil || fill(a.misfit.Memory) < fill(nearest.Memory) {
			nearest = a.misfit
		}
	}
	return &InfeasibleError{Reason: nearest.Error(), WayOut: p.wayOut(nearest.Memory)}
}

func fill(m costmodel.Memory) float64 { return float64(m.Peak()) / float64(m.Capacity) }

// weigh finds the error of what an attempt gains over the baseline.
func (p *Problem) weigh(a, base *attempt) (err error) {
	if a != base && a.misfit == nil {
		a.gainError, err = p.gainError(base.Layout, a.Layout)
	}
	return err
}

// tied says that an attempt gains no more than the model can tell.
func tied(a, base *attempt) bool {
	return a != base && a.misfit == nil && base.time()-a.time() <= a.gainError
}

func gapOf(t, bound units.Seconds) float64 { return float64(t/bound) - 1 }

func warnings(found []attempt) []string {
	var out []string
	for _, a := range found {
		if a.Stopped {
			out = append(out, fmt.Sprintf("strategy %s was stopped after %d layouts; this is its best until then", a.strategy.Name(), a.Evaluated))
		}
	}
	return out
}

func (p *Problem) planRanks(l costmodel.Layout) []PlanRank {
	ranks := make([]PlanRank, len(p.ranks))
	for r, k := range p.ranks {
		s := l.Shards[r]
		ranks[r] = PlanRank{Rank: r, Device: k.Device, Node: k.NodeName, Tokens: s.Tokens(), Segments: s.Segments}
		if s.Tokens() > 0 {
			ranks[r].QHeads, ranks[r].KVHeads = p.Job.Model.QHeads, p.Job.Model.KVHeads
		}
	}
	return ranks
}

func candidate(a, chosen, base *attempt, bound units.Seconds) Candidate {
	c := Candidate{
		Strategy: a.strategy.Name(), Baseline: a.strategy.Claims().Baseline, Why: a.Why, GainError: a.gainError,
		Time: a.Step.Time, Gap: gapOf(a.time(), bound), Peak: peak(a.Step), Verdict: verdict(a, chosen, base),
	}
	if base != nil && a.misfit == nil {
		c.Speedup = float64(base.time() / a.time())
	}
	if a != chosen {
		c.Layout = &a.Layout
	}
	switch c.Verdict {
	case Infeasible:
		c.Why = a.misfit.Error()
	case Tie:
		c.Why += fmt.Sprintf("; gains %v +- %v over %s, which the cost model cannot tell from nothing", base.time()-a.time(), a.gainError, base.strategy.Name())
	}
	return c
}

func verdict(a, chosen, base *attempt) Verdict {
	switch {
	case a.misfit != nil:
		return Infeasible
	case a == chosen:
		return Chosen
	case base != nil && !a.strategy.Claims().Baseline && tied(a, base) && a.time() <= base.time():
		return Tie
	}
	return Slower
}

// peak is the memory of the rank that is fullest in proportion.
func peak(s *costmodel.Step) units.Bytes {
	best := costmodel.Memory{Capacity: 1}
	for _, r := range s.Ranks {
		if fill(r.Memory) > fill(best) {
			best = r.Memory
		}
	}
	return best.Peak()
}

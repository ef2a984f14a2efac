package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/ended"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Solve runs all strategies on a problem and returns the document of the plan to recommend
// or, if take is not empty, of the plan of the strategy of that name. Header, Name, Prices,
// Devices and what Notes say of where prices come from are left to the caller. clock returns
// seconds since any fixed moment; it is for planning times alone. report, which may be nil,
// hears which strategy is at work.
//
// Errors: *InfeasibleError where no plan fits; what prices are missing; that of take, as of
// recommend.Compare; a plan that breaks the rules, or is faster than the bound.
func Solve(ctx context.Context, given *Problem, take string, clock func() units.Seconds, report func(strategy string)) (*Document, error) {
	p, listed := given.inOrder()
	bound := Bound(p)
	strategies := Strategies()
	attempts, plans := make([]recommend.Attempt, len(strategies)), make([]*pipeline.Plan, len(strategies))
	say := func(strategy Strategy) {
		if report != nil {
			report(strategy.Name())
		}
	}
	ours := Strategy(Evenkeel{})
	searched := units.Seconds(0) // how long our own search took
	for i, s := range strategies {
		if s.Claims().Slow { // which may use up the time that there is
			say(ours)
			begin := clock()
			p.search(ctx)
			searched = clock() - begin
		}
		if s != ours {
			say(s)
		}
		begin := clock()
		plan, err := p.of(ctx, s)
		took := clock() - begin
		if s == ours {
			took += searched
		}
		attempts[i] = recommend.AttemptOf(s, err, took)
		if err != nil {
			continue
		}
		if found := Check(p.Costs, plan); len(found) > 0 {
			return nil, fmt.Errorf("strategy %s made a plan that breaks the rules: %w; this is a bug of evenkeel", s.Name(), found[0])
		}
		if err := cmp.Or(p.Simulate(plan.Clone()), p.Room(plan)); err != nil {
			return nil, fmt.Errorf("strategy %s made a plan that is none, or does not fit: %w; this is a bug of evenkeel", s.Name(), err)
		}
		account, err := p.Account(plan)
		if err != nil {
			return nil, fmt.Errorf("the error of %s's plan: %w", s.Name(), err)
		}
		attempts[i].Plan, plans[i] = &recommend.Plan{Strategy: s.Name(), Baseline: attempts[i].Baseline, Time: plan.Time, Step: account}, plan
	}
	found, err := recommend.Compare(attempts, bound, take)
	if errors.Is(err, recommend.ErrNoPlan) {
		return nil, none(p, attempts)
	}
	if err != nil {
		return nil, err
	}
	plan := asListed(plans[found.Chosen], listed)
	if wrong := Check(given.Costs, plan); len(wrong) > 0 {
		return nil, fmt.Errorf("strategy %s's plan breaks the rules on the devices as listed: %w; this is a bug of evenkeel", attempts[found.Chosen].Strategy, wrong[0])
	}
	d := &Document{
		Lengths: p.Lengths, Layers: p.Layers, Strategy: attempts[found.Chosen].Strategy, Taken: found.Taken, Plan: *plan,
		Bound: min(bound, plan.Time), Gap: recommend.Gap(plan.Time, bound), Memory: given.Memory(plan), Compared: found.Candidates, Notes: append(p.unstaged(ctx, plan), notModelled(p)...),
	}
	if why := ended.Why(ctx); why != nil {
		d.Notes = append(d.Notes, fmt.Sprintf("planning was stopped before it was done, and the plans are the best until then: %v", why))
	}
	return d, nil
}

// none is the error of attempts that all failed.
func none(p *Problem, attempts []recommend.Attempt) error {
	if err := cmp.Or(p.Missing(), recommend.NoRoom(attempts)); err != nil {
		return err
	}
	// Who takes any number of stages knows best why there is none.
	at := slices.IndexFunc(attempts, func(a recommend.Attempt) bool { return a.Strategy == InfiniPipe{}.Name() })
	a := attempts[max(0, at)]
	return fmt.Errorf("strategy %s: %w", a.Strategy, a.Err)
}

// notModelled says, for the user, what the simulation of plans leaves out.
func notModelled(p *Problem) []string {
	bound := "the bound takes memory as unlimited, and devices as if tokens and heads could be divided among all of them at will"
	if p.Fixed != nil {
		bound = "the bound is of plans on these stages; it takes memory as unlimited, and stages as if none ever waited for another"
	}
	return []string{
		"a stage's devices have equal shares of every chunk and of the heads; those of several types wait for the slowest",
		"activations travel between stages while these compute, and slow nothing down; embeddings take no time",
		bound,
	}
}

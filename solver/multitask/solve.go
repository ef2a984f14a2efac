package multitask

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/ended"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Solve runs all strategies on a problem and returns the document of the plan to recommend
// or, if take is not empty, of the plan of the strategy of that name. Header, Prices and
// what Notes say of where prices come from are left to the caller. clock returns seconds
// since any fixed moment; it is for planning times alone. report, which may be nil, hears
// which strategy is at work.
//
// Errors: *InfeasibleError where no plan fits; what prices are missing; that of take, as of
// recommend.Compare; a plan that breaks the rules, or is faster than the bound.
func Solve(ctx context.Context, given *Problem, take string, clock func() units.Seconds, report func(strategy string)) (*Document, error) {
	p, listed := given.inOrder()
	bound := Bound(p)
	strategies := Strategies()
	attempts, plans := make([]recommend.Attempt, len(strategies)), make([]*multitask.Plan, len(strategies))
	for i, s := range strategies {
		if report != nil {
			report(s.Name())
		}
		begin := clock()
		plan, err := s.Solve(ctx, p)
		attempts[i] = recommend.AttemptOf(s, err, clock()-begin)
		if err != nil {
			continue
		}
		if found := Check(p.Costs, plan); len(found) > 0 {
			return nil, fmt.Errorf("strategy %s made a plan that breaks the rules: %w; this is a bug of evenkeel", s.Name(), found[0])
		}
		if attempts[i].Err = given.Fits(asListed(plan, listed)); attempts[i].Err != nil {
			continue
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
		Name: p.Tasks.Name, Modules: p.Tasks.Modules, Strategy: attempts[found.Chosen].Strategy, Taken: found.Taken, Plan: *plan,
		Bound: min(bound, plan.Time), Gap: recommend.Gap(plan.Time, bound), Compared: found.Candidates, Notes: notModelled(p),
	}
	for _, pool := range given.Pools {
		d.Devices = append(d.Devices, PoolEntry(pool))
	}
	d.Memory = given.Memory(plan)
	if why := ended.Why(ctx); why != nil {
		d.Notes = append(d.Notes, fmt.Sprintf("%s was stopped before it was done, and its plan is the best until then: %v", Evenkeel{}.Name(), why))
	}
	return d, nil
}

// none is the error of attempts that all failed.
func none(p *Problem, attempts []recommend.Attempt) error {
	if err := cmp.Or(p.Missing(), p.canon().Missing(), recommend.NoRoom(attempts)); err != nil {
		return err
	}
	return fmt.Errorf("strategy %s: %w", attempts[0].Strategy, attempts[0].Err)
}

// notModelled says, for the user, what the simulation of plans leaves out.
func notModelled(p *Problem) []string {
	notes := []string{
		"a run's forward and backward pass are one stretch of time: a step takes as long where the backward pass is the same multiple of the forward one in all runs",
		"embeddings, losses and the optimizer are not counted, nor the gradients of parameters that modules on different devices share",
	}
	if len(p.Pools) > 1 {
		notes = append(notes, "spindle and what people run today take all devices for equal: they plan as if each were of the slowest type, with equal shares")
	}
	if !p.Tasks.Published() {
		notes = append(notes, "the bound takes memory as unlimited", "every device has whole samples and the whole of a layer's parameters (data parallelism); the gradients of a layer travel behind its backward pass, as far as that takes as long")
	}
	return notes
}

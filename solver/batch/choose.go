package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/ended"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Attempt is a strategy's result on a problem: a plan or an error.
type Attempt struct {
	Strategy Strategy
	Plan     *Plan           // nil where there is none
	On       *Part           // that the plan is of; nil where it is of all nodes
	Account  *costmodel.Step // the plan's time with its errors; nil where the prices have no laws
	Err      error           // why there is no plan
	Stopped  error           // why the plan is the best of a search that was not done; nil where it was
	Took     units.Seconds   // planning time on the wall
}

// Try runs a strategy and checks its plan (Check). clock returns seconds since any fixed
// moment.
func Try(ctx context.Context, s Strategy, p *Problem, clock func() units.Seconds) Attempt {
	begin := clock()
	plan, err := s.Solve(ctx, p)
	a := Attempt{Strategy: s, Plan: plan, Err: err, Took: clock() - begin}
	switch why := ended.Why(ctx); {
	case why != nil && late(err):
		a.Err = why // in words
	case why != nil && plan != nil && !s.Claims().Baseline: // those are rules, which do not search
		a.Stopped = why
	}
	if err == nil {
		if found := Check(p, plan); len(found) > 0 {
			a.Plan, a.Err = nil, fmt.Errorf("strategy %s made a plan that breaks the rules: %w", s.Name(), found[0])
			return a
		}
		if a.Account, err = accountOf(p, plan); err != nil {
			a.Plan, a.Err = nil, fmt.Errorf("the error of %s's plan: %w", s.Name(), err)
		}
	}
	return a
}

// plan is what choosing knows of the attempt's plan; nil where it has none, or was not made
// yet.
func (a *Attempt) plan() *recommend.Plan {
	if a.Plan == nil {
		return nil
	}
	return &recommend.Plan{Strategy: a.Strategy.Name(), Baseline: a.Strategy.Claims().Baseline, Time: a.Plan.Time, Step: a.Account}
}

// weighed is what choosing knows of an attempt that was made.
func (a *Attempt) weighed() recommend.Attempt {
	w := recommend.AttemptOf(a.Strategy, a.Err, a.Took)
	w.Plan = a.plan()
	return w
}

// Choose returns the document of the plan to recommend (recommend.Best) or, if take is not
// empty, of the plan of the strategy of that name. Header, Costs and Notes are left to the
// caller, but for notes of strategies that were stopped.
//
// Errors: if no attempt has a plan, the *TooLongError of the fleet or else the first error; if the
// strategy asked for has none, *recommend.NotTakenError or that time was up; if a plan takes less than
// the bound says that any can, which is wrong then.
func Choose(p *Problem, bound units.Seconds, attempts []Attempt, take string) (*Document, error) {
	// Where it has no plan, that is nothing to tell unless somebody asks for it.
	attempts = slices.DeleteFunc(slices.Clone(attempts), func(a Attempt) bool {
		return a.Plan == nil && a.Strategy.Name() == sureName && take != sureName
	})
	weighed := make([]recommend.Attempt, len(attempts))
	for i := range attempts {
		weighed[i] = attempts[i].weighed()
	}
	found, err := recommend.Compare(weighed, bound, take)
	if errors.Is(err, recommend.ErrNoPlan) {
		return nil, worst(p, attempts)
	}
	if err != nil {
		return nil, err
	}
	chosen := &attempts[found.Chosen]
	// What the bound is above the plan, if anything, is rounding: see recommend.Beaten.
	d := &Document{Lengths: p.Lengths, Strategy: chosen.Strategy.Name(), Taken: found.Taken, Bound: min(bound, chosen.Plan.Time), Gap: recommend.Gap(chosen.Plan.Time, bound)}
	of := p
	if chosen.On != nil {
		of, d.LeftOut = chosen.On.Problem, p.leftOut(chosen.On)
	}
	d.Plan, d.Classes = compact(of, chosen.Plan)
	if chosen.On != nil {
		p.inFleet(d.Classes, chosen.On)
	}
	for _, f := range p.Fleet {
		d.Fleet = append(d.Fleet, PoolEntry(f))
	}
	for i, c := range found.Candidates {
		a := &attempts[i]
		d.Compared = append(d.Compared, Candidate{Candidate: c})
		if a.Plan != nil {
			d.Compared[i].Micro = len(a.Plan.Micro)
		}
		if a.On != nil {
			d.Compared[i].Nodes = a.On.Nodes
			d.Compared[i].Why += "; " + p.alone(a.On)
		}
		if a.Stopped != nil {
			d.Notes = append(d.Notes, fmt.Sprintf("%s was stopped before it was done, and its plan is the best until then: %v", a.Strategy.Name(), a.Stopped))
		}
	}
	return d, nil
}

// late says that the time was up before there was a plan.
func late(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// slower says that a is slower than b by more than rounding.
func slower(a, b units.Seconds) bool { return a > b && !recommend.Same(a, b) }

// worst is the error of attempts that all failed. That a sequence is too long is said of the
// fleet: groups of a baseline may hold less.
func worst(p *Problem, attempts []Attempt) error {
	if long := p.Feasible(); long != nil {
		return long
	}
	for _, a := range attempts {
		if a.Err != nil {
			return fmt.Errorf("strategy %s: %w", a.Strategy.Name(), a.Err)
		}
	}
	return errors.New("no strategy was asked")
}

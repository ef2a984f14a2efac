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
	case why != nil && a.late():
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

// plan is what choosing knows of the attempt; nil where it has none.
func (a *Attempt) plan() *recommend.Plan {
	if a.Plan == nil {
		return nil
	}
	return &recommend.Plan{Strategy: a.Strategy.Name(), Baseline: a.Strategy.Claims().Baseline, Time: a.Plan.Time, Step: a.Account}
}

// weighed are attempts after one of them was chosen.
type weighed struct {
	attempts     []Attempt
	plans        []*recommend.Plan // of these
	chosen, base *recommend.Plan   // base may be nil
	bound        units.Seconds
}

// Choose returns the document of the plan to recommend (recommend.Best) or, if take is not
// empty, of the plan of the strategy of that name. Header, Costs and Notes are left to the
// caller, but for notes of strategies that were stopped.
//
// Errors: if no attempt has a plan, the *TooLongError of the fleet or else the first error; if the
// strategy asked for has none, *NotTakenError or that time was up; if a plan takes less than
// the bound says that any can, which is wrong then.
func Choose(p *Problem, bound units.Seconds, attempts []Attempt, take string) (*Document, error) {
	// Where it has no plan, that is nothing to tell unless somebody asks for it.
	attempts = slices.DeleteFunc(slices.Clone(attempts), func(a Attempt) bool {
		return a.Plan == nil && a.Strategy.Name() == sureName && take != sureName
	})
	w := weighed{attempts: attempts, bound: bound}
	for i := range attempts {
		plan := attempts[i].plan()
		if plan != nil && beaten(bound, plan.Time) {
			return nil, fmt.Errorf("lower_bound_s: %v: the plan of %s takes %v: one of the two is wrong; this is a bug of evenkeel", bound, plan.Strategy, plan.Time)
		}
		w.plans = append(w.plans, plan)
	}
	best, base := recommend.Best(w.plans)
	if best < 0 {
		return nil, worst(p, attempts)
	}
	at := best
	if take != "" {
		var err error
		if at, err = placeOf(attempts, take); err != nil {
			return nil, err
		}
	}
	w.chosen = w.plans[at]
	if base >= 0 {
		w.base = w.plans[base]
	}
	// What the bound is above the plan, if anything, is rounding: see beaten.
	d := &Document{Lengths: p.Lengths, Strategy: w.chosen.Strategy, Taken: at != best, Bound: min(bound, w.chosen.Time), Gap: gap(w.chosen.Time, bound)}
	d.Plan, d.Classes = compact(p, attempts[at].Plan)
	for _, f := range p.Fleet {
		d.Fleet = append(d.Fleet, PoolEntry(f))
	}
	for i := range attempts {
		d.Compared = append(d.Compared, w.candidate(i))
		if a := &attempts[i]; a.Stopped != nil {
			d.Notes = append(d.Notes, fmt.Sprintf("%s was stopped before it was done, and its plan is the best until then: %v", a.Strategy.Name(), a.Stopped))
		}
	}
	return d, nil
}

// NotTakenError says that the strategy that was asked for by name has no plan.
type NotTakenError struct {
	Strategy string
	Why      error // the strategy's own error
}

// Error names the strategy, its error and the ways out.
func (e *NotTakenError) Error() string {
	return fmt.Sprintf("the plan of %s was asked for: %v; take another strategy, or leave the choice to solve", e.Strategy, e.Why)
}

// placeOf is the place of the attempt that was asked for by name.
func placeOf(attempts []Attempt, take string) (int, error) {
	at := slices.IndexFunc(attempts, func(a Attempt) bool { return a.Strategy.Name() == take })
	switch {
	case at < 0:
		return 0, fmt.Errorf("the plan of %s was asked for, and it was not solved", take)
	case attempts[at].late():
		return 0, fmt.Errorf("the plan of %s was asked for, and the time was up before it was found: give it more", take)
	case attempts[at].Plan == nil:
		return 0, &NotTakenError{take, attempts[at].Err}
	}
	return at, nil
}

// late says that the time was up before there was a plan.
func (a *Attempt) late() bool {
	return errors.Is(a.Err, context.DeadlineExceeded) || errors.Is(a.Err, context.Canceled)
}

// slower says that a is slower than b by more than rounding.
func slower(a, b units.Seconds) bool { return a > b && !recommend.Same(a, b) }

// candidate is what the document says of an attempt.
func (w *weighed) candidate(i int) Candidate {
	a, plan := &w.attempts[i], w.plans[i]
	claims := a.Strategy.Claims()
	c := Candidate{Strategy: a.Strategy.Name(), Baseline: claims.Baseline, Published: claims.Published, Why: claims.Doc, Took: a.Took}
	if plan == nil {
		c.Verdict, c.Why = NotLegal, a.Err.Error()
		if a.late() {
			c.Verdict = Late
		}
		return c
	}
	c.Time, c.Micro, c.Gap = a.Plan.Time, len(a.Plan.Micro), gap(a.Plan.Time, w.bound)
	c.Verdict, c.GainError, c.Doubt = plan.Verdict(w.chosen, w.base), plan.GainError, plan.Settled()
	if a.Account != nil {
		c.Interval = a.Account.Time
	}
	if w.base != nil {
		c.Speedup = float64(w.base.Time / plan.Time)
	}
	if c.Verdict == Tie {
		c.Why += "; " + plan.InDoubt(w.base)
	}
	return c
}

// beaten says that a time is below the bound by more than rounding, as that of no plan is. To
// take the time for the bound then would hide a bound that is wrong.
func beaten(bound, t units.Seconds) bool { return bound > t*(1+rounding) }

func gap(t, bound units.Seconds) float64 {
	if bound <= 0 {
		return 0
	}
	return max(0, float64(t/bound)-1)
}

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

package recommend

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Attempt is a strategy's result on a problem: a plan or an error.
type Attempt struct {
	Strategy  string
	Baseline  bool   // what people run today
	Published bool   // the algorithm of a paper
	Doc       string // one sentence for the user
	Plan      *Plan  // nil where there is none
	Err       error  // why there is no plan
	Took      units.Seconds
}

// AttemptOf is what a strategy came to, but for its plan.
func AttemptOf(s Strategy, err error, took units.Seconds) Attempt {
	claims := s.Claims()
	return Attempt{Strategy: s.Name(), Baseline: claims.Baseline, Published: claims.Published, Doc: claims.Doc, Err: err, Took: took}
}

// Late says that the time was up before there was a plan.
func (a *Attempt) Late() bool {
	return errors.Is(a.Err, context.DeadlineExceeded) || errors.Is(a.Err, context.Canceled)
}

// ErrNoPlan says that no attempt has a plan; which error tells why is the caller's to say.
var ErrNoPlan = errors.New("no strategy has a plan")

// Comparison is attempts after one of them was chosen.
type Comparison struct {
	Chosen     int  // index of an attempt
	Taken      bool // it was asked for by name, and another one would be recommended
	Candidates []Candidate
}

// Compare chooses the plan to recommend (Best) or, if take is not empty, that of the
// strategy of that name. bound is of every plan's time.
//
// Errors: ErrNoPlan; if the strategy asked for has no plan, *NotTakenError or that time was
// up; if a plan takes less than the bound says that any can, which is wrong then.
func Compare(attempts []Attempt, bound units.Seconds, take string) (*Comparison, error) {
	plans := make([]*Plan, len(attempts))
	for i, a := range attempts {
		if a.Plan != nil && Beaten(bound, a.Plan.Time) {
			return nil, fmt.Errorf("lower_bound_s: %v: the plan of %s takes %v: one of the two is wrong; this is a bug of evenkeel", bound, a.Strategy, a.Plan.Time)
		}
		plans[i] = a.Plan
	}
	best, at := Best(plans)
	if best < 0 {
		return nil, ErrNoPlan
	}
	c := &Comparison{Chosen: best}
	if take != "" {
		var err error
		if c.Chosen, err = placeOf(attempts, take); err != nil {
			return nil, err
		}
		c.Taken = c.Chosen != best
	}
	var base *Plan
	if at >= 0 {
		base = plans[at]
	}
	for i := range attempts {
		c.Candidates = append(c.Candidates, attempts[i].candidate(plans[c.Chosen], base, bound))
	}
	return c, nil
}

// candidate is what a document says of an attempt.
func (a *Attempt) candidate(chosen, base *Plan, bound units.Seconds) Candidate {
	c := Candidate{Strategy: a.Strategy, Baseline: a.Baseline, Published: a.Published, Why: a.Doc, Took: a.Took}
	if a.Plan == nil {
		c.Verdict, c.Why = NotLegal, a.Err.Error()
		switch {
		case a.Late():
			c.Verdict = Late
		case errors.As(a.Err, new(overfull)):
			c.Verdict = Infeasible
		}
		return c
	}
	c.Time, c.Gap = a.Plan.Time, Gap(a.Plan.Time, bound)
	c.Verdict, c.GainError, c.Doubt = a.Plan.Verdict(chosen, base), a.Plan.GainError, a.Plan.Settled()
	if a.Plan.Step != nil {
		c.Interval = a.Plan.Step.Time
	}
	if base != nil {
		c.Speedup = float64(base.Time / a.Plan.Time)
	}
	if c.Verdict == Tie {
		c.Why += "; " + a.Plan.InDoubt(base)
	}
	return c
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
	at := slices.IndexFunc(attempts, func(a Attempt) bool { return a.Strategy == take })
	switch {
	case at < 0:
		return 0, fmt.Errorf("the plan of %s was asked for, and it was not solved", take)
	case attempts[at].Late():
		return 0, fmt.Errorf("the plan of %s was asked for, and the time was up before it was found: give it more", take)
	case attempts[at].Plan == nil:
		return 0, &NotTakenError{take, attempts[at].Err}
	}
	return at, nil
}

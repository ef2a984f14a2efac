package recommend

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// The verdicts on strategies without a plan.
const (
	NotLegal   Verdict = "not legal"  // has no plan for such devices, prices or work; see Candidate.Why
	Infeasible Verdict = "infeasible" // exceeds the memory of a device
	Late       Verdict = "no plan in time"
)

// Candidate is a strategy's result in a document.
type Candidate struct {
	Strategy  string        `json:"strategy"`
	Baseline  bool          `json:"baseline,omitzero"`
	Published bool          `json:"published,omitzero"`
	Verdict   Verdict       `json:"verdict"`
	Why       string        `json:"why"`             // what the strategy does, or why it has no plan
	Time      units.Seconds `json:"step_s,omitzero"` // of its plan; 0 where it has none
	// Interval is the 90 % interval of Time and its source. It is empty where the prices
	// have no laws behind them.
	Interval costmodel.Estimate `json:"interval,omitzero"`
	Gap      float64            `json:"gap"`                 // Time / lower bound - 1
	Speedup  float64            `json:"speedup_vs_baseline"` // time of the strongest baseline / Time
	// GainError is half of the 90 % interval of the difference between Time and the time of
	// the strongest baseline; Doubt names what contributes most to it (costmodel.GainError)
	// and what to measure, to settle it.
	GainError units.Seconds `json:"gain_error_s,omitzero"`
	Doubt     string        `json:"doubt,omitzero"`
	Took      units.Seconds `json:"planning_s,omitzero"` // planning time on the wall
}

// Planned says that the strategy has a plan.
func (c *Candidate) Planned() bool {
	return c.Verdict == Chosen || c.Verdict == Equal || c.Verdict == Tie || c.Verdict == Slower
}

// ChosenOf is the candidate that is chosen; nil if none is.
func ChosenOf(all []Candidate) *Candidate {
	at := slices.IndexFunc(all, func(c Candidate) bool { return c.Verdict == Chosen })
	if at < 0 {
		return nil
	}
	return &all[at]
}

// BaselineOf is the fastest of the baselines with a plan; nil if there is none.
func BaselineOf(all []Candidate) *Candidate {
	var best *Candidate
	for i := range all {
		if c := &all[i]; c.Baseline && c.Planned() && (best == nil || c.Time < best.Time) {
			best = c
		}
	}
	return best
}

// Table is the candidates of a document with what it says of the plan that it holds.
type Table struct {
	Strategy   string // whose plan it is
	Time       units.Seconds
	Bound      units.Seconds // of every plan's time
	Taken      bool          // the user named the strategy and another one would be recommended
	Candidates []*Candidate
}

// Validate says which of the candidates contradicts the others or the plan. There need not
// be any.
func (t *Table) Validate() error {
	plans, chosen := make([]*Plan, len(t.Candidates)), -1
	for i, c := range t.Candidates {
		if err := t.stated(c); err != nil {
			return fmt.Errorf("considered[%d].%w", i, err)
		}
		if c.Verdict == Chosen && chosen >= 0 {
			return fmt.Errorf("considered[%d].verdict: considered[%d] is chosen already", i, chosen)
		}
		if c.Verdict == Chosen {
			chosen = i
		}
		if c.Planned() {
			plans[i] = &Plan{Strategy: c.Strategy, Baseline: c.Baseline, Time: c.Time, GainError: c.GainError}
		}
	}
	if len(t.Candidates) == 0 {
		return nil
	}
	if chosen < 0 {
		return errors.New("considered: none of them is chosen")
	}
	return t.choice(plans, chosen)
}

// errs says what of the errors of its time and gain cannot be.
func (c *Candidate) errs() error {
	e := c.Interval
	switch {
	case e == costmodel.Estimate{}:
	case !(e.Lo >= 0 && e.Lo <= e.Mid && e.Mid <= e.Hi) || math.IsInf(float64(e.Hi), 1):
		return fmt.Errorf("interval: %v to %v about %v: want times in that order, none below 0", e.Lo, e.Hi, e.Mid)
	case e.Lo == 0 && e.Hi < 2*e.Mid: // laws are off by factors: one that may take no time may take ages
		return fmt.Errorf("interval.lo_s: %v, beside a hi_s of %v: want a time above 0", e.Lo, e.Hi)
	case math.Abs(float64(e.Mid/c.Time)-1) > 1e-6:
		return fmt.Errorf("interval.mid_s: %v: step_s is %v", e.Mid, c.Time)
	}
	if !valid(c.GainError) {
		return fmt.Errorf("gain_error_s: %v: want a time of 0 or more", c.GainError)
	}
	return nil
}

// stated says what of a candidate cannot be, whatever the others are.
func (t *Table) stated(c *Candidate) error {
	switch {
	case c.Strategy == "":
		return errors.New("strategy: empty")
	case !valid(c.Took):
		return fmt.Errorf("planning_s: %v: want a time of 0 or more", c.Took)
	case !c.Planned() && c.Verdict != NotLegal && c.Verdict != Infeasible && c.Verdict != Late:
		return fmt.Errorf("verdict: %q: want %s, %s, %s, %s, %s, %s or %s", c.Verdict, Chosen, Equal, Tie, Slower, NotLegal, Infeasible, Late)
	case !c.Planned():
		return c.errs()
	case !valid(c.Time) || c.Time == 0:
		return fmt.Errorf("step_s: %v: want a time above 0", c.Time)
	case Beaten(t.Bound, c.Time):
		return fmt.Errorf("step_s: %v: less than lower_bound_s, %v, which no plan takes", c.Time, t.Bound)
	case c.Verdict == Chosen && c.Strategy != t.Strategy:
		return fmt.Errorf("strategy: %q: is chosen, and the plan is of %q", c.Strategy, t.Strategy)
	case c.Verdict == Chosen && !Same(c.Time, t.Time):
		return fmt.Errorf("step_s: %v: the plan, which is chosen, takes %v", c.Time, t.Time)
	}
	if want := Gap(c.Time, t.Bound); !Agree(c.Gap, want) {
		return fmt.Errorf("gap: %v: step_s over lower_bound_s - 1 is %v", c.Gap, want)
	}
	return c.errs()
}

// choice says what of the candidates does not follow from their times and the errors of
// their gains.
func (t *Table) choice(plans []*Plan, chosen int) error {
	best, at := Best(plans)
	switch {
	case t.Taken && chosen == best:
		return errors.New("taken: true: the numbers recommend the chosen strategy anyway")
	case !t.Taken && slower(plans[chosen].Time, plans[best].Time):
		return fmt.Errorf("considered[%d].step_s: %v: less than the plan takes that is chosen, %v, and surely so", best, plans[best].Time, plans[chosen].Time)
	}
	var base *Plan
	if at >= 0 {
		base = plans[at]
	}
	for i, p := range plans {
		c, speedup := t.Candidates[i], 0.0
		if p == nil {
			continue
		}
		if base != nil {
			speedup = float64(base.Time / p.Time)
		}
		if !Agree(c.Speedup, speedup) {
			return fmt.Errorf("considered[%d].speedup_vs_baseline: %v: the times give %v", i, c.Speedup, speedup)
		}
		if want := p.Verdict(plans[chosen], base); c.Verdict != want && (want != Tie || c.Verdict != Slower) {
			return fmt.Errorf("considered[%d].verdict: %q: takes %v, and the plan %v: the numbers say %q", i, c.Verdict, c.Time, t.Time, want)
		}
	}
	return nil
}

// Agree says that two ratios differ by what was lost in writing and bounding at most.
func Agree(a, b float64) bool { return math.Abs(a-b) <= 1e-6*(1+math.Abs(b)) }

// Beaten says that a time is below the bound by more than rounding, as that of no plan is. To
// take the time for the bound then would hide a bound that is wrong.
func Beaten(bound, t units.Seconds) bool { return bound > t*(1+rounding) }

// Gap is by what share a time is above the bound.
func Gap(t, bound units.Seconds) float64 {
	if bound <= 0 {
		return 0
	}
	return max(0, float64(t/bound)-1)
}

// slower says that a is slower than b by more than rounding.
func slower(a, b units.Seconds) bool { return a > b && !Same(a, b) }

// valid says that a time is one: finite, and none below 0.
func valid(t units.Seconds) bool { return t >= 0 && !math.IsInf(float64(t), 1) }

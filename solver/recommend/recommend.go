// Package recommend chooses among several plans of one problem, by one rule and in the same
// words for plans of one sequence and for those of a batch: the fastest that surely gains
// over what people run today, or that where none does.
package recommend

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Verdict says what became of a plan among others.
type Verdict string

// The verdicts on plans that can be run.
const (
	Chosen Verdict = "chosen"
	Tie    Verdict = "~"     // no faster than the strongest baseline beyond the model's own error
	Equal  Verdict = "equal" // as fast as the chosen one
	Slower Verdict = "slower"
)

// Plan is what choosing knows of a plan that can be run.
type Plan struct {
	Strategy string
	Baseline bool // what people run today
	Time     units.Seconds
	Step     *costmodel.Step // its account; nil where nobody knows how far it is off
	// GainError and Doubt are what costmodel.GainError says of it and the strongest
	// baseline, once Best has weighed it; nothing where there is none or no account.
	GainError units.Seconds
	Doubt     string
}

// Best weighs plans against the strongest baseline among them, and returns the places of
// the one to recommend and of that baseline: -1 where there is none. A nil is the place of a
// strategy that has no plan. Of equally fast ones the last is recommended if that is no
// baseline: a later strategy starts from the plans of those before, and where it finds none
// better the plan is its own as well.
func Best(plans []*Plan) (best, base int) {
	base = fastest(plans, func(p *Plan) bool { return p.Baseline })
	wanted := func(*Plan) bool { return true }
	if base >= 0 {
		for i, p := range plans {
			if p != nil && i != base && p.Step != nil && plans[base].Step != nil {
				p.GainError, p.Doubt = costmodel.GainError(plans[base].Step, p.Step)
			}
		}
		// One that gains more can be the less sure of it.
		wanted = func(p *Plan) bool { return !p.Tied(plans[base]) }
	}
	return lastOfEquals(plans, fastest(plans, wanted)), base
}

// fastest is the place of the fastest plan that is wanted; ties go to the first.
func fastest(plans []*Plan, wanted func(*Plan) bool) int {
	best := -1
	for i, p := range plans {
		if p != nil && wanted(p) && (best < 0 || p.Time < plans[best].Time) {
			best = i
		}
	}
	return best
}

func lastOfEquals(plans []*Plan, best int) int {
	if best < 0 || plans[best].Baseline {
		return best
	}
	for i, p := range plans {
		if p != nil && Same(p.Time, plans[best].Time) && p.GainError <= plans[best].GainError {
			best = i
		}
	}
	return best
}

// Tied says that a plan gains no more over the strongest baseline than the model can tell.
func (p *Plan) Tied(base *Plan) bool { return p != base && base.Time-p.Time <= p.GainError }

// Verdict is what became of a plan beside the chosen one and the strongest baseline, which
// may be nil.
func (p *Plan) Verdict(chosen, base *Plan) Verdict {
	switch {
	case p == chosen:
		return Chosen
	case Same(p.Time, chosen.Time):
		return Equal
	case base != nil && !p.Baseline && p.Tied(base) && p.Time <= base.Time:
		return Tie
	}
	return Slower
}

// InDoubt says why a tied plan is not recommended, and what settles that.
func (p *Plan) InDoubt(base *Plan) string {
	why := fmt.Sprintf("gains %v +- %v over %s, which the cost model cannot tell from nothing", base.Time-p.Time, p.GainError, base.Strategy)
	if p.Doubt != "" {
		why += fmt.Sprintf("; most of the doubt is %s: measure that, or take the plan all the same: --take %s", p.Doubt, p.Strategy)
	}
	return why
}

// Same says that two times differ by rounding at most.
func Same(a, b units.Seconds) bool {
	x, y := float64(a), float64(b)
	return math.Abs(x-y) <= rounding*max(math.Abs(x), math.Abs(y))
}

const rounding = 1e-9

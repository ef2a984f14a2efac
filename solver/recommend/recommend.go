// Package recommend chooses among several plans of one problem: the fastest one whose
// gain over what people run today exceeds the cost model's error, or today's plan if
// there is none. Plans of one sequence and plans of a batch are judged by the same rule
// and in the same words. What strategies of batches, tasks and pipelines say of
// themselves, and why there is no plan, stands here as well.
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

// Plan is what the choice needs to know of a plan that can be run.
type Plan struct {
	Strategy string
	Baseline bool // what people run today
	Time     units.Seconds
	Step     *costmodel.Step // its account; nil where its error is unknown
	// GainError and Doubt are the results of costmodel.GainError for this plan and the
	// strongest baseline, Settle is costmodel.Settle of these. Best fills them in; they are
	// zero without a baseline or a Step.
	GainError     units.Seconds
	Doubt, Settle string
}

// Best compares plans with the strongest baseline among them, and returns the index of
// the plan to recommend and that of the baseline, -1 for none. An entry is nil where a
// strategy has no plan. Of equally fast plans the last one that is no baseline is
// recommended: a later strategy starts from the plans of those before, so that a plan it
// did not improve is its own result as well.
func Best(plans []*Plan) (best, base int) {
	base = fastest(plans, func(p *Plan) bool { return p.Baseline })
	wanted := func(*Plan) bool { return true }
	if base >= 0 {
		for i, p := range plans {
			if p != nil && i != base && p.Step != nil && plans[base].Step != nil {
				p.GainError, p.Doubt = costmodel.GainError(plans[base].Step, p.Step)
				p.Settle = costmodel.Settle(plans[base].Step, p.Step, p.Doubt)
			}
		}
		// One that gains more can be the less sure of it.
		wanted = func(p *Plan) bool { return !p.Tied(plans[base]) }
	}
	return lastOfEquals(plans, fastest(plans, wanted), wanted), base
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

func lastOfEquals(plans []*Plan, best int, wanted func(*Plan) bool) int {
	if best < 0 || plans[best].Baseline {
		return best
	}
	for i, p := range plans {
		if p != nil && wanted(p) && Same(p.Time, plans[best].Time) && p.GainError <= plans[best].GainError {
			best = i
		}
	}
	return best
}

// Tied says that the plan's gain over the strongest baseline is within the cost model's
// error, or of rounding alone: the same layout, put down in another order, may take a hair
// less.
func (p *Plan) Tied(base *Plan) bool {
	return p != base && (base.Time-p.Time <= p.GainError || Same(p.Time, base.Time))
}

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
	if Same(p.Time, base.Time) && p.GainError <= rounding*base.Time { // such as the baseline's own layout
		return fmt.Sprintf("takes as long as %s, part for part", base.Strategy)
	}
	why := fmt.Sprintf("gains %v +- %v over %s, which the cost model cannot tell from nothing", base.Time-p.Time, p.GainError, base.Strategy)
	if Same(p.Time, base.Time) { // a gain of picoseconds is rounding's
		why = fmt.Sprintf("takes as long as %s, +- %v by the cost model's error", base.Strategy, p.GainError)
	}
	if p.Doubt != "" {
		why += fmt.Sprintf("; most of the doubt is %s; or take the plan all the same: --take %s", p.Settled(), p.Strategy)
	}
	return why
}

// Settled is the doubt with what settles it.
func (p *Plan) Settled() string { return p.Doubt + p.Settle }

// Same says that two times differ by rounding at most.
func Same(a, b units.Seconds) bool {
	x, y := float64(a), float64(b)
	return math.Abs(x-y) <= rounding*max(math.Abs(x), math.Abs(y))
}

const rounding = 1e-9

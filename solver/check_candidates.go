package solver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/solver/internal/evenkeel"
)

// candidates checks the comparison against itself.
func (f *findings) candidates(p *Plan) {
	seen := map[string]bool{}
	chosen := -1
	for i := range p.Compared {
		c := &p.Compared[i]
		at := fmt.Sprintf("considered[%d].", i)
		f.estimate(at+"time", c.Time)
		f.strategy(at, c, seen[c.Strategy])
		seen[c.Strategy] = true
		if c.Verdict == NotLegal {
			f.notLegal(at, c)
			continue
		}
		if want := float64(c.Time.Mid)/float64(p.Bound) - 1; !near(1+c.Gap, 1+want) {
			f.add(at+"gap", "%v: its time over the bound - 1 is %v", c.Gap, want)
		}
		f.layout(at, p, c)
		if c.Verdict != Chosen {
			continue
		}
		if chosen >= 0 {
			f.add(at+"verdict", "considered[%d] is chosen already", chosen)
		}
		chosen = i
		if c.Strategy != p.Strategy {
			f.add("strategy", "%q: considered[%d], which is chosen, is %q", p.Strategy, i, c.Strategy)
		}
		f.same(at+"time", c.Time, p.Step.Time)
	}
	f.leftOut(p, seen)
	if chosen < 0 {
		f.add("considered", "none is chosen")
		return
	}
	f.verdicts(p, &p.Compared[chosen])
}

// leftOut checks that every strategy is there that any plan is compared with, but for those that a
// warning says were skipped: without the strongest baseline each plan looks good.
func (f *findings) leftOut(p *Plan, seen map[string]bool) {
	for _, s := range strategies() {
		name, claims := s.Name(), s.Claims()
		// evenkeel-sure picks from the layouts of evenkeel, which is always solved beside it.
		always := claims.Baseline || claims.Published || name == Default && seen[evenkeel.SureName]
		if always && !seen[name] && !skipped(p, name) {
			f.add("considered", "%s is not among them: it is solved for every plan, and no warning says that it was skipped", name)
		}
	}
}

// skipped says whether a plan's warnings tell that the time was up for a strategy: see
// strategy.SolveEach.
func skipped(p *Plan, name string) bool {
	return slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.HasPrefix(w, "strategy "+name+": ") })
}

// strategy checks that a candidate's strategy and verdict are words that there are.
func (f *findings) strategy(at string, c *Candidate, seen bool) {
	if seen {
		f.add(at+"strategy", "%q: listed before", c.Strategy)
	}
	if s, err := lookupAny(c.Strategy); err != nil {
		f.add(at+"strategy", "%v", err)
	} else if s.Baseline != c.Baseline {
		f.add(at+"baseline", "%v: strategy %s says %v", c.Baseline, c.Strategy, !c.Baseline)
	}
	if !slices.Contains([]Verdict{Chosen, Equal, Tie, Slower, Infeasible, NotLegal}, c.Verdict) {
		f.add(at+"verdict", "%q: want %s, %s, %s, %s, %s or %s", string(c.Verdict), Chosen, Equal, Tie, Slower, Infeasible, NotLegal)
	}
}

// layout checks a candidate's, which the chosen one has not.
func (f *findings) layout(at string, p *Plan, c *Candidate) {
	if (c.Layout == nil) != (c.Verdict == Chosen) {
		f.add(at+"layout", "left out of the chosen candidate and of no other")
		return
	}
	if c.Layout == nil {
		return
	}
	if err := c.Layout.Validate(p.Job.SeqLen, len(p.Ranks), p.Job.Model.QHeads); err != nil {
		f.add(at+"layout", "%v", err)
		return
	}
	f.schedule(at+"layout.", p, *c.Layout)
}

// notLegal checks that a candidate without a layout has nothing that only one
// with a layout can have, and says why.
func (f *findings) notLegal(at string, c *Candidate) {
	for _, x := range []struct {
		field string
		is    bool
	}{
		{"time", c.Time != costmodel.Estimate{}},
		{"gap", c.Gap != 0},
		{"peak_memory_bytes", c.Peak != 0},
		{"speedup_vs_baseline", c.Speedup != 0},
		{"gain_error_s", c.GainError != 0},
		{"busy_s", c.Busy != 0},
		{"exposed_s", c.Exposed != 0},
		{"idle_s", c.Idle != 0},
		{"layout", c.Layout != nil},
	} {
		if x.is {
			f.add(at+x.field, "there, but the strategy is %s", NotLegal)
		}
	}
	if c.Why == "" {
		f.add(at+"why", "empty: say why the strategy is %s", NotLegal)
	}
}

// verdicts checks speed-ups, gains and who was chosen.
func (f *findings) verdicts(p *Plan, chosen *Candidate) {
	x := outcome{p.Baseline(), chosen}
	asked := false // whether only a wish explains the choice
	for i := range p.Compared {
		c := &p.Compared[i]
		if c.Verdict == NotLegal {
			continue
		}
		at := fmt.Sprintf("considered[%d].", i)
		if want := x.speedup(c); !near(c.Speedup, want) {
			f.add(at+"speedup_vs_baseline", "%v: the times give %v", c.Speedup, want)
		}
		if !(c.GainError >= 0) || c.GainError > 0 && !x.compares(c) {
			f.add(at+"gain_error_s", "%v: want at least 0, and 0 where there is nothing to compare", float64(c.GainError))
		}
		want := x.verdict(c)
		// Plans were written before there was a word for equally fast ones, and when a gain of
		// rounding was one.
		older := want == Equal && (c.Verdict == Slower || c.Verdict == Tie) || x.rounded(c) && c.Verdict == Slower
		if c.Verdict != want && !older {
			f.add(at+"verdict", "%q: the numbers say %q", string(c.Verdict), string(want))
		}
		objection := x.objection(c)
		if objection != "" && !p.Taken && !(c == x.chosen && x.rounded(c)) {
			f.add(at+"verdict", "%s", objection)
		}
		asked = asked || objection != ""
	}
	if p.Taken && !asked {
		f.add("taken", "true: the numbers recommend the chosen strategy anyway")
	}
}

// outcome says what ought to be written of candidates that have a layout, by their numbers
// alone.
type outcome struct {
	base   *Candidate // the strongest baseline that fits, or nil
	chosen *Candidate
}

// compares says whether a candidate's time is compared with the baseline's.
func (x outcome) compares(c *Candidate) bool { return x.base != nil && c != x.base && c.Runs() }

// tied says that a candidate gains no more than the model can tell.
func (x outcome) tied(c *Candidate) bool {
	return x.compares(c) && (x.base.Time.Mid-c.Time.Mid <= c.GainError || near(float64(c.Time.Mid), float64(x.base.Time.Mid)))
}

// rounded says that a candidate is tied by rounding alone.
func (x outcome) rounded(c *Candidate) bool {
	return x.tied(c) && x.base.Time.Mid-c.Time.Mid > c.GainError
}

func (x outcome) speedup(c *Candidate) float64 {
	if x.base == nil || !c.Runs() {
		return 0
	}
	return float64(x.base.Time.Mid / c.Time.Mid)
}

func (x outcome) verdict(c *Candidate) Verdict {
	switch {
	case !c.Runs():
		return Infeasible // costs checks whether it really does not fit
	case c == x.chosen:
		return Chosen
	case near(float64(c.Time.Mid), float64(x.chosen.Time.Mid)):
		return Equal
	case x.tied(c) && c.Time.Mid <= x.base.Time.Mid && !c.Baseline:
		return Tie
	}
	return Slower
}

// objection is what of a candidate speaks against the choice, unless it was asked for: that
// the chosen one surely gains nothing, or that another surely gains more. "" is nothing.
func (x outcome) objection(c *Candidate) string {
	switch tied := x.tied(c); {
	case c == x.chosen && tied:
		return fmt.Sprintf("chosen, but it gains no more over %s than the model can tell", x.base.Strategy)
	case c != x.chosen && !tied && c.Runs() && c.Time.Mid < x.chosen.Time.Mid*(1-tolerance):
		return fmt.Sprintf("%q: it is faster than the chosen one", string(c.Verdict))
	}
	return ""
}

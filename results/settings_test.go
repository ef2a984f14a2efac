package results

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// TestPlanOfSettingsLeftOpen shows what each takes, at least where nobody planned it, and why
// some have no plan.
func TestPlanOfSettingsLeftOpen(t *testing.T) {
	d := testPlan()
	d.Job.Zero = costmodel.Zero1
	full := d.Job.Recompute
	d.Settings = []solver.Setting{
		{Zero: costmodel.Zero0, Recompute: costmodel.RecomputeNone, Verdict: solver.Infeasible, Why: "states are too large"},
		{Zero: costmodel.Zero0, Recompute: full, Verdict: solver.Infeasible, Why: "states are too large"},
		{Zero: costmodel.Zero1, Recompute: full, Verdict: solver.Chosen, Strategy: "evenkeel", Time: d.Step.Time, Baseline: 3.42, Peak: units.GiB, Bound: d.Bound},
		{Zero: costmodel.Zero2, Recompute: full, Verdict: solver.Tie, Strategy: "ring", Time: spread(2.8, 0.04, costmodel.Interpolated), Peak: 2 * units.GiB, Bound: 2.65, GainError: 0.2},
		{Zero: costmodel.Zero3, Recompute: full, Verdict: solver.Untried, Why: "no plan of it takes less", Bound: 5.42},
		{Zero: costmodel.Zero3, Recompute: costmodel.RecomputeNone, Verdict: solver.Untried, Why: "it was interrupted", Bound: 2.6},
	}
	out := printPlan(t, d)
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	text := strings.Join(lines, "\n")
	for _, want := range []string{
		"zero0, recompute none - - - - - infeasible\n",
		"zero1, recompute full evenkeel 2.71 s +- 4.0 % - 3.42 s 1 GiB chosen\n",
		"zero2, recompute full ring 2.80 s +- 4.0 % ~ +3.3 % +- 7.4 % - 2 GiB ~\n",
		"zero3, recompute full - 5.42 s or more +100 % or more - - slower\n",
		"zero3, recompute none - - - - - not tried\n",
		"zero0, recompute none; zero0, recompute full: infeasible: states are too large\nzero3, recompute none: not tried: it was interrupted\n\n",
		"the one with the lowest memory peak is chosen",
	} {
		if !strings.Contains(text, want) && !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if strings.Contains(text, "auto takes") || strings.Contains(text, "no plan of it takes less") {
		t.Error(out)
	}
}

// TestPlanSaysWhatAFixedSettingCosts where that is much.
func TestPlanSaysWhatAFixedSettingCosts(t *testing.T) {
	for _, c := range []struct {
		zero        costmodel.ZeRO
		sync, again float64
		idle        int
		want        []string
	}{
		{costmodel.Zero3, 0.1, 0, 0, nil},
		{costmodel.Zero0, 1, 0, 1, nil},
		{costmodel.Zero0, 0.1, 0, 1, nil},
		{costmodel.Zero3, 0.1, 0, 1, []string{"1 of 4 ranks are left out; under a ZeRO stage that exchanges less they may be worth their place: --zero auto takes"}},
		{"", 1, 0, 0, []string{"37 % of the step is gradient sync that nothing hides; --zero auto takes"}},
		{costmodel.Zero3, 0.1, 0.542, 0, []string{"20 % of the step is computing again; --recompute auto leaves it out"}},
	} {
		d := testPlan()
		d.Job.Zero = c.zero
		for i := range c.idle {
			d.Ranks[i].Group = -1
		}
		d.Step.Parts = []costmodel.Part{{Name: "recompute", Time: spread(c.again, 0, "")}, {Name: "gradient sync", Time: spread(c.sync, 0, "")}}
		out := strings.Join(strings.Fields(printPlan(t, d)), " ")
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%+v: %s", c, out)
			}
		}
		if n := strings.Count(out, " auto "); n != len(c.want) {
			t.Errorf("%+v: %d words of auto in %s", c, n, out)
		}
	}
}

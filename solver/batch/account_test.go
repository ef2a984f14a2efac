package batch_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// The account of a plan by laws is of its time; its interval is about as wide as that of the
// layouts of one sequence by the same laws, and the error of a gain is that of what plans do
// differently.
func TestPlansByLawsHaveErrors(t *testing.T) {
	lengths := []units.Tokens{60000, 30000, 9000, 9000, 4000, 4000, 4000, 2500, 2000, 1500, 1500, 700, 600, 300, 200, 90}
	for _, cluster := range []string{"1x2 h100_sxm", "2x4 h100_sxm", "1x4 h100_sxm + 1x4 a100_sxm"} {
		p, err := batch.NewProblem(lawCosts(t, cluster), lengths)
		if err != nil {
			t.Fatal(err)
		}
		clock := func() units.Seconds { return 0 }
		var attempts []batch.Attempt
		for _, s := range batch.Strategies(batch.Settings{Longest: 60000, Fast: true}) {
			attempts = append(attempts, batch.Try(t.Context(), s, p, clock))
		}
		d, err := batch.Choose(p, 0, attempts, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", cluster, err)
		}
		base := d.Baseline()
		for i, c := range d.Compared {
			if c.Time == 0 {
				continue
			}
			e := c.Interval
			if math.Abs(float64(e.Mid/c.Time)-1) > 1e-9 || !(e.Lo < e.Mid && e.Mid < e.Hi) || e.Source != costmodel.Assumed {
				t.Errorf("%s, %s: %+v of %v", cluster, c.Strategy, e, c.Time)
			}
			if spread := e.Spread(); spread < 0.1 || spread > 0.8 {
				t.Errorf("%s, %s: %v either way", cluster, c.Strategy, spread)
			}
			half, of := costmodel.GainError(attempts[i].Account, attempts[i].Account)
			if half != 0 || of != "" {
				t.Errorf("%s, %s: differs from itself by up to %v by %q", cluster, c.Strategy, half, of)
			}
			if differs := math.Abs(float64(c.Time-base.Time)) > 1e-9; differs && !(c.GainError > 0 && c.Doubt != "") || c.GainError > base.Time {
				t.Errorf("%s, %s: %v where the best baseline takes %v, error %v by %q", cluster, c.Strategy, c.Time, base.Time, c.GainError, c.Doubt)
			}
		}
	}
}

// What the sum of prices is off by is told as far as it is known.
func TestNotesSayHowFarSumsAreOff(t *testing.T) {
	for want, costs := range map[string]*groupcost.Costs{
		"and a base, which is within 2 % of a simulation of the group in half of all groups, and within 5 % in nine of ten;": lawCosts(t, "1x2 h100_sxm"),
		"and a base, as those take it who published the prices; how far":                                                     publishedCosts(t, 8),
	} {
		p, err := batch.NewProblem(costs, []units.Tokens{900})
		if err != nil {
			t.Fatal(err)
		}
		if note := batch.NotModelled(p, nil)[0]; !strings.Contains(note, want) {
			t.Errorf("%q: want %q", note, want)
		}
	}
}

// Where a micro-batch waits for the exchange behind it, that is what its time rests on.
func TestAccountsHaveTheExchangeThatHides(t *testing.T) {
	q, j := lawJob(t, "2x4 h100_sxm", 1, 1)
	j.OverlapZero = true
	costs, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := batch.NewProblem(costs, []units.Tokens{300})
	if err != nil {
		t.Fatal(err)
	}
	a := batch.Try(t.Context(), batch.Evenkeel{}, p, func() units.Seconds { return 0 })
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	if m := a.Plan.Micro[0]; m.Groups[0].Time >= p.Hidden {
		t.Fatalf("the group takes %v, the exchange %v: nothing waits for it", m.Groups[0].Time, p.Hidden)
	}
	if math.Abs(float64(a.Account.Time.Mid/a.Plan.Time)-1) > 1e-9 {
		t.Errorf("account of %v, the plan takes %v", a.Account.Time.Mid, a.Plan.Time)
	}
}

// Published coefficients say nothing of their error, and so plans by them say none.
func TestPlansByPublishedCostsHaveNoError(t *testing.T) {
	p, err := batch.NewProblem(publishedCosts(t, 16), []units.Tokens{9000, 4000, 500})
	if err != nil {
		t.Fatal(err)
	}
	a := batch.Try(t.Context(), batch.Evenkeel{}, p, func() units.Seconds { return 0 })
	if a.Err != nil || a.Account != nil {
		t.Fatalf("%v, %+v", a.Err, a.Account)
	}
	d, err := batch.Choose(p, 0, []batch.Attempt{a}, "")
	if err != nil || d.Compared[0].Interval != (costmodel.Estimate{}) || d.Compared[0].GainError != 0 {
		t.Errorf("%v, %+v", err, d.Compared)
	}
}

// What the interval of a plan takes, beside the plan itself.
func BenchmarkInterval(b *testing.B) {
	for _, cluster := range []string{"1x8 h100_sxm", "8x8 h100_sxm", "8x8 h100_sxm + 8x8 a100_sxm", "32x8 h100_sxm + 32x8 a100_sxm"} {
		costs := lawCosts(b, cluster)
		for _, n := range []int{64, 512} {
			p, err := batch.NewProblem(costs, drawn(b, "lognormal:median=1000,sd=1.7,seed=7", n))
			if err != nil {
				b.Fatal(err)
			}
			planner := batch.NewPlanner(batch.Options{})
			plan, err := planner.Plan(b.Context(), p)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("plan/%s/%d", cluster, n), func(b *testing.B) {
				for b.Loop() {
					if _, err := planner.Plan(b.Context(), p); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("interval/%s/%d", cluster, n), func(b *testing.B) {
				for b.Loop() {
					if _, err := batch.Interval(p, plan); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// What the most sequences take that are planned exactly: in a training loop, and by themselves.
func BenchmarkFewSequences(b *testing.B) {
	for _, x := range []struct {
		cluster string
		n       int
		effort  batch.Effort
	}{
		{"8x8 h100_sxm", 10, batch.Online},
		{"8x8 h100_sxm", 12, batch.Thorough},
		{"2x8 h100_sxm + 2x8 a100_sxm", 8, batch.Online},
		{"2x8 h100_sxm + 2x8 a100_sxm", 10, batch.Thorough},
	} {
		p, err := batch.NewProblem(lawCosts(b, x.cluster), drawn(b, "lognormal:median=8000,sd=1.3,seed=12", x.n))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("%s/%d/effort=%d", x.cluster, x.n, x.effort), func(b *testing.B) {
			pl, gap := batch.NewPlanner(batch.Options{Effort: x.effort}), 0.0
			for b.Loop() {
				plan, err := pl.Plan(b.Context(), p)
				if err != nil {
					b.Fatal(err)
				}
				gap = 100 * (float64(plan.Time/pl.Bound()) - 1)
			}
			b.ReportMetric(gap, "gap-%")
		})
	}
}

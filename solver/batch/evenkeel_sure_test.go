package batch_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

func stopped() units.Seconds { return 0 }

// tried are the attempts of all strategies but the slow ones.
func tried(t *testing.T, p *batch.Problem) []batch.Attempt {
	t.Helper()
	var all []batch.Attempt
	for _, s := range batch.Strategies(batch.Settings{Longest: 32768, Fast: true}) {
		all = append(all, batch.Try(t.Context(), s, p, stopped))
	}
	return all
}

func drawn(t testing.TB, words string, n int) []units.Tokens {
	t.Helper()
	d, err := workload.ParseDistribution(words)
	if err != nil {
		t.Fatal(err)
	}
	return workload.Shape{Multiple: 128, Limit: 32768, Truncate: true}.Apply(d.Lengths(n)).Lengths
}

// Where the fastest plan's gain is in doubt there may be another that surely gains: it is
// recommended, and no slower than it need be to be told from the baseline. Where the fastest
// gains surely there is nothing to look for.
func TestASurerPlanIsFound(t *testing.T) {
	costs := lawCosts(t, "1x2 h100_sxm + 1x2 a100_sxm")
	for _, c := range []struct {
		words string
		n     int
		why   string // there is none
	}{
		{"lognormal:median=1000,sd=1.7,seed=2", 16, ""},
		{"lognormal:median=1000,sd=1.7,seed=7", 32, "no plan is faster than one that surely gains already"},
		{"lognormal:median=1000,sd=1.7,seed=7", 8, "of 9 plans made none gains more over the strongest baseline than the cost model can be wrong by"},
	} {
		p, err := batch.NewProblem(costs, drawn(t, c.words, c.n))
		if err != nil {
			t.Fatal(err)
		}
		attempts := tried(t, p)
		slow := batch.Attempt{} // of a strategy that is asked after this one
		sure := batch.Try(t.Context(), batch.Sure(append(slices.Clone(attempts), slow), batch.Options{}), p, stopped)
		d, err := batch.Choose(p, 0, append(attempts, sure), "")
		if err != nil || d.Validate() != nil {
			t.Fatal(err, d.Validate())
		}
		if c.why != "" {
			if sure.Err == nil || sure.Err.Error() != c.why || len(d.Compared) != len(attempts) {
				t.Errorf("%s, %d: %v", c.words, c.n, sure.Err)
			}
			continue
		}
		ours, base, x := d.Compared[len(attempts)-1], d.Baseline(), d.Chosen()
		if ours.Strategy != "evenkeel" || ours.Verdict != batch.Tie || ours.Time >= base.Time {
			t.Errorf("%s, %d: %+v: its gain is not in doubt", c.words, c.n, ours)
		}
		if x.Strategy != "evenkeel-sure" || base.Time-x.Time <= x.GainError || x.GainError >= ours.GainError || x.GainError < ours.GainError/10 {
			t.Errorf("%s, %d: %+v over %v", c.words, c.n, x, base.Time)
		}
	}
}

func TestNothingIsSurerWithoutErrorsOrTime(t *testing.T) {
	lengths := drawn(t, "lognormal:median=1000,sd=1.7,seed=7", 16)
	published, err := batch.NewProblem(publishedCosts(t, 8), lengths)
	if err != nil {
		t.Fatal(err)
	}
	p, err := batch.NewProblem(lawCosts(t, "1x2 h100_sxm + 1x2 a100_sxm"), lengths)
	if err != nil {
		t.Fatal(err)
	}
	attempts, ours := tried(t, p), []batch.Attempt{batch.Try(t.Context(), batch.Evenkeel{}, p, stopped)}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx      context.Context
		p        *batch.Problem
		attempts []batch.Attempt
		want     string
	}{
		"published prices": {t.Context(), published, tried(t, published), "nobody knows how far the prices are off"},
		"no baseline":      {t.Context(), p, ours, "no baseline has a plan"},
		"a baseline alone": {t.Context(), p, attempts[:3], "no plan is faster than the strongest baseline"},
		"no time":          {ended, p, attempts, context.Canceled.Error()},
	} {
		if _, err := batch.Sure(c.attempts, batch.Options{}).Solve(c.ctx, c.p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

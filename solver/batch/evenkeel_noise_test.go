package batch_test

import (
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// Few sequences on unlike devices leave a search where it began: one at other prices ends
// elsewhere, and more of them, or more effort, never in a longer plan.
func TestNoisyPricesLeadToShorterPlans(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	costs := lawCosts(t, "1x8 b200_sxm + 1x8 h100_sxm + 1x8 a100_sxm + 1x8 rtx_pro_6000_server")
	time := func(p *batch.Problem, o batch.Options) units.Seconds {
		plan, err := batch.NewPlanner(o).Plan(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if found := batch.Check(p, plan); len(found) > 0 {
			t.Fatal(found)
		}
		return plan.Time
	}
	shorter := 0
	for _, c := range []struct {
		words string
		n     int
	}{{"uniform:100,131072,seed=1", 8}, {"uniform:100,131072,seed=3", 8}, {"lognormal:median=30000,sd=0.5,seed=1", 24}} {
		p, err := batch.NewProblem(costs, drawn(t, c.words, c.n))
		if err != nil {
			t.Fatal(err)
		}
		quick := time(p, batch.Options{Effort: batch.Quick})
		online := time(p, batch.Options{})
		thorough := time(p, batch.Options{Effort: batch.Thorough})
		longer := time(p, batch.Options{Effort: batch.Thorough, Times: 2.5})
		t.Logf("%d of %s: %.4g, %.4g, %.4g, %.4g s", c.n, c.words, quick, online, thorough, longer)
		if online > quick || thorough > online || longer > thorough {
			t.Errorf("%d of %s: quick %v, online %v, thorough %v, for longer %v", c.n, c.words, quick, online, thorough, longer)
		}
		if thorough < online*0.99 {
			shorter++
		}
	}
	if shorter == 0 {
		t.Error("no plan is a percent shorter by noisy prices")
	}
}

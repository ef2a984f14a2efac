package batch

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Many plans of alike sequences take just what the bound says, so that sums in
// another order must not come out below it.
func TestNoPlanIsBelowThePlannersBound(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	rng := rand.New(rand.NewPCG(9, 9))
	fleets := []*Problem{twoNodes(), oddNodes(), flexspBatch(nil), fcpProblem(64, 8192, ringDegrees(32), nil)}
	pl := NewPlanner(Options{})
	tight := 0
	for i := range 120 {
		p := *fleets[i%len(fleets)]
		p.Lengths = make([]units.Tokens, 1+rng.IntN(64))
		n := 1 + units.Tokens(rng.IntN(int(p.Classes[0].Cap)))
		for k := range p.Lengths {
			p.Lengths[k] = n
		}
		plan, err := pl.Plan(context.Background(), &p)
		if err != nil {
			t.Fatal(err)
		}
		if plan.Time < pl.Bound() {
			t.Fatalf("%d of %d tokens, fleet %d: %v is below %v", len(p.Lengths), int64(n), i%len(fleets), float64(plan.Time), float64(pl.Bound()))
		}
		quick, err := quickBound(&p)
		if err != nil || quick > pl.Bound() || len(p.Lengths) > fewSequences && quick != pl.Bound() {
			t.Fatalf("%v: quickBound is %v (%v)", pl.Bound(), quick, err)
		}
		if float64(plan.Time) < float64(quick)*exactly {
			tight++
		}
	}
	if tight < 5 {
		t.Errorf("%d plans are as short as the bound: the test looks at too few", tight)
	}
}

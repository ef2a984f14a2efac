package batch

import (
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Few long sequences, of which flexsp's programmes find a plan that is 0.1 % shorter than what a
// thorough search does.
func TestEvenkeelGoesOnFromAFasterPlan(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector takes too much of the time that programmes have")
	}
	p := flexspBatch([]units.Tokens{
		714, 254422, 295, 9234, 423, 79813, 212407, 5929, 10463, 14322, 36638, 6872, 8911, 487, 13730, 2227, 3920, 47860,
		62157, 1818, 11979, 54638, 4262, 5019, 54073, 6446, 308, 3055, 2136, 54992, 296, 20121, 9497, 9314, 16343,
	})
	clock := func() units.Seconds { return 0 }
	flexsp, ours := FlexSP{Limit: 5 * time.Second, Single: true}, Evenkeel{Options{Effort: Thorough}}
	attempts := []Attempt{Try(t.Context(), flexsp, p, clock), Try(t.Context(), ours, p, clock)}
	before := attempts[1].Plan.Time
	if !slower(before, attempts[0].Plan.Time) {
		t.Fatalf("flexsp takes %v, ours %v: the search finds it by itself", attempts[0].Plan.Time, before)
	}
	Overtake(t.Context(), p, attempts, clock)
	a := attempts[1]
	if a.Err != nil || a.Strategy.Name() != ours.Name() || slower(a.Plan.Time, attempts[0].Plan.Time) || len(Check(p, a.Plan)) > 0 {
		t.Errorf("%v by %s, %v; flexsp takes %v", a.Plan.Time, a.Strategy.Name(), a.Err, attempts[0].Plan.Time)
	}
	t.Logf("flexsp %v, evenkeel %v, then %v", attempts[0].Plan.Time, before, a.Plan.Time)
	// A plan that is no slower stays.
	kept := attempts[1].Plan
	if Overtake(t.Context(), p, attempts, clock); attempts[1].Plan != kept {
		t.Error("the fastest plan was planned again")
	}
}

// Without a plan of ours, as when time is up before there is one, or on a part of the nodes, ours
// goes on from the fastest of the others.
func TestEvenkeelGoesOnFromAnyPlan(t *testing.T) {
	p := twoNodes(100, 90, 80, 300, 20, 10)
	clock := func() units.Seconds { return 0 }
	part := &Part{Problem: twoNodes(100, 90, 80, 300, 20, 10), Nodes: 2}
	attempts := []Attempt{Try(t.Context(), FCP{}, part.Problem, clock), {Strategy: Evenkeel{}, Err: t.Context().Err()}}
	attempts[0].On = part
	Overtake(t.Context(), p, attempts, clock)
	if a := attempts[1]; a.Plan == nil || a.Err != nil || a.On != part || slower(a.Plan.Time, attempts[0].Plan.Time) {
		t.Errorf("%+v; fcp takes %v", a, attempts[0].Plan.Time)
	}
	none := []Attempt{{Strategy: FCP{}}, {Strategy: Evenkeel{}}}
	if Overtake(t.Context(), p, none, clock); none[1].Plan != nil {
		t.Error("a plan of nothing")
	}
}

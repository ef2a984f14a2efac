package batch

import (
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

func TestTypicalSequencesFillAGroupWithSomeOfEachLength(t *testing.T) {
	lengths := []units.Tokens{5, 900, 10, 100, 20, 30, 2000, 100}
	for room, want := range map[units.Tokens][]units.Tokens{
		4:    nil,
		1165: {900, 100, 100, 30, 20, 10, 5},
		1000: {900, 100},
		600:  {100, 100, 30, 20, 10, 5},
		200:  {100, 30, 10},
	} {
		got := typical(lengths, room)
		if len(got) != len(want) {
			t.Errorf("%d: %v, want %v", room, got, want)
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("%d: %v, want %v", room, got, want)
			}
		}
	}
}

func TestRaisedPricesAreThoseOfTheClassAndLeaveTheProblemAlone(t *testing.T) {
	p := twoNodes(500, 900)
	q := p.raised([]float64{0, 0.1, 0.2, 0.4}, 0.5)
	for c, factor := range []units.Seconds{1, 1.05, 1.1, 1.2} {
		if got, want := q.Costs.Time(c, 900), factor*p.Costs.Time(c, 900); got != want {
			t.Errorf("classes[%d]: a sequence takes %v, want %v", c, got, want)
		}
		if got, want := q.Classes[c].Base, factor*0.1; got != want || p.Classes[c].Base != 0.1 {
			t.Errorf("classes[%d]: base of %v, want %v; of the problem %v", c, got, want, p.Classes[c].Base)
		}
	}
}

// A plan that is no faster than what there is is not asked how sure it is.
func TestOnlyFasterPlansAreKept(t *testing.T) {
	p := twoNodes(500, 900)
	s := &seeker{p: p, planner: NewPlanner(Options{}), doubts: make([]float64, 4), than: solvedBy(t, Evenkeel{}, p).Time}
	if err := s.try(t.Context(), 1); err != nil || s.best != nil || s.made != 1 {
		t.Errorf("%v: %+v of %d", err, s.best, s.made)
	}
}

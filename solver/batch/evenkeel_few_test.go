package batch

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// A few sequences on a few devices are planned exactly, and more of either by a search.
func TestWhatIsFew(t *testing.T) {
	few := func(p *Problem) bool {
		var of table
		of.load(p)
		return newFew(t.Context(), &of, fewOnline) != nil
	}
	if !few(twoNodes(4000, 900, 900, 1800, 7000)) {
		t.Error("five sequences on eight devices are not few")
	}
	if few(twoNodes(slices.Repeat([]units.Tokens{100}, fewSequences+1)...)) {
		t.Error("a sequence too many is few")
	}
	wide := twoNodes(slices.Repeat([]units.Tokens{100}, fewSequences)...)
	for n := range 64 {
		wide.Fleet[0].Ranks = append(wide.Fleet[0].Ranks, []int{100 + 4*n, 101 + 4*n, 102 + 4*n, 103 + 4*n})
	}
	if few(wide) {
		t.Error("a dozen sequences on hundreds of devices are few")
	}
}

// Where the exact plan's groups find no place on the nodes, its time is a bound still, and the
// search finds a plan.
func TestFewWithoutRoomOnNodes(t *testing.T) {
	// Nodes of three devices: two groups of two, of one node each, have four devices of six, but
	// a third has no node with two left.
	p := &Problem{
		Lengths: []units.Tokens{1000, 1000, 1000},
		Fleet:   []Pool{{Device: "x", Ranks: [][]int{{0, 1, 2}, {3, 4, 5}}}},
		Classes: []Class{{Name: "1", Uses: []int{1}, One: true, Cap: 5000}, {Name: "2", Uses: []int{2}, One: true, Cap: 5000}},
		Costs:   quadratic{b: 1e-4, speed: []float64{1, 2}},
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	var of table
	of.load(p)
	step, _ := newFew(t.Context(), &of, fewOnline).least()
	if of.anywhere || math.Abs(step-0.05) > 1e-12 {
		t.Fatalf("%v s at least (anywhere: %v), want three groups of two at once", step, of.anywhere)
	}
	pl := NewPlanner(Options{})
	plan, err := pl.Plan(context.Background(), p)
	if err != nil || math.Abs(float64(plan.Time)-0.1) > 1e-12 || math.Abs(float64(pl.Bound())-0.05) > 1e-9 {
		t.Fatalf("%+v, %v, bound %v", plan, err, pl.Bound())
	}
	for _, err := range Check(p, plan) {
		t.Error(err)
	}
}

// A kind of group that may span nodes is not left out for one that may not, where room on nodes
// is short; and a context that has ended leaves the batch to what is quick.
func TestFewMaySpanNodes(t *testing.T) {
	p := &Problem{
		Lengths: []units.Tokens{1000, 1000, 1000},
		Fleet:   []Pool{{Device: "x", Ranks: [][]int{{0, 1, 2}, {3, 4, 5}}}},
		Classes: []Class{{Name: "2", Uses: []int{2}, Cap: 5000}, {Name: "2, one node", Uses: []int{2}, One: true, Cap: 5000}},
		Costs:   quadratic{b: 1e-4, speed: []float64{2, 2}},
	}
	pl := NewPlanner(Options{})
	pl.read(p)
	if !pl.tryFew(t.Context()) || math.Abs(pl.best.total-0.05) > 1e-12 {
		t.Errorf("%v s", pl.best.total)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if pl.read(p); pl.tryFew(done) {
		t.Error("planned exactly, with no time left")
	}
}

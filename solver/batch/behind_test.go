package batch

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// behindLast is twoNodes of five sequences of which goodPlan's second micro-batch, a group of
// all devices, takes (1e-9·7000² + 1e-5·7000)/6 + 0.1 s, and its first, a group of four with
// one sequence, (1e-9·4000² + 1e-5·4000)/3.6 + 0.1 s.
func behindLast(behind units.Seconds) (p *Problem, first, second float64) {
	p = twoNodes(4000, 900, 900, 1800, 7000)
	p.Fixed, p.MicroBase, p.Behind = 0.3, 0.01, behind
	return p, 0.1 + 0.056/3.6, 0.1 + 0.119/6
}

// What the last micro-batch's backward pass, six tenths of it, is too short for is in the
// step, and nothing is where it is long enough.
func TestTheExchangeIsOpenBeyondTheLastMicroBatch(t *testing.T) {
	for _, behind := range []units.Seconds{0, 0.05, 0.0718, 0.072, 0.5, 20} {
		p, first, second := behindLast(behind)
		want := 0.3 + first + second + 2*0.01 + max(0, float64(behind)-0.6*second)
		plan := goodPlan(t, p)
		if math.Abs(float64(plan.Time)-want) > 1e-12*want {
			t.Errorf("%v behind: a step of %v, want %v", behind, plan.Time, want)
		}
		for _, err := range Check(p, plan) {
			t.Errorf("%v behind: %v", behind, err)
		}
	}
}

// The longest micro-batch comes last where that shortens the step, the others stay in order,
// and of several as long the last stays last.
func TestTheLongestMicroBatchIsTheLast(t *testing.T) {
	of := func(behind units.Seconds, lengths ...units.Tokens) []int {
		p := twoNodes(lengths...)
		p.Behind = behind
		plan := &Plan{}
		for k := range lengths {
			plan.Micro = append(plan.Micro, MicroBatch{Groups: []Group{{Class: 3, Sequences: []int{k}}}})
		}
		Evaluate(p, plan)
		var order []int
		for _, m := range plan.Micro {
			order = append(order, m.Groups[0].Sequences...)
		}
		return order
	}
	for _, c := range []struct {
		behind  units.Seconds
		lengths []units.Tokens
		want    []int
	}{
		{0, []units.Tokens{500, 900, 100, 700}, []int{0, 1, 2, 3}},
		{1, []units.Tokens{500, 900, 100, 700}, []int{0, 2, 3, 1}},
		{1, []units.Tokens{900, 500, 900, 100}, []int{0, 1, 3, 2}},
		{1, []units.Tokens{100, 500, 900}, []int{0, 1, 2}},
		{1, []units.Tokens{900}, []int{0}},
	} {
		if got := of(c.behind, c.lengths...); !slices.Equal(got, c.want) {
			t.Errorf("%v behind, sequences of %v: in the order %v, want %v", c.behind, c.lengths, got, c.want)
		}
	}
}

// A plan that leaves out what is open, or says that it hides behind a longer micro-batch than
// the last, is found.
func TestCheckNoticesWhatIsOpen(t *testing.T) {
	p, first, second := behindLast(0.5)
	for _, c := range []struct {
		what   string
		damage func(*Plan)
	}{
		{"as if all were hidden", func(plan *Plan) { plan.Time -= 0.5 - units.Seconds(0.6*second) }},
		{"as if nothing were", func(plan *Plan) { plan.Time += units.Seconds(0.6 * second) }},
		{"behind one that is not the last", func(plan *Plan) { slices.Reverse(plan.Micro) }},
	} {
		plan := goodPlan(t, p)
		c.damage(plan)
		if found := Check(p, plan); len(found) != 1 || !strings.Contains(found[0].Error(), "step_s") {
			t.Errorf("%s: %v", c.what, found)
		}
	}
	// Another order is no break where the time is of it.
	plan := goodPlan(t, p)
	slices.Reverse(plan.Micro)
	plan.Time += units.Seconds(0.6 * (second - first))
	if found := Check(p, plan); len(found) > 0 {
		t.Error(found)
	}
}

// The document of such a plan, which takes longer than its micro-batches together, is read
// again as it was written.
func TestADocumentWithExchangeBehindTheLast(t *testing.T) {
	p, _, _ := behindLast(5)
	var attempts []Attempt
	for _, s := range []Strategy{Adaptive{}, Evenkeel{}} {
		a := Try(t.Context(), s, p, ticks())
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		attempts = append(attempts, a)
	}
	bound, err := LowerBound(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Choose(p, bound, attempts, "")
	if err != nil {
		t.Fatal(err)
	}
	d.Schema, d.Tool, d.Created = Schema, "test", "2026-01-01T00:00:00Z"
	data, err := doc.Encode(d)
	if err != nil {
		t.Fatal(err)
	}
	var back Document
	if err := doc.Decode("x", data, &back); err != nil {
		t.Fatal(err)
	}
	for _, err := range Check(p, attempts[1].Plan) {
		t.Error(err)
	}
	if last := back.Micro[len(back.Micro)-1]; back.Time != d.Time || back.Time < 5 || slices.ContainsFunc(back.Micro, func(m MicroBatch) bool { return m.slowest() > last.slowest() }) {
		t.Errorf("%v read, %v written, in %+v", back.Time, d.Time, back.Micro)
	}
}

// No plan of any strategy is below a bound, and ours is no longer than others', whatever
// travels behind the last micro-batch.
func TestBoundsAndPlansBehindTheLastMicroBatch(t *testing.T) {
	sequential(t)
	rng := rand.New(rand.NewPCG(21, 12))
	near, all := 0, 0
	for i := range 30 {
		p := *testFleets()[i%3]
		p.Lengths = drawBatch(rng, longestHeld(&p))
		p.MicroBase, p.Fixed, p.Behind = 0.01, 0.2, []units.Seconds{0.03, 0.3, 3, 30}[i%4]
		p.Layers = i % 3 // 1 hides nothing
		bound, err := quickBound(&p)
		if err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			if bound, err = LowerBound(context.Background(), &p); err != nil {
				t.Fatal(err)
			}
		}
		ours := solvedBy(t, Evenkeel{}, &p)
		if all++; float64(ours.Time) < 1.25*float64(bound) {
			near++
		}
		for _, s := range append(testBaselines(), FCP{}, Evenkeel{}) {
			plan, err := s.Solve(context.Background(), &p)
			if err != nil {
				continue // has no plan for such nodes or lengths
			}
			if plan.Time < bound || slower(ours.Time, plan.Time) {
				t.Errorf("batch %d (%v), %v behind: %s takes %v, ours %v, the bound is %v", i, p.Lengths, p.Behind, s.Name(), plan.Time, ours.Time, bound)
			}
		}
	}
	if near < all*3/4 {
		t.Errorf("%d of %d plans are within a quarter of the bound", near, all)
	}
}

// Of micro-batches that fill memory all but the last take their time, whatever hides behind
// that: the bound is the time of a plan, but for the grid of roofs.
func TestBoundBehindFullMicroBatches(t *testing.T) {
	for _, behind := range []units.Seconds{0.01, 0.1, 3} {
		p := twoNodes(8000, 8000, 8000)
		p.Behind = behind
		each := 0.1 + (0.08+0.064)/6
		want := 3*each + max(0, float64(behind)-0.6*each)
		bound, err := LowerBound(context.Background(), p)
		if err != nil || float64(bound) > want || float64(bound) < 0.995*want {
			t.Errorf("%v behind: a bound of %v (%v), want %v", behind, bound, err, want)
		}
		if quick, err := quickBound(p); err != nil || float64(quick) > want || float64(quick) < 0.98*want {
			t.Errorf("%v behind: a quick bound of %v (%v), want %v", behind, quick, err, want)
		}
	}
}

// Polishing makes the sum of micro-batches shorter, and may leave more open by that: what
// there was before is kept. A sequence of 4 tokens moves from 6 and 4, which take 10 s, to one
// of 5, where all 9 take 8.775 s: the sum falls by 0.1 s, and 0.6 (10 - 8.775) s more is open.
func TestWhatPolishingMakesLongerIsKept(t *testing.T) {
	p := &Problem{
		Lengths: []units.Tokens{6, 4, 5}, Fleet: []Pool{{Device: "d", Ranks: [][]int{{0}}}}, Costs: quadratic{b: 1, speed: []float64{1, 1 / 0.975}}, Behind: 20,
		Classes: []Class{{Name: "large", Uses: []int{1}, Cap: 10}, {Name: "fast", Uses: []int{1}, Cap: 9}},
	}
	plan := &Plan{Micro: []MicroBatch{{Groups: []Group{{Class: 0, Sequences: []int{0, 1}}}}, {Groups: []Group{{Class: 1, Sequences: []int{2}}}}}}
	pl := NewPlanner(Options{})
	pl.t.load(p)
	pl.start.load(&pl.t, len(plan.Micro), fine())
	pl.anew()
	pl.t.take(plan, &pl.found)
	before := pl.found.total
	pl.polish.run(&pl.t, &pl.found, polishSteps)
	if pl.found.total < before+0.4 {
		t.Fatalf("%v before, %v polished: the test says nothing", before, pl.found.total)
	}
	pl.t.take(plan, &pl.found)
	pl.improve(t.Context(), &pl.found, effort{polish: polishSteps}, 0)
	if pl.best.total > before {
		t.Errorf("%v is kept, there was one of %v", pl.best.total, before)
	}
}

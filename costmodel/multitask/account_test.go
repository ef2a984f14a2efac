package multitask

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/internal/units"
)

// The account is of the runs that the last one waited for, from the end: of each the rank
// that takes longest.
func TestAccountFollowsWhatIsWaitedFor(t *testing.T) {
	w := proportional(t, [][]string{{"a", "b"}}, module("x", 2, 2), module("y", 1, 6), module("z", 3, 4, "x", "y"))
	w.bytes[1] = 1e8 // 2 x 6 of them, and as many back, at 2 ns to or from b
	c := w.costs(t)
	p := &Plan{Runs: []Run{
		{Module: 0, Layers: 2, Ranks: []int{1}, Samples: []int{2}},       // 8 s
		{Module: 1, Layers: 1, Ranks: []int{0}, Samples: []int{6}},       // 6 s
		{Module: 2, Layers: 1, Ranks: []int{0, 1}, Samples: []int{2, 2}}, // when y's results are there
		{Module: 2, Layers: 2, Ranks: []int{0, 1}, Samples: []int{3, 1}},
	}}
	if err := c.Simulate(p); err != nil {
		t.Fatal(err)
	}
	// y ends at 6 s and its results take 2 x 1.2e9 x 2e-9 = 4.8 s; then 4 s and 2 x 3 s. x
	// ends later than y, at 8 s, but is waited for less long.
	if want := units.Seconds(6 + 4.8 + 4 + 6); !close(p.Time, want) {
		t.Fatalf("takes %v, want %v", p.Time, want)
	}
	step, err := c.Account(p)
	if err != nil || step.Time.Mid != p.Time {
		t.Errorf("%+v, %v", step, err)
	}
	want := [][5]int{{2, 0, 3, 2, 2}, {2, 1, 2, 2, 1}, {1, 0, 6, 1, 1}}
	if diff := cmp.Diff(want, w.briefs); diff != "" {
		t.Errorf("module, pool, samples, ranks, layers (-want +got)\n%s", diff)
	}
}

// A run of another wave is waited for even on other ranks.
func TestAccountFollowsWaves(t *testing.T) {
	w := proportional(t, [][]string{{"a", "a"}}, module("x", 1, 5), module("y", 1, 6))
	c := w.costs(t)
	p := &Plan{Runs: []Run{{Module: 0, Layers: 1, Ranks: []int{0}, Samples: []int{5}}, {Module: 1, Layers: 1, Ranks: []int{1}, Samples: []int{6}}}}
	for _, x := range []struct {
		waves bool
		time  units.Seconds
		runs  int
	}{{false, 6, 1}, {true, 11, 2}} {
		p.Waves, p.Runs[1].Wave, w.briefs = x.waves, x.runs-1, nil
		if err := c.Simulate(p); err != nil {
			t.Fatal(err)
		}
		if step, err := c.Account(p); err != nil || step.Time.Mid != x.time || len(w.briefs) != x.runs {
			t.Errorf("waves %t: %+v, %v of %v", x.waves, step, err, w.briefs)
		}
	}
}

// Where nothing is moved and no gradient is exchanged, the runs of the account take as long
// as the plan.
func TestAccountAddsUpToThePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		clear(w.bytes)
		clear(w.gradients)
		c, p := w.costs(t), drawPlan(t, w)
		if err := c.Simulate(p); err != nil {
			t.Fatal(err)
		}
		step, err := c.Account(p)
		if err != nil || !close(step.Time.Mid, p.Time) {
			t.Fatalf("%+v, %v; the plan takes %v", step, err, p.Time)
		}
		sum := units.Seconds(0)
		for _, b := range w.briefs {
			sum += units.Seconds(b[4]) * w.times[b[0]][b[1]][b[2]]
		}
		if !close(sum, p.Time) {
			t.Fatalf("%v take %v together, the plan %v: %+v", w.briefs, sum, p.Time, p.Runs)
		}
	})
}

// Every run begins when the one is over that it is said to wait for, and what that sends is
// there.
func TestWhatIsWaitedForSaysWhenARunBegins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c, p := w.costs(t), drawPlan(t, w)
		if err := c.Simulate(p); err != nil {
			t.Fatal(err)
		}
		for i, r := range p.Runs {
			begins, b := units.Seconds(0), c.before(p, i)
			if b >= 0 {
				begins = p.Runs[b].End + w.between(p, b, i)
			}
			if !close(r.Start, begins) {
				t.Fatalf("runs[%d] begins at %v, and what runs[%d] leaves it is there at %v: %+v", i, r.Start, b, begins, p.Runs)
			}
		}
	})
}

func TestAccountNeedsItsLaws(t *testing.T) {
	w := proportional(t, [][]string{{"a"}}, module("x", 1, 1))
	c, p := w.costs(t), &Plan{Runs: []Run{{Layers: 1, Ranks: []int{0}, Samples: []int{1}}}}
	if err := c.Simulate(p); err != nil {
		t.Fatal(err)
	}
	w.lacks = errMissing
	if _, err := c.Account(p); !errors.Is(err, errMissing) {
		t.Error(err)
	}
}

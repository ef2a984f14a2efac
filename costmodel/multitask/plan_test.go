package multitask

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/internal/units"
)

// slowly is when the runs of a plan end, found by putting off what begins too soon until
// nothing does.
func (w *world) slowly(p *Plan) []units.Seconds {
	starts, ends := make([]units.Seconds, len(p.Runs)), make([]units.Seconds, len(p.Runs))
	for changed := true; changed; {
		changed = false
		for i := range p.Runs {
			start := units.Seconds(0)
			for j := range p.Runs[:i] {
				if wait := ends[j] + w.between(p, j, i); w.waits(p, j, i) {
					start = max(start, wait)
				}
			}
			end := start + units.Seconds(p.Runs[i].Layers)*w.layer(&p.Runs[i])
			if start != starts[i] || end != ends[i] {
				starts[i], ends[i], changed = start, end, true
			}
		}
	}
	return ends
}

// waits says whether a run waits for one before it.
func (w *world) waits(p *Plan, before, run int) bool {
	a, b := p.Runs[before], p.Runs[run]
	return a.Module == b.Module || p.Waves && a.Wave < b.Wave ||
		slices.Contains(w.tasks.Modules[b.Module].After, w.tasks.Modules[a.Module].Name) ||
		slices.ContainsFunc(a.Ranks, func(r int) bool { return slices.Contains(b.Ranks, r) })
}

// between is what is to be moved from the end of a run to the beginning of a later one: from
// the last before it of its module, and to the first of a module from the last of those that
// it needs.
func (w *world) between(p *Plan, before, run int) units.Seconds {
	a, b := &p.Runs[before], &p.Runs[run]
	other := func(module int) func(Run) bool {
		return func(r Run) bool { return r.Module == module }
	}
	if slices.ContainsFunc(p.Runs[before+1:run], other(a.Module)) {
		return 0
	}
	first := !slices.ContainsFunc(p.Runs[:run], other(b.Module))
	needed := slices.Contains(w.tasks.Modules[b.Module].After, w.tasks.Modules[a.Module].Name)
	switch {
	case a.Module == b.Module:
		return w.moved(a.Module, a, b, false)
	case needed && first:
		return w.moved(a.Module, a, b, true)
	}
	return 0
}

// layer is what a layer of a run takes.
func (w *world) layer(r *Run) units.Seconds {
	var slowest, forward units.Seconds
	for i, rank := range r.Ranks {
		t := w.times[r.Module][w.pool[rank]][r.Samples[i]]
		slowest, forward = max(slowest, t), max(forward, t/3)
	}
	if len(r.Ranks) == 1 {
		return slowest
	}
	exchange, _ := w.exchange(r.Module, r.Ranks)
	return max(slowest, forward+exchange)
}

func TestSimulateAgainstSlowReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c, p := w.costs(t), drawPlan(t, w)
		if err := c.Simulate(p); err != nil {
			t.Fatal(err)
		}
		ends, last := w.slowly(p), units.Seconds(0)
		for i, r := range p.Runs {
			if !close(r.End, ends[i]) || !close(r.End-r.Start, units.Seconds(r.Layers)*w.layer(&r)) {
				t.Fatalf("runs[%d]: from %v to %v, want the end at %v: %+v on %v", i, r.Start, r.End, ends[i], p.Runs, w.nodes)
			}
			last = max(last, r.End)
		}
		if p.Time != last {
			t.Fatalf("takes %v, and the last run ends at %v", p.Time, last)
		}
	})
}

// Two modules on a device each, 4 and 6 s side by side, and a third on both that needs both
// and takes 1 s: it waits without waves and in one wave too; in waves of their own all are
// in turn.
func TestSimulateByHand(t *testing.T) {
	w := proportional(t, [][]string{{"a", "a"}}, module("x", 2, 2), module("y", 1, 6), module("z", 1, 2, "x", "y"))
	c := w.costs(t)
	for _, x := range []struct {
		waves []int
		want  [][2]units.Seconds
	}{
		{nil, [][2]units.Seconds{{0, 4}, {0, 6}, {6, 7}}},
		{[]int{0, 0, 0}, [][2]units.Seconds{{0, 4}, {0, 6}, {6, 7}}},
		{[]int{0, 1, 2}, [][2]units.Seconds{{0, 4}, {4, 10}, {10, 11}}},
		{[]int{1, 1, 2}, [][2]units.Seconds{{0, 4}, {0, 6}, {6, 7}}},
	} {
		p := &Plan{Waves: x.waves != nil, Runs: []Run{
			{Module: 0, Layers: 2, Ranks: []int{0}, Samples: []int{2}},
			{Module: 1, Layers: 1, Ranks: []int{1}, Samples: []int{6}},
			{Module: 2, Layers: 1, Ranks: []int{0, 1}, Samples: []int{1, 1}},
		}}
		for i, wave := range x.waves {
			p.Runs[i].Wave = wave
		}
		if err := c.Simulate(p); err != nil {
			t.Fatal(err)
		}
		for i, r := range p.Runs {
			if r.Start != x.want[i][0] || r.End != x.want[i][1] {
				t.Errorf("waves %v: runs[%d] from %v to %v, want %v", x.waves, i, r.Start, r.End, x.want[i])
			}
		}
		if p.Time != x.want[2][1] {
			t.Errorf("waves %v: %v", x.waves, p.Time)
		}
	}
}

// Nothing that begins with a wave could begin later without it.
func TestWithoutWavesIsNotSlower(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c, p := w.costs(t), drawPlan(t, w)
		if err := c.Simulate(p); err != nil {
			t.Fatal(err)
		}
		free := p.Clone()
		free.Waves = false
		for i := range free.Runs {
			free.Runs[i].Wave = 0
		}
		if err := c.Simulate(free); err != nil {
			t.Fatal(err)
		}
		if free.Time > p.Time*(1+1e-12) {
			t.Fatalf("%v with waves, %v without: %+v", p.Time, free.Time, p.Runs)
		}
	})
}

// Ranks of one type on one node are alike: who is called what changes no time.
func TestRanksOfATypeOnANodeAreAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c, p := w.costs(t), drawPlan(t, w)
		if err := c.Simulate(p); err != nil {
			t.Fatal(err)
		}
		called := make([]int, c.Devices())
		for _, pool := range c.Pools {
			for _, node := range pool.Ranks {
				for i, r := range rapid.Permutation(node).Draw(t, "names") {
					called[node[i]] = r
				}
			}
		}
		q := p.Clone()
		for i, r := range p.Runs {
			shares := map[int]int{}
			q.Runs[i].Ranks, q.Runs[i].Samples = nil, nil
			for k, rank := range r.Ranks {
				shares[called[rank]] = r.Samples[k]
				q.Runs[i].Ranks = append(q.Runs[i].Ranks, called[rank])
			}
			slices.Sort(q.Runs[i].Ranks)
			for _, rank := range q.Runs[i].Ranks {
				q.Runs[i].Samples = append(q.Runs[i].Samples, shares[rank])
			}
		}
		if err := c.Simulate(q); err != nil {
			t.Fatal(err)
		}
		for i := range p.Runs {
			if !close(p.Runs[i].End, q.Runs[i].End) {
				t.Fatalf("runs[%d] ends at %v, by other names at %v: %+v, %+v on %v", i, p.Runs[i].End, q.Runs[i].End, p.Runs, q.Runs, w.nodes)
			}
		}
	})
}

// Devices that take less, faster links and fewer bytes make no plan slower.
func TestFasterPricesMakeNoPlanSlower(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		p := drawPlan(t, w)
		if err := w.costs(t).Simulate(p); err != nil {
			t.Fatal(err)
		}
		for m := range w.times {
			for _, of := range w.times[m] {
				faster := units.Seconds(rapid.IntRange(1, 4).Draw(t, "faster"))
				for k := range of {
					of[k] /= faster
				}
			}
			w.gradients[m] /= units.Seconds(rapid.IntRange(1, 4).Draw(t, "faster links"))
			w.bytes[m] /= units.Bytes(rapid.IntRange(1, 4).Draw(t, "fewer bytes"))
		}
		q := p.Clone()
		if err := w.costs(t).Simulate(q); err != nil {
			t.Fatal(err)
		}
		for i := range p.Runs {
			if q.Runs[i].End > p.Runs[i].End*(1+1e-12) {
				t.Fatalf("runs[%d] ends at %v, by faster prices at %v: %+v", i, p.Runs[i].End, q.Runs[i].End, p.Runs)
			}
		}
	})
}

func TestSimulateNamesTheRunThatCannotBe(t *testing.T) {
	w := proportional(t, [][]string{{"a", "a"}}, module("x", 2, 4), module("y", 1, 3, "x"))
	for want, damage := range map[string]func(*Plan){
		"runs[0].module: -1: want 0 to 1":                                         func(p *Plan) { p.Runs[0].Module = -1 },
		"runs[2].module: 2: want 0 to 1":                                          func(p *Plan) { p.Runs[2].Module = 2 },
		"runs[0].layers: 0 of x: want 1 to 2":                                     func(p *Plan) { p.Runs[0].Layers = 0 },
		"runs[1].layers: 2 of x: want 1 to 1, which no run before has":            func(p *Plan) { p.Runs[1].Layers = 2 },
		"runs[1].module: y begins before the last 1 layers of x, which it needs":  func(p *Plan) { p.Runs[1], p.Runs[2] = p.Runs[2], p.Runs[1] },
		"runs: 1 of the 1 layers of y are in none":                                func(p *Plan) { p.Runs = p.Runs[:2] },
		"runs[1].wave: 2 after 0: want the same or the next":                      func(p *Plan) { p.Waves, p.Runs[1].Wave = true, 2 },
		"runs[2].wave: 0 after 1":                                                 func(p *Plan) { p.Waves, p.Runs[1].Wave = true, 1 },
		"runs[2].wave: 1 after 0: want the same or the next, and 0 in a plan wit": func(p *Plan) { p.Runs[2].Wave = 1 },
		"runs[0].samples: of 0 ranks, and ranks has 0":                            func(p *Plan) { p.Runs[0].Ranks, p.Runs[0].Samples = nil, nil },
		"runs[0].samples: of 1 ranks, and ranks has 2":                            func(p *Plan) { p.Runs[0].Samples = []int{4} },
		"runs[0].ranks[1]: 2: want rising ranks of 0 to 1":                        func(p *Plan) { p.Runs[0].Ranks = []int{0, 2} },
		"runs[0].ranks[0]: -1: want":                                              func(p *Plan) { p.Runs[0].Ranks = []int{-1, 1} },
		"runs[0].ranks[1]: 1: want":                                               func(p *Plan) { p.Runs[0].Ranks = []int{1, 1} },
		"runs[0].ranks[1]: 0: want":                                               func(p *Plan) { p.Runs[0].Ranks = []int{1, 0} },
		"runs[0].samples[1]: 0: want 1 to batch_samples, 4":                       func(p *Plan) { p.Runs[0].Samples = []int{4, 0} },
		"runs[0].samples[0]: 5: want 1 to batch_samples, 4":                       func(p *Plan) { p.Runs[0].Samples = []int{5, -1} },
		"runs[0].samples: 5 together: want batch_samples of x, 4":                 func(p *Plan) { p.Runs[0].Samples = []int{2, 3} },
	} {
		p := &Plan{Runs: []Run{
			{Module: 0, Layers: 1, Ranks: []int{0, 1}, Samples: []int{2, 2}},
			{Module: 0, Layers: 1, Ranks: []int{0}, Samples: []int{4}},
			{Module: 1, Layers: 1, Ranks: []int{0, 1}, Samples: []int{2, 1}},
		}}
		if err := w.costs(t).Simulate(p); err != nil {
			t.Fatal(err)
		}
		damage(p)
		if err := w.costs(t).Simulate(p); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// A copy may be run anew without a change to the plan that it is of.
func TestClonesAreApart(t *testing.T) {
	p := &Plan{Waves: true, Time: 3, Runs: []Run{{Layers: 1, Ranks: []int{0}, Samples: []int{1}, Wave: 0, End: 3}}}
	q := p.Clone()
	if got, want := fmt.Sprintf("%+v", *q), fmt.Sprintf("%+v", *p); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	q.Runs[0].End, q.Time = 4, 4
	if p.Runs[0].End != 3 || p.Time != 3 {
		t.Errorf("%+v", *p)
	}
}

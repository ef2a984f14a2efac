package multitask

import (
	"cmp"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Of six samples rank 0 has three and rank 2 as many; the next run has four on rank 1. Two of
// every three samples of six go to the first of two, and the others to the second.
func TestMessagesByHand(t *testing.T) {
	tasks := &Tasks{Modules: []Module{module("m", 2, 6), module("n", 1, 4, "m"), module("o", 1, 2, "n", "m")}}
	p := &Plan{Runs: []Run{
		{Module: 0, Layers: 1, Ranks: []int{0, 2}, Samples: []int{3, 3}},
		{Module: 0, Layers: 1, Ranks: []int{1, 2}, Samples: []int{4, 2}},
		{Module: 1, Layers: 1, Ranks: []int{0, 1, 3}, Samples: []int{1, 1, 2}}, // m's samples 0 and 1, 2, 3 to 5
		{Module: 2, Layers: 1, Ranks: []int{1, 2}, Samples: []int{1, 1}},
	}}
	want := []Message{
		{0, 1, 0, 1, 3},
		{0, 1, 2, 1, 1},
		{1, 2, 1, 0, 2},
		{1, 2, 1, 3, 1},
		{1, 2, 2, 3, 2},
		{1, 3, 1, 2, 1}, // m's fourth sample is in the second half
		{2, 3, 0, 1, 1},
		{2, 3, 3, 2, 2},
	}
	if diff := gocmp.Diff(want, p.Messages(tasks)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Every sample goes once from who has it to who has it next, for every module that needs it; no
// two ranks have two messages of the same runs.
func TestMessagesAreTheSamplesThatDoNotStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		p := drawPlan(t, w)
		holder := func(run *Run, sample int) int {
			for i, n := range run.Samples {
				if sample < n {
					return run.Ranks[i]
				}
				sample -= n
			}
			t.Fatalf("no rank of %+v has sample %d", run, sample)
			return 0
		}
		want := map[Message]int{}
		for j := range p.Runs {
			to := &p.Runs[j]
			needs := func(i int) bool { return p.Runs[i].Module == to.Module } // the nearest one
			of := []func(int) bool{needs}
			if !slices.ContainsFunc(p.Runs[:j], func(r Run) bool { return r.Module == to.Module }) {
				of = nil
				for _, m := range w.tasks.Needs()[to.Module] {
					of = append(of, func(i int) bool { return p.Runs[i].Module == m })
				}
			}
			for _, is := range of {
				i := j - 1
				for !is(i) {
					i--
				}
				n, m := w.tasks.Modules[p.Runs[i].Module].Batch, w.tasks.Modules[to.Module].Batch
				for a := range n {
					if x, y := holder(&p.Runs[i], a), holder(to, int(float64(a)*float64(m)/float64(n)+1e-9)); x != y {
						want[Message{Source: i, Target: j, From: x, To: y}]++
					}
				}
			}
		}
		got := p.Messages(w.tasks)
		for _, m := range got {
			n := m.Samples
			if m.Samples = 0; want[m] != n || n == 0 {
				t.Errorf("%+v: %d samples, want %d", m, n, want[m])
			}
			delete(want, m)
		}
		if len(want) > 0 {
			t.Errorf("%+v: missing", want)
		}
		if !slices.IsSortedFunc(got, func(a, b Message) int { return cmp.Or(a.Source-b.Source, a.Target-b.Target) }) {
			t.Errorf("%+v: not in order", got)
		}
	})
}

// What a replay sends in bytes is what samples weigh: all that there are, to ranks that had none.
func TestBytesOfAMovedBatch(t *testing.T) {
	c, _, _ := onGPUs(t, "2x4 h100_sxm", Options{}, clip(4, 12))
	p := &Plan{Runs: []Run{
		{Layers: 1, Ranks: []int{0, 1, 2}, Samples: []int{5, 4, 3}},
		{Layers: 1, Ranks: []int{3, 4}, Samples: []int{6, 6}},
		{Layers: 2, Ranks: []int{0, 6, 7}, Samples: []int{1, 1, 10}},
	}}
	var bytes units.Bytes
	for _, m := range p.Messages(c.Tasks) {
		bytes += c.from.result(0, false) * units.Bytes(m.Samples)
	}
	if want := units.Bytes(2 * 12 * 257 * 1024 * 2); bytes != want {
		t.Errorf("%v, want %v", bytes, want)
	}
}

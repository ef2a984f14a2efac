package pipeline

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// mustReplay predicts a replay of a plan, and checks what holds of any.
func mustReplay(t testing.TB, c *Costs, p *Plan, of Replay) *costmodel.Replayed {
	t.Helper()
	r, err := c.Replayed(p, of)
	if err != nil {
		t.Fatalf("%v of %+v", err, p)
	}
	ends, compute := make([]units.Seconds, c.Devices()), make([]units.Seconds, c.Devices())
	seen := map[costmodel.ReplayKey]bool{}
	for i, k := range r.Tasks {
		if seen[k.ReplayKey] || k.Start < ends[k.Rank]*(1-1e-12) || k.Time < 0 || i > 0 && r.Tasks[i-1].Rank > k.Rank {
			t.Fatalf("task %d, %+v: there before, or begins before %v", i, k, ends[k.Rank])
		}
		seen[k.ReplayKey], ends[k.Rank] = true, k.Start+k.Time
		if !k.Op.Waits() {
			compute[k.Rank] += k.Time
		}
	}
	var last units.Seconds
	for s, x := range p.Stages {
		for _, rank := range x.Ranks {
			sum := r.Ranks[rank]
			if !near(sum.Compute+sum.Exposed+sum.Skew, sum.End) || !near(sum.Compute, compute[rank]) || sum.End < ends[rank]*(1-1e-12) || sum.End != r.Ranks[x.Ranks[0]].End || sum.Compute <= 0 {
				t.Errorf("stage %d, rank %d: %+v, its tasks compute for %v until %v", s, rank, sum, compute[rank], ends[rank])
			}
			last = max(last, sum.End)
		}
	}
	if r.Step.Mid != last || r.Meeting != last || !(r.Step.Lo < last && last < r.Step.Hi) {
		t.Errorf("%+v, meeting %v; the last rank is done at %v", r.Step, r.Meeting, last)
	}
	return r
}

// slowlyReplayed is when a replay's passes begin and end, in the way of slowly.
func slowlyReplayed(t testing.TB, c *Costs, p *Plan, what Replay) (passes [][]*costmodel.Replayed, ops [][]Op) {
	t.Helper()
	layer := 0
	for s, x := range p.Stages {
		var of []*costmodel.Replayed
		for _, o := range p.Orders[s] {
			w := costmodel.ChunkReplay{Layers: x.Layers, Back: o.Backward, Loss: what.Loss && !o.Backward && s+1 == len(p.Stages)}
			if o.Backward {
				w.Again = p.Recompute[s][o.Chunk]
			}
			if what.Took != nil {
				w.Took = func(k costmodel.ReplayKey) (units.Seconds, bool) {
					k.Rank, k.Layer, k.Micro = x.Ranks[k.Rank], k.Layer+layer, o.Chunk
					return what.Took(k)
				}
			}
			pass, err := c.from.replayed(x.Ranks, c.priced(&p.Chunks[o.Chunk]), w)
			if err != nil {
				t.Fatal(err)
			}
			of = append(of, pass)
		}
		passes, ops, layer = append(passes, of), append(ops, slices.Clone(p.Orders[s])), layer+x.Layers
	}
	for changed := true; changed; {
		changed = false
		for s := range ops {
			for i := range ops[s] {
				o := &ops[s][i]
				begin := units.Seconds(0)
				if i > 0 {
					begin = ops[s][i-1].End
				}
				for _, need := range neededBy(p, s, o.Chunk, o.Backward) {
					j := slices.IndexFunc(ops[need[0]], func(x Op) bool { return x.Chunk == need[1] && x.Backward == (need[2] == 1) })
					there := ops[need[0]][j].End
					if need[0] != s {
						there += c.Send(p.Stages[min(s, need[0])].Ranks, p.Stages[max(s, need[0])].Ranks, c.Tokens(p.Chunks[o.Chunk]))
					}
					begin = max(begin, there)
				}
				if end := begin + passes[s][i].Step.Mid; begin != o.Start || end != o.End {
					o.Start, o.End, changed = begin, end, true
				}
			}
		}
	}
	return passes, ops
}

// Every rank's tasks are those of its stage's passes, each where the slow simulator has it,
// and before it a wait exactly where the stage stands still.
func TestReplayedAgreesWithASlowSimulator(t *testing.T) {
	waits, again := 0, 0
	for seed := range uint64(250) {
		r := rand.New(rand.NewPCG(seed, 11))
		c := costsOf(t, drawnLengths(r, 7), 1+r.IntN(9), 1+r.IntN(20), &made{salt: seed})
		p := drawnPlan(r, c)
		of := Replay{Loss: seed%3 > 0}
		if seed%2 > 0 {
			other := &made{salt: seed + 1000}
			of.Took = func(k costmodel.ReplayKey) (units.Seconds, bool) {
				return units.Seconds(other.draw(string(k.Op)+k.Dir, 50)+float64(k.Rank+7*k.Micro+3*k.Layer)) * 1e-6, !k.Again
			}
		}
		got := mustReplay(t, c, p, of)
		passes, ops := slowlyReplayed(t, c, p, of)
		want := map[int][]costmodel.ReplayTask{}
		exposed, sums, layer := map[int]units.Seconds{}, make([]costmodel.Estimate, len(p.Stages)), 0
		for s, x := range p.Stages {
			at := units.Seconds(0)
			for i, o := range ops[s] {
				sums[s] = sums[s].Plus(passes[s][i].Step)
				for j, rank := range x.Ranks {
					exposed[rank] += passes[s][i].Ranks[j].Exposed
				}
				if o.Start > at {
					waits++
					key := costmodel.ReplayKey{Micro: o.Chunk, Layer: layer, Dir: costmodel.ForwardPass, Op: costmodel.StageWait}
					from := s - 1
					if o.Backward {
						key.Layer, key.Dir, from = layer+x.Layers-1, costmodel.BackwardPass, s+1
					}
					send := c.Send(p.Stages[min(s, from)].Ranks, p.Stages[max(s, from)].Ranks, c.Tokens(p.Chunks[o.Chunk]))
					for _, rank := range x.Ranks {
						key.Rank = rank
						exposed[rank] += min(o.Start-at, send)
						want[rank] = append(want[rank], costmodel.ReplayTask{ReplayKey: key, Start: at, Time: o.Start - at})
					}
				}
				for _, task := range passes[s][i].Tasks {
					if task.Again {
						again++
					}
					task.Rank, task.Micro, task.Layer, task.Start = x.Ranks[task.Rank], o.Chunk, task.Layer+layer, task.Start+o.Start
					want[task.Rank] = append(want[task.Rank], task)
				}
				at = o.End
			}
			layer += x.Layers
		}
		tasks := map[int][]costmodel.ReplayTask{}
		for _, task := range got.Tasks {
			tasks[task.Rank] = append(tasks[task.Rank], task)
		}
		for rank := range c.Devices() {
			slices.SortStableFunc(want[rank], func(a, b costmodel.ReplayTask) int { return cmp.Compare(a.Start, b.Start) })
			if len(tasks[rank]) != len(want[rank]) || !near(got.Ranks[rank].Exposed, exposed[rank]) {
				t.Fatalf("seed %d, rank %d: %d tasks, exposed %v; want %d and %v", seed, rank, len(tasks[rank]), got.Ranks[rank].Exposed, len(want[rank]), exposed[rank])
			}
			for i, w := range want[rank] {
				if g := tasks[rank][i]; g.ReplayKey != w.ReplayKey || !near(g.Start, w.Start) || !near(g.Time, w.Time) {
					t.Fatalf("seed %d: %+v, want %+v", seed, g, w)
				}
			}
		}
		busiest := slices.MaxFunc(sums, func(a, b costmodel.Estimate) int { return cmp.Compare(a.Mid, b.Mid) })
		by := got.Step.Mid / busiest.Mid
		source := costmodel.Interpolated
		if slices.ContainsFunc(p.Chunks, func(x Chunk) bool { return x.Context > 0 }) {
			source = costmodel.Extrapolated
		}
		if !near(got.Step.Lo, by*busiest.Lo) || !near(got.Step.Hi, by*busiest.Hi) || got.Step.Source != source {
			t.Errorf("seed %d: %+v; the busiest stage %+v", seed, got.Step, busiest)
		}
	}
	if waits < 500 || again < 500 {
		t.Errorf("%d waits, %d tasks of layers that are run again", waits, again)
	}
}

// What is computed faster, anywhere, makes nothing later.
func TestAFasterStretchMakesNothingLater(t *testing.T) {
	sooner := 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 12))
		c := costsOf(t, drawnLengths(r, 6), 2+r.IntN(6), 6, &made{salt: seed})
		p := drawnPlan(r, c)
		before := mustReplay(t, c, p, Replay{})
		computing := slices.DeleteFunc(slices.Clone(before.Tasks), func(k costmodel.ReplayTask) bool { return k.Op.Waits() })
		which := computing[r.IntN(len(computing))]
		after := mustReplay(t, c, p, Replay{Took: func(k costmodel.ReplayKey) (units.Seconds, bool) { return which.Time / 10, k == which.ReplayKey }})
		ends := map[costmodel.ReplayKey]units.Seconds{}
		for _, k := range before.Tasks {
			ends[k.ReplayKey] = k.Start + k.Time
		}
		for _, k := range after.Tasks {
			if was, ok := ends[k.ReplayKey]; ok && k.Start+k.Time > was*(1+1e-12) {
				t.Errorf("seed %d: %+v ends at %v, before at %v", seed, k, k.Start+k.Time, was)
			}
		}
		if after.Step.Mid < before.Step.Mid {
			sooner++
		}
	}
	if sooner < 20 {
		t.Errorf("a faster stretch makes %d steps shorter", sooner)
	}
}

// Passes that are alike are predicted once by the laws, and each where times are supposed.
func TestReplayedPassesAreAskedForOnce(t *testing.T) {
	m := &made{asked: map[string]int{}}
	c := costsOf(t, slices.Repeat([]units.Tokens{100}, 30), 8, 8, m)
	p := f1b(8, 30)
	p.Recompute[3][7] = 1
	by := mustReplay(t, c, p, Replay{})
	if m.asked["replayed"] != 3 {
		t.Errorf("%d predictions, want one of a forward pass and two of backward ones", m.asked["replayed"])
	}
	same := mustReplay(t, c, p, Replay{Took: func(costmodel.ReplayKey) (units.Seconds, bool) { return 0, false }})
	if m.asked["replayed"] != 3+2*8*30 || same.Step != by.Step {
		t.Errorf("%d predictions, %v and %v", m.asked["replayed"], same.Step, by.Step)
	}
	if p.Time != 0 || p.Orders[0][0].End != 0 {
		t.Error("the plan was changed")
	}
}

// bare are laws of a training step that has no loss, and ends with its last pass.
type bare struct{ *laws }

func (b bare) work(ranks []int, x costmodel.Chunk) (Work, error) {
	w, err := b.laws.work(ranks, x)
	w.Loss = 0
	return w, err
}

func (bare) finish([]int, int, bool, bool) (Finish, error) { return Finish{}, nil }

func (bare) tied(first, last []int) (units.Seconds, error) { return 0, nil }

// On stages of equal ranks with equal shares a replay takes what the plan's simulation says,
// but for loss and finish, where every chunk is one call of attention, or two.
func TestReplayedTakesWhatSimulateSays(t *testing.T) {
	w := onGPUs(t, "2x8 h100_sxm")
	for _, stages := range [][]Stage{
		{{[]int{0}, 4}},
		{{upTo(0, 8), 4}},
		{{upTo(0, 8), 3}, {upTo(8, 16), 1}},
		{{upTo(0, 4), 2}, {upTo(4, 8), 1}, {upTo(8, 16), 1}},
	} {
		of := w.costs(32768, 4096)
		c, err := newCosts(of.Lengths, of.Layers, of.ranks, bare{of.from.(*laws)})
		if err != nil {
			t.Fatal(err)
		}
		p := &Plan{Stages: stages, Chunks: []Chunk{{Slice: 16384}, {Sequence: -1, Whole: []int{1}}, {Context: 16384, Slice: 8192}, {Context: 24576, Slice: 8192}}}
		for _, x := range stages {
			p.Recompute = append(p.Recompute, []int{x.Layers, 0, 1, 0})
			p.Orders = append(p.Orders, []Op{{Chunk: 0}, {Chunk: 1}, {Chunk: 2}, {Chunk: 1, Backward: true}, {Chunk: 3}, {Chunk: 3, Backward: true}, {Chunk: 2, Backward: true}, {Chunk: 0, Backward: true}})
		}
		if err := c.Simulate(p); err != nil {
			t.Fatal(err)
		}
		if r := mustReplay(t, c, p, Replay{}); !near(r.Step.Mid, p.Time) {
			t.Errorf("%d stages: %v, simulated %v", len(stages), r.Step.Mid, p.Time)
		}
	}
}

// A stage of one device takes its passes one after the other.
func TestAReplayOnOneDeviceIsTheSumOfItsPasses(t *testing.T) {
	w := onGPUs(t, "1x1 h100_sxm")
	c := w.costs(9000, 4000, 300)
	p := &Plan{
		Stages: []Stage{{[]int{0}, 4}}, Chunks: []Chunk{{Slice: 5000, Whole: []int{2, 1}}, {Context: 5000, Slice: 4000}}, Recompute: [][]int{{3, 0}},
		Orders: [][]Op{{{Chunk: 0}, {Chunk: 1}, {Chunk: 1, Backward: true}, {Chunk: 0, Backward: true}}},
	}
	k, err := costmodel.NewPacker(w.q, w.job)
	if err != nil {
		t.Fatal(err)
	}
	var sum units.Seconds
	for i, x := range []costmodel.Chunk{{Slice: 5000, More: true, Whole: []costmodel.Documents{{Tokens: 300, Count: 1}, {Tokens: 4000, Count: 1}}}, {Context: 5000, Slice: 4000}} {
		for _, of := range []costmodel.ChunkReplay{{Layers: 4}, {Layers: 4, Back: true, Again: p.Recompute[0][i]}} {
			pass, err := k.ReplayedChunk(costmodel.Group{{Rank: 0, QHeads: 32}}, []float64{1}, x, of)
			if err != nil {
				t.Fatal(err)
			}
			sum += pass.Step.Mid
		}
	}
	r := mustReplay(t, c, p, Replay{})
	if !near(r.Step.Mid, sum) || !near(r.Ranks[0].Compute, sum) || r.Ranks[0].Exposed != 0 {
		t.Errorf("%v, %+v; its passes take %v", r.Step.Mid, r.Ranks[0], sum)
	}
}

func TestReplayedSaysWhyNot(t *testing.T) {
	c := costsOf(t, []units.Tokens{10, 20}, 2, 2, &made{})
	p := f1b(2, 2)
	p.Orders[0] = []Op{{Chunk: 0}, {Chunk: 0, Backward: true}, {Chunk: 1}, {Chunk: 1, Backward: true}}
	p.Orders[1] = []Op{{Chunk: 0}, {Chunk: 1}, {Chunk: 0, Backward: true}, {Chunk: 1, Backward: true}}
	says := func(c *Costs, p *Plan, want string) {
		t.Helper()
		if _, err := c.Replayed(p, Replay{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	says(c, p, "stages wait for each other: stage 0 for chunk 0")
	p.Stages[1].Layers = 2
	says(c, p, "stages[1].layers: 2: want 1 to 1")
	for _, what := range []string{"send", "replayed"} {
		lacking := costsOf(t, []units.Tokens{10, 20}, 2, 2, &made{lacks: what})
		if _, err := lacking.Replayed(f1b(2, 2), Replay{}); !errors.Is(err, errLacks) {
			t.Errorf("%s: %v", what, err)
		}
	}
	m := Published{Devices: 2, PerNode: 8, Layers: 2, Token: 1e-6}
	published, err := m.Costs([]units.Tokens{10, 20})
	if err != nil {
		t.Fatal(err)
	}
	says(published, f1b(2, 2), "stages[0], chunks[0]: a published cost model has no laws")
	w := onGPUs(t, "1x8 h100_sxm")
	uneven := &Plan{Stages: []Stage{{upTo(0, 3), 4}}, Chunks: []Chunk{{Slice: 10}}, Recompute: [][]int{{0}}, Orders: [][]Op{{{Chunk: 0}, {Chunk: 0, Backward: true}}}}
	says(w.costs(10), uneven, "stages[0]: a stage of 3 devices: the model's 32 query heads")
}

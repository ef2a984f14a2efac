package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
)

// eightLayers is a model of eight layers that a few devices hold.
func eightLayers() costmodel.Model {
	m := reference.Llama(8)
	m.Hidden, m.FFN, m.QHeads, m.KVHeads, m.HeadDim, m.Vocab = 2048, 5632, 16, 8, 128, 32000
	return m
}

// lawful prices a batch by the reference laws, with exchanges hidden as far as can be.
func lawful(t testing.TB, m costmodel.Model, cluster string, zero costmodel.ZeRO, lengths []units.Tokens) *Problem {
	t.Helper()
	profile, job := reference.Job(t, m, cluster, 1024)
	job.OverlapZero, job.Zero = true, zero
	c, err := pipeline.FromLaws(costmodel.NewPredictor(profile), job, lengths)
	if err != nil {
		t.Fatal(err)
	}
	return &Problem{Costs: c}
}

// skewed draws lengths most of which are short.
func skewed(r *rand.Rand, n int, longest units.Tokens) []units.Tokens {
	lengths := make([]units.Tokens, n)
	for i := range lengths {
		lengths[i] = 64 * (1 + units.Tokens(float64(longest/64-1)*r.Float64()*r.Float64()*r.Float64()))
	}
	return lengths
}

// randomProblem is a batch on a few devices, by laws or by published prices with some memory.
func randomProblem(t testing.TB, r *rand.Rand) (*Problem, string) {
	t.Helper()
	lengths := skewed(r, 1+r.IntN(40), 32768)
	if r.IntN(3) == 0 {
		m := published(8, 0)
		m.PerNode, m.Layers, m.Each = 4, 8, 1e-4
		m.StateBytes = 0
		m.Capacity = units.BytesOf(m.TokenBytes * float64(slices.Max(lengths)) / 8 * (0.3 + 4*r.Float64()))
		c, err := m.Costs(lengths)
		if err != nil {
			t.Fatal(err)
		}
		return &Problem{Costs: c}, fmt.Sprintf("published, %v", m.Capacity)
	}
	clusters := []string{"1x4 h100_sxm", "1x4 h100_sxm + 1x4 a100_sxm", "2x2 a100_sxm", "1x2 h100_sxm + 1x4 rtx_pro_6000_server + 1x2 a100_sxm", "1x(2 h100_sxm + 2 a100_sxm)"}
	cluster := clusters[r.IntN(len(clusters))]
	zero := []costmodel.ZeRO{costmodel.Zero0, costmodel.Zero1, costmodel.Zero2, costmodel.Zero3}[r.IntN(4)]
	m := eightLayers()
	m.TiedEmbeddings = r.IntN(2) == 0
	return lawful(t, m, cluster, zero, lengths), fmt.Sprintf("%s, %s, tied %v", cluster, zero, m.TiedEmbeddings)
}

// Ours is no slower than any other plan, no plan is below the bound, and all are ones.
func TestNoPlanIsFasterThanOursOrTheBound(t *testing.T) {
	for seed := range uint64(16) {
		p, name := randomProblem(t, rand.New(rand.NewPCG(seed, 1)))
		bound := Bound(p)
		ours, why := p.of(t.Context(), Evenkeel{})
		for _, s := range Strategies() {
			plan, err := p.of(t.Context(), s)
			if err != nil {
				continue
			}
			if found := Check(p.Costs, plan); len(found) > 0 {
				t.Errorf("seed %d, %s: %s: %v", seed, name, s.Name(), found[0])
			}
			if err := p.Room(plan); err != nil {
				t.Errorf("seed %d, %s: %s: %v", seed, name, s.Name(), err)
			}
			if plan.Time < bound*(1-1e-9) {
				t.Errorf("seed %d, %s: %s takes %v, less than the bound, %v", seed, name, s.Name(), plan.Time, bound)
			}
			if ours == nil || ours.Time > plan.Time*(1+1e-9) {
				t.Errorf("seed %d, %s: %s takes %v, ours %v (%v)", seed, name, s.Name(), plan.Time, ours, why)
			}
		}
	}
}

// Unequal GPUs are what ours is for: all are busy for about as long.
func TestUnequalStagesForUnequalGPUs(t *testing.T) {
	p := lawful(t, eightLayers(), "1x4 h100_sxm + 1x4 a100_sxm", costmodel.Zero3, skewed(rand.New(rand.NewPCG(4, 2)), 60, 65536))
	theirs, err := p.of(t.Context(), InfiniPipe{})
	if err != nil {
		t.Fatal(err)
	}
	ours, err := p.of(t.Context(), Evenkeel{})
	if err != nil {
		t.Fatal(err)
	}
	layers := map[string]int{}
	for _, s := range ours.Stages {
		for _, r := range s.Ranks {
			if p.Device(r) != p.Device(s.Ranks[0]) {
				t.Errorf("stage %v has several types", s)
			}
		}
		layers[p.Device(s.Ranks[0])] += s.Layers
	}
	if len(layers) < 2 || theirs.Time < 1.3*ours.Time {
		t.Errorf("layers by type %v, %v: InfiniPipe takes %v: want both types in use and 1.3 times as fast", layers, ours.Time, theirs.Time)
	}
}

// Stages are of one type each, in nodes or of whole ones, the types in either direction, each in
// use or left out; what is left over is left out, and so are more stages than were asked for.
func TestUnequalShapes(t *testing.T) {
	p := lawful(t, eightLayers(), "2x4 h100_sxm + 1x3 a100_sxm", costmodel.Zero3, []units.Tokens{4096, 512})
	sizes := map[string]bool{}
	for _, x := range p.unequalShapes(true) {
		name := ""
		for _, s := range x {
			if p.Fits(s.Ranks) != nil || slices.ContainsFunc(s.Ranks, func(r int) bool { return p.Device(r) != p.Device(s.Ranks[0]) }) {
				t.Errorf("%v", x)
			}
			name += fmt.Sprintf("%s%d ", p.Device(s.Ranks[0])[:1], len(s.Ranks))
		}
		if sizes[name] {
			t.Errorf("%s twice", name)
		}
		sizes[name] = true
	}
	for _, want := range []string{"h4 h4 ", "h8 ", "a1 a1 a1 ", "a2 ", "h8 a2 ", "a2 h8 ", "h2 h2 h2 h2 a1 a1 a1 ", "a1 a1 a1 h4 h4 "} {
		if !sizes[want] {
			t.Errorf("no %q among %d", want, len(sizes))
		}
	}
	p.Stages = 3
	for _, x := range p.unequalShapes(true) {
		if len(x) != 3 {
			t.Errorf("%d stages", len(x))
		}
	}
	if got := p.speediest([][]pipeline.Stage{{{Ranks: []int{8}}}, {{Ranks: []int{0, 1, 2, 3}}}, {{Ranks: []int{0}}}}, 2); len(got) != 2 || len(got[0][0].Ranks) != 4 || got[1][0].Ranks[0] != 0 {
		t.Errorf("%v: want the fastest first", got)
	}
}

// A stage has no more layers than its devices have room for, however fast they are.
func TestNoMoreLayersThanThereIsRoomFor(t *testing.T) {
	m := reference.Llama(16)
	m.Hidden, m.FFN, m.QHeads, m.KVHeads, m.HeadDim = 8192, 28672, 64, 8, 128
	p := lawful(t, m, "1x2 h100_sxm + 1x2 a100_sxm", costmodel.Zero3, []units.Tokens{2048, 1024, 512, 512})
	x := newDispatcher(p)
	d := p.drafted(x, []pipeline.Stage{{Ranks: []int{0, 1}}, {Ranks: []int{2, 3}}}, p.packed(4096))
	whole := x.plan(d) // without room there is none
	if whole == nil || p.Room(whole) != nil {
		t.Fatalf("no plan of %+v", d.stages)
	}
	for s := range d.stages {
		most := x.mostLayers(d, s)
		plan := whole.Clone()
		everything(plan)
		for n, fits := range map[int]bool{most: true, most + 1: false} {
			plan.Stages[s].Layers = n
			for k := range plan.Recompute[s] {
				plan.Recompute[s][k] = n
			}
			if m := p.StageMemory(plan, s); m.Peak() <= m.Capacity != fits && (fits || most < p.Layers) {
				t.Errorf("stage %d of %d: %d layers take %v of %v, and at most %d were said to have room", s, len(d.stages), n, m.Peak(), m.Capacity, most)
			}
		}
	}
}

// The same problem gives the same plan, to the byte.
func TestOursRepeats(t *testing.T) {
	var plans [2][]byte
	for i := range plans {
		p, _ := randomProblem(t, rand.New(rand.NewPCG(3, 1)))
		plan, err := p.of(t.Context(), Evenkeel{})
		if err != nil {
			t.Fatal(err)
		}
		if plans[i], err = json.Marshal(plan); err != nil {
			t.Fatal(err)
		}
	}
	if string(plans[0]) != string(plans[1]) {
		t.Error("two plans of one problem differ")
	}
}

// A change leaves a draft whole: every token is in one chunk, and slices are in order.
func TestChangesKeepADraftWhole(t *testing.T) {
	changed := map[string]int{}
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 7))
		model := eightLayers()
		model.TiedEmbeddings = seed > 2
		p := lawful(t, model, "1x4 h100_sxm + 1x4 a100_sxm", costmodel.Zero3, skewed(r, 30, 32768))
		if seed%2 == 1 { // with room for little more than the longest sequence
			lengths := skewed(r, 30, 32768)
			m := published(8, 0)
			m.PerNode, m.Layers, m.Each, m.StateBytes = 4, 8, 1e-4, 0
			if seed == 3 {
				m.LogitBytes *= 40 // what the loss takes decides
			}
			m.Capacity = units.BytesOf((m.TokenBytes*0.6 + m.LogitBytes) * float64(slices.Max(lengths)) / 4)
			stages := 0
			if seed == 1 { // those before the last may run ahead
				m.Capacity, stages = 2*m.Capacity, 4
			}
			p = batchOf(t, m, lengths...)
			p.Stages = stages
		}
		drafts := p.begin(t.Context(), turn{effort: 1})
		if len(drafts) == 0 {
			t.Fatal("nothing to begin with")
		}
		x := newDispatcher(p)
		y := &annealing{p: p, x: x, rand: r, d: drafts[0]}
		for range 400 {
			before := len(y.d.items)
			now := y.change()
			if now == nil {
				continue
			}
			switch n := len(now.items) - before; {
			case n > 0:
				changed["split"]++
			case n < 0:
				changed["removed"]++
			default:
				changed["other"]++
			}
			plan := x.plan(now)
			if plan == nil {
				continue // no room
			}
			time := x.run(now, false)
			if err := p.Simulate(plan); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if diff := float64(plan.Time) - time; diff > 1e-9*time || diff < -1e-9*time {
				t.Fatalf("seed %d: the simulator has %v, the search %v", seed, plan.Time, time)
			}
			if err := p.Room(plan); err != nil {
				t.Fatalf("seed %d: what has room in the search has none: %v", seed, err)
			}
			y.d = now
		}
	}
	if changed["split"] == 0 || changed["removed"] == 0 || changed["other"] == 0 {
		t.Errorf("changes %v: want some of each kind", changed)
	}
}

// The draft of a plan has its chunks, and what a search makes of it is no slower.
func TestDraftOfAPlan(t *testing.T) {
	p := lawful(t, eightLayers(), "1x4 h100_sxm + 1x4 a100_sxm", costmodel.Zero3, skewed(rand.New(rand.NewPCG(8, 2)), 50, 65536))
	plan, err := p.of(t.Context(), InfiniPipe{})
	if err != nil {
		t.Fatal(err)
	}
	d := p.draftOf(plan)
	if len(d.items) != len(plan.Chunks) {
		t.Fatalf("%d items of %d chunks", len(d.items), len(plan.Chunks))
	}
	x := newDispatcher(p)
	x.settle(d)
	before := x.run(d, false)
	better, err := p.improved(t.Context(), d, turn{effort: 1})
	if err != nil || better == nil || float64(better.Time) > before*(1+1e-9) {
		t.Errorf("%v (%v) after %v", better, err, before)
	}
}

// What is computed again is lowered only as far as there is room.
func TestRelax(t *testing.T) {
	m := published(32, 40)
	c, err := m.Costs(drawn(t, 512, 196608, "21fce043008c47f5"))
	if err != nil {
		t.Fatal(err)
	}
	p := &Problem{Costs: c, Stages: 4}
	stages, err := p.equalStages(4)
	if err != nil {
		t.Fatal(err)
	}
	f := p.fitted(stages[0].Ranks)
	plan := planOf(stages, []*flight{newFlight(together(p.balanced(f, cutting{16, 1})))}, nil)
	everything(plan)
	if err := p.Room(plan); err != nil {
		t.Fatal(err)
	}
	sum := func() (n int) {
		for _, again := range plan.Recompute {
			for _, layers := range again {
				n += layers
			}
		}
		return n
	}
	before := sum()
	p.relax(plan)
	if err := p.Room(plan); err != nil || sum() == 0 || sum() >= before {
		t.Errorf("%d layers of %d: %v", sum(), before, err)
	}
	for s := range plan.Stages { // none can be spared
		for k, n := range plan.Recompute[s] {
			if n == 0 {
				continue
			}
			plan.Recompute[s][k]--
			if p.Room(plan) == nil {
				t.Fatalf("stage %d, chunk %d: %d layers do as well as %d", s, k, n-1, n)
			}
			plan.Recompute[s][k]++
			break
		}
	}
}

// Ours has its plan before InfiniPipe's programmes may use up the time that there is, and after
// what people run.
func TestOursIsSearchedBeforeInfiniPipe(t *testing.T) {
	p := lawful(t, eightLayers(), "1x4 h100_sxm + 1x4 a100_sxm", costmodel.Zero3, skewed(rand.New(rand.NewPCG(4, 2)), 60, 65536))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked []string
	d, err := Solve(ctx, p, "evenkeel", func() units.Seconds { return 0 }, func(strategy string) {
		if asked = append(asked, strategy); strategy == "infinipipe" {
			cancel()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"static-sp", "1f1b", "seq1f1b", "evenkeel", "infinipipe"}; !slices.Equal(asked, want) {
		t.Errorf("%q, want %q", asked, want)
	}
	if base := d.Baseline(); d.Time > 0.9*base.Time {
		t.Errorf("ours takes %v, %s %v", d.Time, base.Strategy, base.Time)
	}
}

// A search that is stopped at once gives what others found, or says why there is nothing.
func TestStoppedSearch(t *testing.T) {
	p, _ := randomProblem(t, rand.New(rand.NewPCG(1, 1)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if plan, err := p.of(ctx, Evenkeel{}); plan != nil || err == nil {
		t.Errorf("%v, %v: want why there is no plan", plan, err)
	}
}

package pipeline

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
)

// randomStages have any devices, of several types too, and any layers.
func randomStages(r *rand.Rand, p *Problem) []pipeline.Stage {
	ranks := r.Perm(p.Devices())
	var stages []pipeline.Stage
	for len(ranks) > 0 && len(stages) < p.Layers && (len(stages) == 0 || r.IntN(4) > 0) {
		n := 1 + r.IntN(len(ranks))
		for p.Fits(ranks[:n]) != nil {
			n--
		}
		of := slices.Clone(ranks[:n])
		slices.Sort(of)
		stages, ranks = append(stages, pipeline.Stage{Ranks: of, Layers: 1}), ranks[n:]
	}
	for left := p.Layers - len(stages); left > 0; left-- {
		stages[r.IntN(len(stages))].Layers++
	}
	return stages
}

// randomPlan has sequences cut and packed at random on stages, and all kept.
func randomPlan(r *rand.Rand, p *Problem, stages []pipeline.Stage) *pipeline.Plan {
	var sequences [][]pipeline.Chunk
	var whole []int
	for i, n := range p.Lengths {
		if r.IntN(2) == 0 {
			whole = append(whole, i)
			continue
		}
		var chunks []pipeline.Chunk
		for from := units.Tokens(0); from < n; {
			slice := min(n-from, units.Tokens(1+r.IntN(int(n))))
			chunks = append(chunks, pipeline.Chunk{Sequence: i, Context: from, Slice: slice})
			from += slice
		}
		sequences = append(sequences, chunks)
	}
	for len(whole) > 0 {
		n := 1 + r.IntN(len(whole))
		sequences, whole = append(sequences, []pipeline.Chunk{{Sequence: -1, Whole: whole[:n:n]}}), whole[n:]
	}
	return planOf(stages, []*flight{newFlight(sequences)}, nil)
}

// No plan is below the bound, however odd: of links that differ from node to node, of many
// sequences of one length, of very short ones. On fixed stages the bound is no lower.
func TestNoPlanIsBelowTheBound(t *testing.T) {
	few := eightLayers()
	few.Layers, few.QHeads, few.KVHeads, few.HeadDim = 2, 24, 4, 64
	for name, of := range map[string]struct {
		cluster string
		lengths []units.Tokens
	}{
		"types":      {"1x4 h100_sxm + 1x4 a100_sxm", skewed(rand.New(rand.NewPCG(1, 1)), 12, 8192)},
		"in a node":  {"1x(2 h100_sxm + 2 a100_sxm) + 1x2 h100_sxm", skewed(rand.New(rand.NewPCG(2, 1)), 12, 8192)},
		"nodes":      {"2x4 h100_sxm", skewed(rand.New(rand.NewPCG(3, 1)), 12, 8192)},
		"one length": {"1x2 h100_sxm", slices.Repeat([]units.Tokens{64}, 4000)},
		"very short": {"1x2 h100_sxm", []units.Tokens{20, 3, 1, 1, 17}},
		"long":       {"1x1 h100_sxm", []units.Tokens{131072}},
	} {
		for links := range 2 {
			profile, job := reference.Job(t, few, of.cluster, 1024)
			job.OverlapZero = true
			job.Model.TiedEmbeddings = links == 1
			if links == 1 { // the first node's devices are connected by the network
				job.Cluster.Nodes[0].Link = job.Cluster.Network
				if job.Cluster.Network == "" {
					continue
				}
			}
			c, err := pipeline.FromLaws(costmodel.NewPredictor(profile), job, of.lengths)
			if err != nil {
				t.Fatal(err)
			}
			p := &Problem{Costs: c}
			bound := Bound(p)
			if !(bound > 0) {
				t.Errorf("%s: a bound of %v", name, bound)
			}
			least := forever
			for seed := range uint64(60) {
				r := rand.New(rand.NewPCG(seed, 5))
				plan := randomPlan(r, p, randomStages(r, p))
				if seed == 0 {
					all := make([]int, len(p.Lengths))
					for i := range all {
						all[i] = i
					}
					plan = planOf(plan.Stages, []*flight{newFlight([][]pipeline.Chunk{{{Sequence: -1, Whole: all}}})}, nil)
				}
				if err := p.Simulate(plan); err != nil {
					t.Fatal(fmt.Sprint(name, seed), err)
				}
				if plan.Time < bound {
					t.Errorf("%s, links %d, seed %d: %v, less than the bound, %v", name, links, seed, plan.Time, bound)
				}
				least = min(least, plan.Time)
				on := &Problem{Costs: c, Fixed: plan.Stages}
				if of := Bound(on); of < bound || plan.Time < of {
					t.Errorf("%s, links %d, seed %d: %v, and the bound on its stages is %v, on any %v", name, links, seed, plan.Time, of, bound)
				}
			}
			if least < bound || bound < least/20 {
				t.Errorf("%s, links %d: a bound of %v, and the best of sixty takes %v", name, links, bound, least)
			}
		}
	}
}

// Of very many short sequences of a narrow model, attention is most of a layer, and takes least
// in a call of all of them.
func TestFloorOfManyShortSequences(t *testing.T) {
	m := reference.Llama(1)
	m.Hidden, m.FFN, m.QHeads, m.KVHeads, m.HeadDim, m.Vocab = 128, 256, 16, 16, 64, 64
	for _, tokens := range []units.Tokens{64, 512} {
		p := lawful(t, m, "1x1 h100_sxm", costmodel.Zero3, slices.Repeat([]units.Tokens{tokens}, 20000))
		all := make([]int, len(p.Lengths))
		for i := range all {
			all[i] = i
		}
		w := p.Work([]int{0}, pipeline.Chunk{Sequence: -1, Whole: all})
		floor, _ := p.Floor(p.Device(0), 1, true)
		if took := w.Forward + w.Backward; floor > took || floor < 0.8*took {
			t.Errorf("%d tokens: all at once take %v a layer, and at least %v were said to be taken", int64(tokens), took, floor)
		}
	}
}

// With nothing to wait for, the bound is what there is to do: on equal devices, where a layer
// takes as long on each, a step of one stage takes as long.
func TestBoundIsReached(t *testing.T) {
	m := published(8, 0)
	m.Layers = 8
	p := batchOf(t, m, 4096, 512, 512)
	stages, err := p.equalStages(1)
	if err != nil {
		t.Fatal(err)
	}
	plan := planOf(stages, []*flight{newFlight(p.packed(1 << 20))}, nil)
	if err := p.Run(plan); err != nil {
		t.Fatal(err)
	}
	if bound := Bound(p); bound > plan.Time || bound < 0.994*plan.Time {
		t.Errorf("a bound of %v, and %v is possible", bound, plan.Time)
	}
}

// The bound of made-up stages is what trying all stages and layers comes to; where stages of
// several types are too many to be told apart it is no more, and of one type as much.
func TestBoundByTryingAllStages(t *testing.T) {
	mixed, lower := 0, 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 31))
		b := &bounder{layers: 1 + r.IntN(4), types: make([]boundType, 1+r.IntN(3))}
		devices := 0
		for i := range b.types {
			b.types[i].count = 1 + r.IntN(3)
			devices += b.types[i].count
		}
		for i := range b.types {
			x := &b.types[i]
			for d := 1; d <= devices; d++ {
				s := boundStage{d, (0.5 + r.Float64()) / float64(d), r.Float64()}
				if d <= x.count {
					x.alone = append(x.alone, s)
				}
				if len(b.types) > 1 && d > 1 {
					x.mixed = append(x.mixed, s)
				}
			}
		}
		b.tell()
		least, apart := math.Inf(1), math.Inf(1)
		counts := make([]int, len(b.types))
		for i := range counts {
			counts[i] = b.types[i].count
		}
		b.tryAll(counts, b.layers, true, 0, &least)
		if !b.told || !b.suffices(least*(1+1e-9)) || !b.sufficesShared(least*(1+1e-9)) {
			t.Fatalf("seed %d: %v is possible", seed, least)
		}
		if b.suffices(least * (1 - 1e-6)) {
			t.Fatalf("seed %d: less than %v is said to be possible", seed, least)
		}
		if b.sufficesShared(least * (1 - 1e-6)) {
			if lower++; len(b.types) == 1 {
				t.Fatalf("seed %d: less than %v is said to be possible of one type", seed, least)
			}
		}
		for i := range b.types {
			for at := range b.types[i].mixed {
				b.types[i].mixed[at].layer = math.Inf(1)
			}
		}
		if b.tryAll(counts, b.layers, true, 0, &apart); apart > least*(1+1e-9) {
			mixed++
		}
	}
	if mixed < 50 || lower < 50 {
		t.Errorf("%d problems are solved best by a stage of several types, and of %d the bound is lower where these are not told apart", mixed, lower)
	}
}

// Sets of devices that would be too many to look at, or to divide into stages, are not.
func TestFewStagesAreToldApart(t *testing.T) {
	for _, of := range []struct {
		types, count int
		told         bool
	}{{1, 4096, true}, {2, 32, true}, {3, 12, true}, {4, 32, false}, {12, 4, false}} {
		b := &bounder{layers: 1, types: make([]boundType, of.types)}
		for i := range b.types {
			b.types[i].count = of.count
			for d := 2; d <= 32 && of.types > 1; d *= 2 {
				b.types[i].mixed = append(b.types[i].mixed, boundStage{d, 1, 0})
			}
		}
		if b.tell(); b.told != of.told || b.told && len(b.mixes)*b.sets() > mostTold {
			t.Errorf("%d of each of %d types are told apart: %v, in %d stages", of.count, of.types, b.told, len(b.mixes))
		}
	}
}

// tryAll gives the rest of the layers to stages of the devices that are left, the last stage
// first, and keeps the least of how long the busiest takes.
func (b *bounder) tryAll(left []int, layers int, last bool, busiest float64, least *float64) {
	if layers == 0 {
		*least = min(*least, busiest)
		return
	}
	take := make([]int, len(left))
	var choose func(i int)
	choose = func(i int) {
		if i < len(left) {
			for take[i] = 0; take[i] <= left[i]; take[i]++ {
				choose(i + 1)
			}
			take[i] = 0
			return
		}
		devices, types := 0, 0
		for _, n := range take {
			devices += n
			types += min(n, 1)
		}
		if devices == 0 {
			return
		}
		layer, loss := 0.0, 0.0 // of the slowest type
		for i, n := range take {
			stages := b.types[i].alone
			if types > 1 {
				stages = b.types[i].mixed
			}
			for _, s := range stages {
				if n > 0 && s.devices == devices {
					layer, loss = max(layer, s.layer), max(loss, s.loss)
				}
			}
		}
		if !last {
			loss = 0
		}
		rest := make([]int, len(left))
		for i := range rest {
			rest[i] = left[i] - take[i]
		}
		for n := 1; n <= layers; n++ {
			b.tryAll(rest, layers-n, false, max(busiest, float64(n)*layer+loss), least)
		}
	}
	choose(0)
}

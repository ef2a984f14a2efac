package costmodel

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func mustReplayChunk(t testing.TB, k *Packer, group Group, shares []float64, x Chunk, w ChunkReplay) *Replayed {
	t.Helper()
	r, err := k.ReplayedChunk(group, shares, x, w)
	if err != nil {
		t.Fatalf("%+v, %+v: %v", x, w, err)
	}
	return r
}

// drawnChunk has a slice behind a context, whole sequences, or both.
func drawnChunk(r *rand.Rand) Chunk {
	var x Chunk
	if r.IntN(3) > 0 {
		x.Slice, x.More = units.Tokens(1+r.IntN(8000)), r.IntN(2) == 0
		x.Context = units.Tokens(r.IntN(2) * r.IntN(30000))
	}
	for range r.IntN(3) {
		x.Whole = append(x.Whole, Documents{units.Tokens(1 + r.IntN(4000)), 1 + r.IntN(4)})
	}
	if x.Tokens() == 0 {
		x.Whole = []Documents{{1 + units.Tokens(r.IntN(5000)), 1}}
	}
	return x
}

// unlike are ranks that share heads unequally, one of them slower.
func unlike(t testing.TB, p *Profile) (Cluster, Group, []float64) {
	return cluster(t, "1x(2 fast + 1 slow)", p, "bus", ""), Group{{0, 2}, {1, 1}, {2, 1}}, []float64{1. / 3, 1. / 3, 1. / 3}
}

// A loss comes behind the last layer on every rank, takes what the law says of its tokens, and
// is no part of a backward pass.
func TestALossComesBehindAForwardPass(t *testing.T) {
	p := usual(t)
	on, group, shares := unlike(t, p)
	x := Chunk{Slice: 3000, More: true, Whole: []Documents{{600, 2}}}
	j := testJob(on, []units.Tokens{x.Tokens()})
	j.LossChunk = 700
	k := packerOf(t, p, j)
	bare, with := mustReplayChunk(t, k, group, shares, x, ChunkReplay{Layers: 2}), mustReplayChunk(t, k, group, shares, x, ChunkReplay{Layers: 2, Loss: true})
	layers, err := NewLayers(NewPredictor(p), j)
	if err != nil {
		t.Fatal(err)
	}
	last := units.Seconds(0)
	for r, device := range []string{"fast", "fast", "slow"} {
		want, err := layers.Loss(device, 1400)
		if err != nil || want <= 0 {
			t.Fatal(want, err)
		}
		a, b := bare.Ranks[r], with.Ranks[r]
		if math.Abs(float64((b.Compute-a.Compute)/want)-1) > 1e-9 || math.Abs(float64((b.End-a.End)/want)-1) > 1e-9 || b.Exposed != a.Exposed {
			t.Errorf("rank %d: %+v, without the loss %+v: it takes %v", r, b, a, want)
		}
		last = max(last, b.End)
	}
	if with.Step.Mid != last || !(with.Step.Lo < last && last < with.Step.Hi) || len(with.Tasks) != len(bare.Tasks)+3 || with.Meeting <= bare.Meeting {
		t.Errorf("%+v, meeting %v; %v without the loss", with.Step, with.Meeting, bare.Meeting)
	}
	given := mustReplayChunk(t, k, group, shares, x, ChunkReplay{Layers: 2, Loss: true, Took: func(k ReplayKey) (units.Seconds, bool) {
		return 7, k == ReplayKey{Rank: 1, Layer: 1, Dir: ForwardPass, Op: LossOp}
	}})
	if d := given.Ranks[1].Compute - bare.Ranks[1].Compute; math.Abs(float64(d)-7) > 1e-9 || given.Ranks[0] != with.Ranks[0] {
		t.Errorf("7 s supposed take %v; %+v", d, given.Ranks[0])
	}
	if _, err := k.ReplayedChunk(group, shares, x, ChunkReplay{Layers: 2, Back: true, Loss: true}); err == nil || !strings.Contains(err.Error(), "loss: of a backward pass") {
		t.Error(err)
	}
}

// Without a context a chunk is replayed as a sequence of packed documents on one all-to-all
// group: the forward pass to the last bit, with every task where it was, the backward pass
// from where all ranks of equal ones are done with it.
func TestReplayedChunksAreReplayedSequences(t *testing.T) {
	p := usual(t)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 60 {
		on, group, shares := unlike(t, p)
		if i%2 == 0 {
			group, shares = evenly(4)
			on = cluster(t, "1x4 fast", p, "bus", "")
		}
		x := drawnChunk(r)
		if x.Context = 0; i%2 == 0 {
			x.Slice += 4 - x.Tokens()%4 // shares that are equal to the last token end together
		}
		j := testJob(on, []units.Tokens{x.Tokens()})
		w := ReplayWork{Layout: Contiguous(SplitByShares(x.Tokens(), shares), []Group{group}), Layers: 1 + r.IntN(3)}
		for _, d := range x.sequences() {
			if w.Packed = append(w.Packed, d.Len()); len(x.sequences()) == 1 {
				w.Packed = nil
			}
		}
		again := 0
		if i%3 == 0 {
			j.Recompute, again = RecomputeFull, w.Layers
		}
		s, err := NewSimulator(NewPredictor(p), j)
		if err != nil {
			t.Fatal(err)
		}
		want, err := s.Replayed(w)
		if err != nil {
			t.Fatal(err)
		}
		k := packerOf(t, p, j)
		there := mustReplayChunk(t, k, group, shares, x, ChunkReplay{Layers: w.Layers})
		back := mustReplayChunk(t, k, group, shares, x, ChunkReplay{Layers: w.Layers, Again: again, Back: true})
		of := map[ReplayKey]ReplayTask{}
		for _, task := range want.Tasks {
			of[task.ReplayKey] = task
		}
		if len(there.Tasks)+len(back.Tasks) != len(want.Tasks) {
			t.Fatalf("%d and %d tasks, want %d", len(there.Tasks), len(back.Tasks), len(want.Tasks))
		}
		for _, task := range there.Tasks {
			if of[task.ReplayKey] != task {
				t.Fatalf("%+v: %+v, want %+v", x, task, of[task.ReplayKey])
			}
		}
		if i%2 > 0 {
			continue
		}
		for _, task := range back.Tasks {
			task.Start += there.Step.Mid
			if w := of[task.ReplayKey]; w.ReplayKey != task.ReplayKey || !near(task.Start, w.Start, 1e-12) || !near(task.Start+task.Time, w.Start+w.Time, 1e-12) {
				t.Fatalf("%+v: %+v, want %+v", x, task, w)
			}
		}
		if !near(there.Step.Mid+back.Step.Mid, want.Step.Mid, 1e-12) || !near(there.Meeting+back.Meeting, want.Meeting, 1e-12) || !near(there.Ranks[1].Exposed+back.Ranks[1].Exposed, want.Ranks[1].Exposed, 1e-9) {
			t.Errorf("%+v: %+v and %+v, want %+v", x, there, back, want)
		}
	}
}

// By laws without a constant, by which it is no matter in how many calls attention is
// computed, a pass of one layer on equal ranks takes what the chunk's price is, and several
// layers as often as much.
func TestReplayedChunksTakeTheirPrice(t *testing.T) {
	p := usual(t)
	r := rand.New(rand.NewPCG(7, 8))
	for range 60 {
		n := []int{1, 2, 4}[r.IntN(3)]
		k := onFast(t, p, n)
		group, shares := evenly(n)
		x := drawnChunk(r)
		x.Slice += units.Tokens(n) - x.Tokens()%units.Tokens(n)
		of := mustChunk(t, k, n, x)
		w := ChunkReplay{Layers: 1 + r.IntN(4)}
		want := units.Seconds(w.Layers) * of.Forward
		there := mustReplayChunk(t, k, group, shares, x, w)
		w.Back, w.Again = true, r.IntN(w.Layers+1)
		back := mustReplayChunk(t, k, group, shares, x, w)
		if !near(there.Step.Mid, want, 1e-9) || !near(back.Step.Mid, units.Seconds(w.Layers)*of.Backward+units.Seconds(w.Again)*of.Forward, 1e-9) {
			t.Errorf("%d ranks, %+v, %+v: %v and %v; a layer %+v", n, x, w, there.Step.Mid, back.Step.Mid, of)
		}
		for _, e := range []Estimate{there.Step, back.Step} { // laws may be off by a tenth
			if e.Source != Interpolated && n == 1 || e.Lo < 0.89*e.Mid || e.Lo >= e.Mid || e.Hi <= e.Mid || e.Hi > 1.3*e.Mid {
				t.Errorf("%d ranks, %+v: %+v", n, x, e)
			}
		}
		if after := mustChunk(t, k, n, x); after != of {
			t.Errorf("%+v: a price of %+v, before the replay %+v", x, after, of)
		}
	}
}

// Every sequence has a call of its own, so that each pays for a launch, and a slice two, of
// which the second is added to the first: forward its outputs, backward the gradients of
// queries, and those of the context's keys and values.
func TestReplayedChunksHaveACallASequence(t *testing.T) {
	const launch = 1e-3
	p := madeUp(t, map[string]speeds{"fast": {attention: 1e12, memory: 1e12}}, nil)
	for i := range p.Laws {
		if l := &p.Laws[i]; l.Op == op.KindAttnFwd || l.Op == op.KindAttnBwd {
			l.Linear.Launch = coef(launch)
		}
	}
	k := onFast(t, p, 1)
	group, shares := evenly(1)
	for _, c := range []struct {
		of    Chunk
		calls int
	}{
		{Chunk{Slice: 500}, 1},
		{Chunk{Slice: 500, Context: 100}, 2},
		{Chunk{Whole: []Documents{{500, 1}}}, 1},
		{Chunk{Whole: []Documents{{500, 3}, {20, 2}}}, 5},
		{Chunk{Slice: 500, Context: 7000, Whole: []Documents{{500, 3}}}, 5},
	} {
		s, x := float64(c.of.Slice), float64(c.of.Context)
		pairs, merged := x*s+s*(s+1)/2, 0.
		for _, d := range c.of.Whole {
			pairs += float64(d.Count) * float64(d.Tokens) * float64(d.Tokens+1) / 2
		}
		if x > 0 {
			merged = (4*s + 2*2*x) * 64
		}
		sums := map[ReplayOp]units.Seconds{}
		for _, task := range mustReplayChunk(t, k, group, shares, c.of, ChunkReplay{Layers: 1, Back: true}).Tasks {
			sums[task.Op] += task.Time
		}
		if want := units.Seconds(float64(c.calls)*launch + 10*64*4*pairs/1e12); !near(sums[AttentionOp], want, 1e-9) {
			t.Errorf("%+v: attention takes %v, want %v", c.of, sums[AttentionOp], want)
		}
		if (merged > 0) != (sums[MergeOp] > 0) || merged > 0 && !near(sums[MergeOp], units.Seconds(float64(mergedBytes(t, merged))/1e12), 1e-9) {
			t.Errorf("%+v: merging takes %v", c.of, sums[MergeOp])
		}
	}
}

// mergedBytes are those of adding so many elements, in rows of 64 with a sum each.
func mergedBytes(t testing.TB, elements float64) units.Bytes {
	t.Helper()
	shape := op.LSEMerge{Tokens: units.Tokens(elements / 64), QHeads: 1, HeadDim: 64}
	return shape.Work().Bytes()
}

// A longer context, more layers and more of them again take longer.
func TestReplayedChunksTakeLongerWithMore(t *testing.T) {
	p := usual(t)
	on, group, shares := unlike(t, p)
	k := packerOf(t, p, testJob(on, []units.Tokens{1}))
	r := rand.New(rand.NewPCG(9, 10))
	for range 40 {
		x, w := drawnChunk(r), ChunkReplay{Layers: 1 + r.IntN(3), Back: r.IntN(2) == 0}
		x.Slice += units.Tokens(1 + r.IntN(3000))
		if w.Back {
			w.Again = r.IntN(w.Layers + 1)
		}
		least := mustReplayChunk(t, k, group, shares, x, w).Step.Mid
		longer := func(what string, x Chunk, w ChunkReplay) {
			if more := mustReplayChunk(t, k, group, shares, x, w).Step.Mid; more <= least {
				t.Errorf("%v, with more %s %v: %+v, %+v", least, what, more, x, w)
			}
		}
		y, v := x, w
		y.Context += units.Tokens(1 + r.IntN(3000))
		longer("context", y, w)
		y = x
		y.Slice += units.Tokens(100 + r.IntN(3000))
		longer("tokens", y, w)
		v.Layers++
		longer("layers", x, v)
		if v = w; v.Again < v.Layers && v.Back {
			v.Again++
			longer("layers again", x, v)
		}
	}
}

// The stretches asked for are those of the pass: in their order by rank, of the first layers
// forward again, and what they are supposed to take is what the tasks say.
func TestReplayedChunksAsSupposed(t *testing.T) {
	p := usual(t)
	on, group, shares := unlike(t, p)
	k := packerOf(t, p, testJob(on, []units.Tokens{1}))
	x := Chunk{Context: 700, Slice: 900, Whole: []Documents{{300, 1}, {40, 2}}}
	for _, w := range []ChunkReplay{{Layers: 3}, {Layers: 3, Back: true, Again: 2}} {
		by := mustReplayChunk(t, k, group, shares, x, w)
		took, asked := map[ReplayKey]units.Seconds{}, map[ReplayKey]bool{}
		for _, task := range by.Tasks {
			if task.Op == MergeOp {
				task.Op = AttentionOp
			}
			if !task.Op.Waits() {
				took[task.ReplayKey] += task.Time
			}
		}
		w.Took = func(k ReplayKey) (units.Seconds, bool) {
			asked[k] = true
			return took[k], true
		}
		same := mustReplayChunk(t, k, group, shares, x, w)
		if !near(same.Step.Mid, by.Step.Mid, 1e-12) || len(asked) != len(took) {
			t.Errorf("%+v: %v supposed, %v by the laws; %d stretches, %d were asked for", w, same.Step.Mid, by.Step.Mid, len(took), len(asked))
		}
		for k := range asked {
			forward := k.Dir == ForwardPass
			if took[k] <= 0 || k.Again != (w.Back && forward) || k.Again && k.Layer >= w.Again || !forward && !w.Back {
				t.Errorf("%+v: %+v takes %v", w, k, took[k])
			}
		}
		w.Took = func(k ReplayKey) (units.Seconds, bool) { return 5 * took[k], k.Rank == 1 }
		late := mustReplayChunk(t, k, group, shares, x, w)
		if !near(late.Ranks[1].Compute, 5*by.Ranks[1].Compute, 1e-12) || late.Step.Mid <= by.Step.Mid || late.Ranks[0].Skew <= by.Ranks[0].Skew {
			t.Errorf("%+v: %+v, with a slower rank %+v", w, by, late)
		}
	}
}

// Ranks may be more than tokens, and a model's longest sequence less than a chunk.
func TestReplayedChunksOfAnySize(t *testing.T) {
	p := usual(t)
	group, shares := evenly(4)
	j := testJob(cluster(t, "1x4 fast", p, "bus", ""), []units.Tokens{1})
	j.Model.MaxLen = 1000
	k := packerOf(t, p, j)
	r := mustReplayChunk(t, k, group, shares, Chunk{Slice: 3}, ChunkReplay{Layers: 1})
	if least := r.Ranks[3]; r.Step.Mid <= 0 || least.Compute <= 0 {
		t.Errorf("%+v", r)
	}
	mustReplayChunk(t, k, group, shares, Chunk{Slice: 900, Whole: []Documents{{900, 2}}}, ChunkReplay{Layers: 1})
}

func TestReplayedChunksThatAreNone(t *testing.T) {
	p := usual(t)
	k := onFast(t, p, 2)
	group, shares := evenly(2)
	for want, c := range map[string]struct {
		of Chunk
		w  ChunkReplay
	}{
		"a chunk of 0 tokens behind 5":  {Chunk{Context: 5}, ChunkReplay{Layers: 1}},
		"0 layers, 0 of them run again": {Chunk{Slice: 5}, ChunkReplay{}},
		"2 layers, 3 of them run again": {Chunk{Slice: 5}, ChunkReplay{Layers: 2, Again: 3, Back: true}},
		"2 layers, -1 of them":          {Chunk{Slice: 5}, ChunkReplay{Layers: 2, Again: -1, Back: true}},
		"in a backward pass":            {Chunk{Slice: 5}, ChunkReplay{Layers: 2, Again: 1}},
	} {
		if _, err := k.ReplayedChunk(group, shares, c.of, c.w); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := k.ReplayedChunk(group[:1], shares, Chunk{Slice: 5}, ChunkReplay{Layers: 1}); err == nil {
		t.Error("a group of one of two ranks: no error")
	}
	for i := len(p.Laws) - 1; i >= 0; i-- {
		if l := p.Laws[i]; l.Op == op.KindAttnFwd && l.Variant.Mask == op.Full {
			p.Laws = append(p.Laws[:i], p.Laws[i+1:]...)
		}
	}
	k = onFast(t, p, 2)
	mustReplayChunk(t, k, group, shares, Chunk{Slice: 1000}, ChunkReplay{Layers: 1})
	if _, err := k.ReplayedChunk(group, shares, Chunk{Context: 1000, Slice: 1000}, ChunkReplay{Layers: 1}); err == nil || !strings.Contains(err.Error(), "attn_fwd") {
		t.Errorf("behind a context, without its law: %v", err)
	}
}

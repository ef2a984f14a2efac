package costmodel

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// evenly is n ranks that have as many of the small model's heads each, and equal shares.
func evenly(n int) (Group, []float64) {
	var g Group
	var shares []float64
	for r := range n {
		g, shares = append(g, HeadShare{r, 4 / n}), append(shares, 1/float64(n))
	}
	return g, shares
}

// mustChunk is what a chunk takes on n equal ranks.
func mustChunk(t testing.TB, k *Packer, n int, x Chunk) ChunkPasses {
	t.Helper()
	group, shares := evenly(n)
	out, err := k.Chunk(group, shares, x)
	if err != nil {
		t.Fatalf("%+v: %v", x, err)
	}
	return out
}

// onFast packs for so many fast devices on one node.
func onFast(t testing.TB, p *Profile, n int) *Packer {
	t.Helper()
	return packerOf(t, p, testJob(cluster(t, "1x"+string(rune('0'+n))+" fast", p, "bus", ""), []units.Tokens{1}))
}

// Without a context a chunk is documents as any others, the slice the first of them.
func TestChunksWithoutAContextAreDocuments(t *testing.T) {
	p := usual(t)
	for _, n := range []int{1, 2, 4} {
		k := onFast(t, p, n)
		group, shares := evenly(n)
		for _, x := range []struct {
			of   Chunk
			docs []Documents
		}{
			{Chunk{Slice: 5000}, []Documents{{5000, 1}}},
			{Chunk{Whole: []Documents{{5000, 1}}}, []Documents{{5000, 1}}},
			{Chunk{Whole: []Documents{{3000, 2}, {700, 9}}}, []Documents{{3000, 2}, {700, 9}}},
			{Chunk{Slice: 4000, More: true, Whole: []Documents{{3000, 2}}}, []Documents{{4000, 1}, {3000, 2}}},
		} {
			want, err := k.Passes([]Group{group}, shares, x.docs)
			if err != nil {
				t.Fatal(err)
			}
			got := mustChunk(t, k, n, x.of)
			if 6*got.Forward != want.Forward || 6*got.Backward != want.Backward || got.Loss != want.Loss {
				t.Errorf("%d ranks: a layer of %+v takes %v, %v and its loss %v; six of %v take %v, %v and %v", n, x.of, got.Forward, got.Backward, got.Loss, x.docs, want.Forward, want.Backward, want.Loss)
			}
		}
	}
}

// On a single device a slice is the linear ops of its tokens, a call over the context's keys,
// whose outputs are added to those of its own triangle, and backward its gradients of
// queries, keys and values.
func TestASliceIsTheSumOfItsOps(t *testing.T) {
	p := usual(t)
	q := NewPredictor(p)
	sum := func(shapes ...op.Shape) (total units.Seconds) {
		for _, s := range shapes {
			e, err := q.Time("fast", s)
			if err != nil {
				t.Fatal(err)
			}
			total += e.Mid
		}
		return total
	}
	k := onFast(t, p, 1)
	for _, x := range [][2]units.Tokens{{1, 1}, {100, 4096}, {8192, 64}, {30000, 5000}} {
		context, slice := x[0], x[1]
		full := op.Attention{Mask: op.Full, QLen: slice, KVLen: context, QHeads: 4, KVHeads: 2, HeadDim: 64, DType: op.F32}
		diag := full
		diag.Mask, diag.KVLen = op.Diag, slice
		forwardOps, backwardOps := linearOps("llama", slice)
		outputs, keys := op.LSEMerge{Tokens: slice, QHeads: 4, HeadDim: 64}, op.LSEMerge{Tokens: 2 * context, QHeads: 2, HeadDim: 64}
		forward := sum(append(forwardOps, op.AttnFwd{Attention: full}, op.AttnFwd{Attention: diag}, outputs)...)
		backward := sum(append(backwardOps, op.AttnBwd{Attention: full}, op.AttnBwd{Attention: diag}, outputs, keys)...)
		got := mustChunk(t, k, 1, Chunk{Context: context, Slice: slice})
		if !near(got.Forward, forward, 1e-12) || !near(got.Backward, backward, 1e-12) {
			t.Errorf("%d tokens behind %d: %v and %v, its ops take %v and %v", int64(slice), int64(context), got.Forward, got.Backward, forward, backward)
		}
		if got.ForwardMoving != 0 || got.BackwardMoving != 0 {
			t.Errorf("a single device exchanges heads for %v and %v", got.ForwardMoving, got.BackwardMoving)
		}
		if want := mustChunk(t, k, 1, Chunk{Slice: slice}).Loss; got.Loss != want || want <= 0 {
			t.Errorf("%d tokens behind %d: a loss of %v, behind none of %v", int64(slice), int64(context), got.Loss, want)
		}
	}
}

// Where attention alone costs anything, a chunk takes its pairs of a query and a key that it
// sees: 4 FLOPs for each of 64 elements of a rank's heads, at 10^12 a second, and backward
// five products in the place of two. The slices of a sequence take what all of it does.
func TestSlicesSeeAllPairsOfTheirSequence(t *testing.T) {
	p := madeUp(t, map[string]speeds{"fast": {attention: 1e12}}, map[string]wire{"bus": {}})
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 4} {
		k := onFast(t, p, n)
		pair := units.Seconds(4*64*4/n) * 1e-12
		for range 10 {
			length := units.Tokens(2000 + r.IntN(50000))
			var sum ChunkPasses
			for from := units.Tokens(0); from < length; {
				slice := min(length-from, units.Tokens(1+r.IntN(9000)))
				x := Chunk{Context: from, Slice: slice, More: from+slice < length}
				c, s := float64(from), float64(slice)
				pairs := c*s + s*(s+1)/2
				for range r.IntN(3) {
					d := Documents{units.Tokens(1 + r.IntN(3000)), 1 + r.IntN(3)}
					x.Whole = append(x.Whole, d)
					pairs += float64(d.Count) * float64(d.Tokens) * float64(d.Tokens+1) / 2
				}
				got := mustChunk(t, k, n, x)
				if want := pair * units.Seconds(pairs); !near(got.Forward, want, 1e-6) || !near(got.Backward, 2.5*want, 1e-6) {
					t.Errorf("%d ranks, %+v: %v and %v, want %v and %v", n, x, got.Forward, got.Backward, want, 2.5*want)
				}
				x.Whole = nil
				own := mustChunk(t, k, n, x)
				sum.Forward, sum.Backward = sum.Forward+own.Forward, sum.Backward+own.Backward
				from += slice
			}
			whole := mustChunk(t, k, n, Chunk{Slice: length})
			if !near(sum.Forward, whole.Forward, 1e-6) || !near(sum.Backward, whole.Backward, 1e-6) {
				t.Errorf("%d ranks: slices of %d tokens take %v and %v, all at once %v and %v", n, int64(length), sum.Forward, sum.Backward, whole.Forward, whole.Backward)
			}
		}
	}
}

// More of anything takes longer: of the context, of the slice, of the sequences beside it.
// A slice behind a context takes at least what its tokens would by themselves.
func TestChunksTakeLongerWithMore(t *testing.T) {
	p := usual(t)
	r := rand.New(rand.NewPCG(3, 4))
	for range 40 {
		n := []int{1, 2, 4}[r.IntN(3)]
		k := onFast(t, p, n)
		x := Chunk{Context: units.Tokens(r.IntN(30000)), Slice: units.Tokens(1 + r.IntN(8000)), More: r.IntN(2) == 0}
		for range r.IntN(3) {
			x.Whole = append(x.Whole, Documents{units.Tokens(1 + r.IntN(4000)), 1 + r.IntN(4)})
		}
		least := mustChunk(t, k, n, x)
		grown := map[string]Chunk{"context": x, "slice": x, "documents": x}
		for what, y := range grown {
			switch what {
			case "context":
				y.Context += units.Tokens(1 + r.IntN(3000))
			case "slice":
				y.Slice += units.Tokens(100 + r.IntN(3000))
			case "documents":
				y.Whole = append(y.Whole[:len(y.Whole):len(y.Whole)], Documents{units.Tokens(100 + r.IntN(3000)), 1})
			}
			more := mustChunk(t, k, n, y)
			if more.Forward <= least.Forward || more.Backward <= least.Backward {
				t.Errorf("%d ranks, %+v: %v and %v; with more %s, %+v: %v and %v", n, x, least.Forward, least.Backward, what, y, more.Forward, more.Backward)
			}
			if what == "context" && more.Loss != least.Loss || what != "context" && more.Loss <= least.Loss {
				t.Errorf("%d ranks, %+v: a loss of %v, with more %s of %v", n, x, least.Loss, what, more.Loss)
			}
		}
		own := x
		own.Context = 0
		if alone := mustChunk(t, k, n, own); alone.Forward > least.Forward || alone.Backward > least.Backward {
			t.Errorf("%d ranks, %+v: %v and %v, without the context %v and %v", n, x, least.Forward, least.Backward, alone.Forward, alone.Backward)
		}
	}
}

// On four ranks, of which each has a query head and needs a key head, all-to-alls take queries,
// keys and values of each rank's tokens to three others, and outputs back: four times 64
// elements of four bytes a token, over a link that nothing else uses, in two calls; by the law
// of another group, which is slowed by 15 %. Nothing of the context is sent again.
func TestChunksMoveTheirOwnTokens(t *testing.T) {
	const latency, rate = 3e-6, 1e9
	p := madeUp(t, map[string]speeds{"fast": {attention: 1e12}}, map[string]wire{"bus": {latency, rate}})
	k := onFast(t, p, 4)
	for _, x := range []Chunk{{Slice: 4000}, {Context: 60000, Slice: 4000, More: true}, {Context: 8000, Slice: 400, Whole: []Documents{{1200, 3}}}, {Whole: []Documents{{4000, 1}}}} {
		want := units.Seconds(1.15 * (2*latency + 4*64*4*3*float64(x.Tokens())/4/rate))
		got := mustChunk(t, k, 4, x)
		if !near(got.ForwardMoving, want, 1e-9) || !near(got.BackwardMoving, want, 1e-9) {
			t.Errorf("%+v: ports are in use for %v and %v, want %v", x, got.ForwardMoving, got.BackwardMoving, want)
		}
		// Two calls before and behind the attention, which has all of a rank's tokens first.
		s, c := float64(x.Slice), float64(x.Context)
		pairs := c*s + s*(s+1)/2
		for _, d := range x.Whole {
			pairs += float64(d.Count) * float64(d.Tokens) * float64(d.Tokens+1) / 2
		}
		computing := units.Seconds(4 * 64 * pairs / 1e12)
		if !near(got.Forward, want+computing, 1e-6) || !near(got.Backward, want+2.5*computing, 1e-6) {
			t.Errorf("%+v: %v and %v, want %v and %v", x, got.Forward, got.Backward, want+computing, want+2.5*computing)
		}
	}
}

// A chunk leaves nothing of its context behind, even where it failed.
func TestAContextIsOfOneChunkAlone(t *testing.T) {
	p := usual(t)
	k := onFast(t, p, 4)
	group, shares := evenly(4)
	of := []Documents{{6000, 1}, {500, 4}}
	passes := func() Passes {
		x, err := k.Passes([]Group{group}, shares, of)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	first := passes()
	x := Chunk{Context: 40000, Slice: 6000, Whole: of[1:]}
	slice := mustChunk(t, k, 4, x)
	if slice.Forward*6 <= first.Forward {
		t.Fatalf("a slice takes %v, as without its context: %v", slice.Forward, first.Forward/6)
	}
	again := func(behind string) {
		t.Helper()
		if got := passes(); got.Forward != first.Forward || got.Backward != first.Backward || got.Loss != first.Loss {
			t.Errorf("behind %s: %v and %v, before it %v and %v", behind, got.Forward, got.Backward, first.Forward, first.Backward)
		}
		if got, err := k.OwnLast(); err != nil || got.Backward != first.Backward {
			t.Errorf("behind %s, own block last: %v, want %v", behind, got.Backward, first.Backward)
		}
	}
	again("a chunk")
	if _, err := k.BriefChunk(group, shares, x, ChunkTimes{1, 1, 1, 1}); err != nil {
		t.Fatal(err)
	}
	again("an account")
	if _, err := k.Chunk(group[:3], shares, x); err == nil {
		t.Error("a group of three of four ranks: no error")
	}
	again("a chunk on a group that is none")
	if mustChunk(t, k, 4, x) != slice {
		t.Error("the chunk takes something else the second time")
	}
}

// The account has what the passes take, so many times each.
func TestBriefChunkIsItsPasses(t *testing.T) {
	p := usual(t)
	for _, n := range []int{1, 4} {
		k := onFast(t, p, n)
		group, shares := evenly(n)
		for _, x := range []Chunk{{Slice: 4000}, {Context: 60000, Slice: 4000, Whole: []Documents{{1200, 3}, {10, 1}}}, {Whole: []Documents{{4000, 1}}}} {
			of := mustChunk(t, k, n, x)
			for _, times := range []ChunkTimes{
				{Forward: 1}, {Again: 1}, {Backward: 1}, {Loss: 1}, {Forward: 10, Backward: 10}, {Forward: 10, Again: 3, Backward: 10, Loss: 1},
			} {
				want := units.Seconds(times.Forward+times.Again)*of.Forward + units.Seconds(times.Backward)*of.Backward + units.Seconds(times.Loss)*of.Loss
				step, err := k.BriefChunk(group, shares, x, times)
				if err != nil || !near(step.Time.Mid, want, 1e-9) {
					t.Errorf("%d ranks, %+v, %+v: %v, %v; want %v", n, x, times, step.Time.Mid, err, want)
					continue
				}
				// Laws may be off by a tenth, and their sum by no more.
				if lo, hi := step.Time.Lo, step.Time.Hi; lo >= want || hi <= want || lo < 0.89*want || hi > 1.3*want {
					t.Errorf("%d ranks, %+v, %+v: %v to %v about %v", n, x, times, lo, hi, want)
				}
			}
		}
	}
}

// The account knows that most of a slice's time is over its context: where the law of these
// blocks alone may be off by half, so may the time.
func TestBriefChunkCountsTheContextsLaw(t *testing.T) {
	p := usual(t)
	for i := range p.Laws {
		if l := &p.Laws[i]; l.Variant.Mask == op.Full {
			l.Spread = Spread{Lo: 0.5, Hi: 1.5}
		}
	}
	k := onFast(t, p, 1)
	group, shares := evenly(1)
	for _, x := range []struct {
		of   Chunk
		wide bool
	}{{Chunk{Context: 200000, Slice: 4000}, true}, {Chunk{Slice: 4000}, false}} {
		step, err := k.BriefChunk(group, shares, x.of, ChunkTimes{Forward: 1, Backward: 1})
		if err != nil {
			t.Fatal(err)
		}
		if mid, lo := step.Time.Mid, step.Time.Lo; lo < 0.7*mid != x.wide {
			t.Errorf("%+v: %v, and %v at least", x.of, mid, lo)
		}
	}
}

func TestChunksThatAreNone(t *testing.T) {
	p := usual(t)
	k := onFast(t, p, 2)
	group, shares := evenly(2)
	for want, x := range map[string]Chunk{
		"a chunk of 0 tokens behind 0: want some":   {},
		"a chunk of 0 tokens behind 5: want some":   {Context: 5},
		"a chunk of 3 tokens behind -1: want some":  {Context: -1, Slice: 3},
		"a chunk of 20 tokens behind 5: want some,": {Context: 5, Whole: []Documents{{10, 2}}},
		"a chunk of 17 tokens behind 0: want some,": {Slice: -3, Whole: []Documents{{10, 2}}},
		"a chunk of 10 tokens behind 0: want some,": {Slice: 10, Whole: []Documents{{0, 2}}},
		"a chunk of 11 tokens behind 0: want some,": {Slice: 11, Whole: []Documents{{7, 0}}},
	} {
		if _, err := k.Chunk(group, shares, x); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", x, err)
		}
		if _, err := k.BriefChunk(group, shares, x, ChunkTimes{1, 1, 1, 1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("account of %+v: %v", x, err)
		}
	}
}

// What no law prices is an error, of a chunk and of its account.
func TestChunksLackLaws(t *testing.T) {
	p := usual(t)
	for i := len(p.Laws) - 1; i >= 0; i-- {
		if l := p.Laws[i]; l.Op == op.KindAttnFwd && l.Variant.Mask == op.Full {
			p.Laws = append(p.Laws[:i], p.Laws[i+1:]...)
		}
	}
	k := onFast(t, p, 2)
	group, shares := evenly(2)
	mustChunk(t, k, 2, Chunk{Slice: 1000}) // a triangle alone needs no full block
	for range 2 {
		if _, err := k.Chunk(group, shares, Chunk{Context: 1000, Slice: 1000}); err == nil || !strings.Contains(err.Error(), "attn_fwd") {
			t.Errorf("behind a context: %v", err)
		}
		if _, err := k.BriefChunk(group, shares, Chunk{Context: 1000, Slice: 1000}, ChunkTimes{1, 0, 1, 0}); err == nil || !strings.Contains(err.Error(), "attn_fwd") {
			t.Errorf("the account behind a context: %v", err)
		}
	}
}

// The small model in float32. A rank keeps of each of its tokens the layer's input, the
// residual, both norms' outputs and three widths of the MLP, and a root of both norms; of the
// group's tokens, for its own heads, queries, outputs, keys and values and a number a query
// head; and the outputs by tokens where it is not alone.
func TestChunkMemoryByHand(t *testing.T) {
	const d, e, hidden, ffn = 64, 4, 256, 688
	p := usual(t)
	job := testJob(cluster(t, "1x4 fast", p, "bus", ""), []units.Tokens{1})
	for _, c := range []struct {
		x                   Chunk
		n, heads, kv, first int
		tokens, all, widest float64 // of the rank, of the group, of the keys that queries see
		slice               float64
	}{
		{Chunk{Slice: 8000}, 1, 4, 2, 0, 8000, 8000, 8000, 8000},
		{Chunk{Slice: 8000}, 4, 1, 1, 0, 2000, 8000, 8000, 8000},
		{Chunk{Context: 24000, Slice: 8000, More: true}, 4, 1, 1, 3, 2000, 8000, 32000, 8000},
		{Chunk{Context: 24000, Slice: 8000, Whole: []Documents{{100, 4}}}, 2, 2, 1, 2, 4200, 8400, 32000, 8000},
		{Chunk{Slice: 60, More: true, Whole: []Documents{{100, 4}}}, 2, 2, 1, 0, 230, 460, 460, 60},
		{Chunk{Whole: []Documents{{1000, 2}}}, 1, 4, 2, 0, 2000, 2000, 2000, 0},
	} {
		heads, kv := float64(c.heads), float64(c.kv)
		kept := c.tokens*(e*(4*hidden+3*ffn)+2*4) + c.all*(e*2*(heads+kv)*d+4*heads)
		if c.n > 1 {
			kept += c.tokens * e * 4 * d
		}
		again := c.tokens * e * hidden
		gradients := 0.0
		if c.x.More {
			again += e * 2 * c.slice * kv * d
			gradients = 4 * 2 * c.slice * kv * d
		}
		// Beside: gradients of the layer's output and of what goes into the activation; or of
		// the attention's output, queries, keys and values in float32, and what a kernel takes
		// and gives, when what the MLP kept is free again; or those once more in one piece.
		mlp := c.tokens * e * (hidden + 2*ffn)
		block := max(c.all, c.widest)
		ring := (e+4)*c.all*heads*d + 4*2*c.all*kv*d + e*c.all*heads*d + 2*block*kv*d*e
		if c.kv < c.heads {
			ring += 2 * block * heads * d * e
		}
		pieces := 4 * (2*c.all*heads*d + 4*c.all*kv*d)
		transient := max(mlp, max(ring, pieces)-c.tokens*e*3*ffn)
		logits := min(c.tokens, 300) * 1000 * 8
		want := ChunkBytes{Kept: kept, Again: again, Gradients: gradients, Transient: transient, Logits: logits}
		got := job.ChunkMemory(c.x, 1/float64(c.n), c.first, c.heads, c.n, DeviceMemory{})
		if got != want {
			t.Errorf("%+v on %d ranks: %+v, want %+v", c.x, c.n, got, want)
		}
		// The job's own depth and recomputation are of no account.
		other := job
		other.Model.Layers, other.Recompute, other.SeqLen = 1, RecomputeFull, 7
		if again := other.ChunkMemory(c.x, 1/float64(c.n), c.first, c.heads, c.n, DeviceMemory{}); again != got {
			t.Errorf("%+v: %+v of another depth, %+v", c.x, again, got)
		}
		// What was measured of a layer replaces what it keeps, and nothing else.
		measured := units.Bytes(2 * job.LayerActivations())
		if twice := job.ChunkMemory(c.x, 1/float64(c.n), c.first, c.heads, c.n, DeviceMemory{LayerToken: measured}); twice.Kept != 2*kept || twice.Again != again || twice.Transient != transient {
			t.Errorf("%+v, measured at twice the formula: %+v, want %v kept", c.x, twice, 2*kept)
		}
	}
}

// A layer of the small model has 256 x 512 of queries, keys and values, 256 x 256 behind the
// attention, 256 x 1376 and 688 x 256 of the MLP and two norms of 256; a table is 1000 x 256.
// In float32 a parameter has 4 bytes, its gradient 4 and the optimizer 8 more; in bf16 2, 2
// and 12.
func TestStageStatesByHand(t *testing.T) {
	const layer, table = 256*512 + 256*256 + 256*1376 + 688*256 + 2*256, 1000 * 256
	up := func(bytes, n int64) int64 { return int64(math.Ceil(float64(bytes) / float64(n))) }
	job := testJob(Cluster{}, []units.Tokens{1})
	for _, dtype := range []op.DType{op.F32, op.BF16} {
		e := int64(4)
		if dtype == op.BF16 {
			e = 2
		}
		for _, n := range []int64{1, 3, 8} {
			for _, tables := range []int64{0, 1, 2} {
				const layers = 5
				rest := 2*e*tables*table + up((16-2*e)*tables*table, n)
				for zero, want := range map[ZeRO]int64{
					Zero0: 16 * layers * layer,
					Zero1: 2*e*layers*layer + up((16-2*e)*layers*layer, n),
					Zero2: e*layers*layer + up((16-e)*layers*layer, n),
					Zero3: up(16*layers*layer, n) + 2*e*layer,
					"":    up(16*layers*layer, n) + 2*e*layer,
				} {
					job.DType, job.Zero = dtype, zero
					if got := job.StageStates(layers, int(n), int(tables)); int64(got) != want+rest {
						t.Errorf("%s, %q, %d layers and %d tables on %d ranks: %d bytes, want %d", dtype, zero, layers, tables, n, int64(got), want+rest)
					}
				}
			}
		}
	}
}

func TestStageTables(t *testing.T) {
	for _, x := range []struct{ first, last, tied, want int }{{0, 0, 0, 0}, {1, 0, 0, 1}, {0, 1, 0, 1}, {1, 1, 0, 2}, {0, 0, 1, 0}, {1, 0, 1, 1}, {0, 1, 1, 1}, {1, 1, 1, 1}} {
		m := smallModel()
		m.TiedEmbeddings = x.tied == 1
		if got := m.StageTables(x.first == 1, x.last == 1); got != x.want || m.TableParams() != 256000 {
			t.Errorf("%+v: %d tables of %d", x, got, m.TableParams())
		}
	}
}

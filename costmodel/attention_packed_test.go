package costmodel

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func drawPacked(t *rapid.T) op.Varlen {
	kv := rapid.IntRange(1, 8).Draw(t, "kv_heads")
	v := op.Varlen{QHeads: kv * rapid.IntRange(1, 8).Draw(t, "group"), KVHeads: kv, HeadDim: 128, DType: op.BF16}
	for range rapid.IntRange(1, 12).Draw(t, "documents") {
		v.SeqLens = append(v.SeqLens, units.Tokens(math.Exp2(rapid.Float64Range(0, 15).Draw(t, "tokens"))))
	}
	return v
}

// Equal causal blocks are the same work whether a batch or packed: all of the geometry is
// the same but for what only packed documents have, and one block takes the same time.
func TestPackedBlocksAreABatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, a := drawCore(t), drawAttention(t)
		a.Mask, a.KVLen, a.Window, c.SplitKV = op.Diag, a.QLen, 0, false
		backward := rapid.Bool().Draw(t, "backward")
		v, ok := a.Documents()
		if !ok || len(v.SeqLens) != a.Blocks() {
			t.Fatalf("%+v as documents: %+v, %v", a, v, ok)
		}
		batch, pack := c.Geometry(a, backward), c.PackedGeometry(&v, backward)
		near := cmpopts.EquateApprox(1e-9, 0)
		if d := cmp.Diff(batch, pack, near, cmpopts.IgnoreFields(AttentionGeometry{}, "Late")); d != "" {
			t.Fatal(d)
		}
		if one, want := c.PackedSeconds(&v, backward), c.Seconds(a, backward); a.Blocks() == 1 && math.Abs(one/want-1) > 1e-9 {
			t.Fatalf("%v s for one document, %v s for the block", one, want)
		}
	})
}

// The sums over the documents are what a loop over the tasks counts.
func TestPackedGeometryCountsTiles(t *testing.T) {
	c := exampleCore()
	c.Parallel, c.TileRows, c.TileKeys, c.Packed = 10, 64, 32, false
	v := op.Varlen{SeqLens: []units.Tokens{64, 200, 1}, QHeads: 6, KVHeads: 2, HeadDim: 128, DType: op.BF16}
	// 2 tiles of 32 keys; rows that end at 64, 128, 192 and 200: 2, 4, 6 and 7; 1 tile.
	g := c.PackedGeometry(&v, false)
	for name, got := range map[string][2]float64{
		"tiles":   {g.Tiles, 6 * (2 + 4 + 6 + 7 + 2 + 1) / 10.},
		"tasks":   {g.Tasks, 4}, // 36 on 10 units
		"longest": {g.Longest, 7},
		"waiting": {g.Waiting, 1 - 10./36},
		"tokens":  {g.Tokens, 265},
		"q bytes": {g.QBytes, 265 * 6 * 128 * 2},
		"late 1":  {g.Late[0], 7*32/39. - 0.1}, // the second document's, one tile before the end
		"late 4":  {g.Late[2], 4*7*32/39. - 0.1},
	} {
		if math.Abs(got[0]-got[1]) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got[0], got[1])
		}
	}
}

// What is kept of the tail is exact at its factors and with one document, and between and
// beyond them no less than the maximum that it stands for, nor much more.
func TestPackedTailIsTheLatest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g AttentionGeometry
		var longest, behind []float64
		for range rapid.IntRange(1, 8).Draw(t, "documents") {
			longest = append(longest, rapid.Float64Range(1, 500).Draw(t, "longest"))
			behind = append(behind, 0)
		}
		for i := len(longest) - 2; i >= 0; i-- {
			behind[i] = behind[i+1] + rapid.Float64Range(0, 50).Draw(t, "tiles")
		}
		for i, n := range longest {
			g.ends(n, behind[i])
		}
		g.Longest = slices.Max(longest)
		want := func(k float64) float64 {
			most := 0.0
			for i, n := range longest {
				most = max(most, k*fine(n)-behind[i])
			}
			return most
		}
		for _, k := range []float64{0, 0.3, 1, 1.5, 2, 3, 4, 9} {
			got, least := g.late(k), want(k)
			exact := len(longest) == 1 || k == 0 || slices.Contains(lateFactors[:], k)
			if got < least-1e-9 || exact && got > least+1e-9 {
				t.Fatalf("k %v: %v tiles, the latest %v", k, got, least)
			}
			if most := k * fine(g.Longest); got > most+1e-9 {
				t.Fatalf("k %v: %v tiles, the longest alone %v", k, got, most)
			}
		}
	})
}

// Longer documents, more of them and more heads never take less time, whatever the tail
// weighs against the work.
func TestPackedIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, v := drawCore(t), drawPacked(t)
		backward := rapid.Bool().Draw(t, "backward")
		more := units.Tokens(math.Exp2(rapid.Float64Range(0, 13).Draw(t, "more")))
		at := rapid.IntRange(0, len(v.SeqLens)-1).Draw(t, "document")
		bigger := map[string]func(*op.Varlen){
			"tokens":    func(v *op.Varlen) { v.SeqLens[at] += more },
			"documents": func(v *op.Varlen) { v.SeqLens = append(v.SeqLens, more) },
			"kv heads": func(v *op.Varlen) {
				v.QHeads, v.KVHeads = v.QHeads/v.KVHeads*(v.KVHeads+1), v.KVHeads+1
			},
		}
		if !c.Packed || backward { // see Seconds
			bigger["heads"] = func(v *op.Varlen) { v.QHeads += v.KVHeads }
		}
		for name, grow := range bigger {
			b := v
			b.SeqLens = slices.Clone(v.SeqLens)
			grow(&b)
			less, greater := c.PackedSeconds(&v, backward), c.PackedSeconds(&b, backward)
			if greater < less*(1-1e-12) || !(less > 0) || math.IsInf(greater, 0) {
				t.Fatalf("more %s: %v s, then %v s: %+v", name, less, greater, v)
			}
		}
	})
}

// A long document at the end of a pack keeps a few units at work while the others wait; at
// its beginning the others have the rest of the pack to do.
func TestPackedOrderMatters(t *testing.T) {
	c := exampleCore()
	c.Packed, c.Tail = false, 1
	long := op.Varlen{QHeads: 1, KVHeads: 1, HeadDim: 128, DType: op.BF16, SeqLens: []units.Tokens{20000}}
	for range 20 {
		long.SeqLens = append(long.SeqLens, 5000)
	}
	first := c.PackedSeconds(&long, false)
	slices.Reverse(long.SeqLens)
	if last := c.PackedSeconds(&long, false); !(last > 1.01*first) {
		t.Errorf("%v s with the long document first, %v s with it last", first, last)
	}
}

// packedLaw is a law of packed documents with a core, as a document that was read.
func packedLaw(t *testing.T, k op.Kind) *Law {
	t.Helper()
	core := exampleCore()
	law := Law{
		Op: k, Variant: op.Variant{HeadDim: 128, DType: op.BF16}, Device: "fast", Attention: &core, Spread: Spread{Lo: 0.8, Hi: 1.25},
		Range: []AxisRange{{"tokens", 100, 1e5}, {"longest", 10, 1e5}, {"q_heads", 1, 64}, {"kv_heads", 1, 64}},
	}
	data, err := json.Marshal(&law)
	if err != nil {
		t.Fatal(err)
	}
	var back Law
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if err := back.validate(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&law, &back); d != "" {
		t.Fatal(d)
	}
	return &back
}

// packOf is a pack of so many documents.
func packOf(documents int) op.Varlen {
	v := op.Varlen{QHeads: 32, KVHeads: 8, HeadDim: 128, DType: op.BF16}
	for i := range documents {
		v.SeqLens = append(v.SeqLens, units.Tokens(4000/(i+1)+100))
	}
	return v
}

// A law of packed documents has a core or, as in older profiles, a linear body; both are
// read, predict each pass as it is, and allocate nothing. Other ops have no such core.
func TestPackedLaws(t *testing.T) {
	v := packOf(64)
	core := exampleCore()
	for _, s := range []op.Shape{op.AttnVarlenFwd{Varlen: v}, op.AttnVarlenBwd{Varlen: v}} {
		law := packedLaw(t, s.Kind())
		backward := s.Kind() == op.KindAttnVarlenBwd
		e := law.Predict(s)
		if want := core.PackedSeconds(&v, backward); float64(e.Mid) != want || e.Source != Interpolated {
			t.Errorf("%s: %+v, want %v s", s.Kind(), e, want)
		}
		if n := testing.AllocsPerRun(100, func() { law.Predict(s) }); n != 0 {
			t.Errorf("%s: %v allocations", s.Kind(), n)
		}
		if law.Form() != "tiles" {
			t.Errorf("form %q", law.Form())
		}
		old := *law
		old.Attention, old.Linear = nil, &Linear{Parallel: 132, Launch: Coef{Value: 1e-5, Hi: 1}, PerFLOP: Coef{Value: 1e-12, Hi: 1}}
		if err := old.validate(); err != nil {
			t.Error(err)
		}
		if got, want := float64(old.Seconds(s)), old.Linear.seconds(s.(op.Featured)); got != want {
			t.Errorf("%s: %v s by a linear law, want %v", s.Kind(), got, want)
		}
	}
	norm := packedLaw(t, op.KindAttnVarlenFwd)
	norm.Op, norm.Range = op.KindNorm, nil
	if err := norm.validate(); err == nil || !strings.Contains(err.Error(), "the wrong one for norm") {
		t.Errorf("a norm with a core of attention: %v", err)
	}
}

func BenchmarkPacked(b *testing.B) {
	c, v := exampleCore(), packOf(64)
	b.ReportAllocs()
	for b.Loop() {
		c.PackedSeconds(&v, false)
	}
}

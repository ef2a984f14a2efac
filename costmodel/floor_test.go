package costmodel

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// drawCorrection is a correction with a few nodes an axis, as steep as any learnt one.
func drawCorrection(t *rapid.T, tile int, axes ...string) *Field {
	f := &Field{Tile: tile, Decay: rapid.Float64Range(0.1, 5).Draw(t, "decay"), Step: 0.01}
	size := 1
	for _, name := range axes {
		a := FieldAxis{Name: name}
		x := math.Exp2(rapid.Float64Range(0, 6).Draw(t, "first "+name))
		for range rapid.IntRange(1, 5).Draw(t, "nodes of "+name) {
			a.Nodes = append(a.Nodes, x)
			x *= math.Exp2(rapid.Float64Range(0.2, 3).Draw(t, "step of "+name))
		}
		size *= len(a.Nodes)
		f.Axes = append(f.Axes, a)
	}
	for range size {
		f.Values = append(f.Values, int16(rapid.IntRange(-60, 60).Draw(t, "value")))
	}
	return f
}

func drawScale(t *rapid.T) float64 {
	return rapid.SampledFrom([]float64{0, 0.3, 2.94}).Draw(t, "scale")
}

// No block of any length costs less a pair than the floor: with a core's tiles,
// waves, splits and side kernels, and whatever correction lies on top.
func TestFloorPerPairIsBelowEveryBlock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawAttention(t)
		a.Batch, a.Window = 0, 0
		law := &Law{Op: op.KindAttnFwd, Attention: drawCore(t), Scale: drawScale(t)}
		if rapid.Bool().Draw(t, "corrected") {
			law.Correction = drawCorrection(t, law.Attention.TileRows, "q_len", rapid.SampledFrom([]string{"kv_len", "tokens", "blocks"}).Draw(t, "axis"), "gqa")
		}
		as := func(a op.Attention) op.Featured { return op.AttnFwd{Attention: a} }
		if rapid.Bool().Draw(t, "backward") {
			as = func(a op.Attention) op.Featured { return op.AttnBwd{Attention: a} }
		}
		most := units.Tokens(math.Exp2(rapid.Float64Range(0, 17).Draw(t, "most")))
		floor := law.FloorPerPair(a, most, as)
		length := func(name string) units.Tokens {
			return units.Tokens(math.Exp2(rapid.Float64Range(0, math.Log2(float64(most))).Draw(t, name)))
		}
		for range 20 {
			a.QLen, a.KVLen = length("q"), length("kv")
			if a.Mask == op.Diag {
				a.KVLen = a.QLen
			}
			if got := float64(law.Seconds(as(a))) / a.Pairs(); got < floor*(1-1e-12) {
				t.Fatalf("%+v: %v s a pair, below the floor of %v for blocks up to %d", a, got, floor, most)
			}
		}
	})
}

func drawGEMMCore(t *rapid.T) *GEMMCore {
	c := h100Core()
	c.Parallel = rapid.IntRange(1, 300).Draw(t, "parallel")
	for _, k := range c.Coefs() {
		*k.At *= math.Exp(rapid.Float64Range(-2, 2).Draw(t, k.Name))
	}
	return c
}

// No number of tokens costs less a token than the floor.
func TestFloorPerTokenIsBelowEveryProduct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := func(name string, most float64) int {
			return int(math.Exp2(rapid.Float64Range(0, math.Log2(most)).Draw(t, name)))
		}
		law := &Law{Op: op.KindGEMM, GEMM: drawGEMMCore(t), Scale: drawScale(t)}
		if rapid.Bool().Draw(t, "corrected") {
			law.Correction = drawCorrection(t, 0, "m", rapid.SampledFrom([]string{"n", "weights", "tiles"}).Draw(t, "axis"))
		}
		g := op.GEMM{
			Pass: rapid.SampledFrom([]op.Pass{op.Forward, op.DGrad, op.WGrad}).Draw(t, "pass"), DType: law.GEMM.DType,
			M: units.Tokens(size("most", 1<<17)), N: size("n", 1<<16), K: size("k", 1<<16),
		}
		most := g.M
		floor := law.FloorPerToken(g)
		for range 20 {
			g.M = units.Tokens(size("m", float64(most)))
			if got := float64(law.Seconds(g)) / float64(g.M); got < floor*(1-1e-12) {
				t.Fatalf("%+v: %v s a token, below the floor of %v up to %d", g, got, floor, most)
			}
		}
	})
}

// The floor of a large GPU's laws is near what full tiles cost, else no plan's
// gap would tell anything.
func TestFloorsAreTight(t *testing.T) {
	core := exampleCore()
	law := &Law{Op: op.KindAttnFwd, Attention: &core}
	as := func(a op.Attention) op.Featured { return op.AttnFwd{Attention: a} }
	a := op.Attention{Mask: op.Full, QLen: 16384, KVLen: 16384, QHeads: 32, KVHeads: 8, HeadDim: 128, DType: op.BF16}
	if got, floor := float64(law.Seconds(as(a)))/a.Pairs(), law.FloorPerPair(a, 1<<17, as); floor < 0.75*got {
		t.Errorf("attention: floor %v s a pair, a large block costs %v", floor, got)
	}
	gemm := &Law{Op: op.KindGEMM, GEMM: h100Core()}
	g := op.GEMM{Pass: op.Forward, M: 16384, N: 8192, K: 8192, DType: op.BF16}
	if got, floor := float64(gemm.Seconds(g))/float64(g.M), gemm.FloorPerToken(g); floor < 0.75*got {
		t.Errorf("gemm: floor %v s a token, a large product costs %v", floor, got)
	}
}

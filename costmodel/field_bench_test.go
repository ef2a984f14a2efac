package costmodel

import (
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// octavesOf are n nodes from lo up, `step` octaves apart.
func octavesOf(lo, step float64, n int) []float64 {
	nodes := make([]float64, n)
	for i := range nodes {
		nodes[i] = math.Round(lo * math.Exp2(float64(i)*step))
	}
	return nodes
}

// waved is a field over axes whose values vary from node to node.
func waved(tile int, axes ...FieldAxis) *Field {
	size := 1
	for _, a := range axes {
		size *= len(a.Nodes)
	}
	f := &Field{Axes: axes, Tile: tile, Decay: 3, Step: 0.001, Values: make(NodeValues, size)}
	for i := range f.Values {
		f.Values[i] = int16(100 * math.Sin(float64(i)/3))
	}
	return f
}

// correctedAttention is a law with all that a fit to thousands of points gives it.
func correctedAttention(t testing.TB) *Law {
	core := exampleCore()
	width := waved(core.TileRows, FieldAxis{"q_len", octavesOf(16, 1, 12)}, FieldAxis{"blocks", octavesOf(1, 1, 14)})
	for i := range width.Values {
		width.Values[i] -= 3000 // 5 %
	}
	law := &Law{
		Op: op.KindAttnFwd, Variant: block(1, 1, 1, 1).Variant(), Device: "gpu", Attention: &core,
		Correction: waved(core.TileRows, FieldAxis{"q_len", octavesOf(16, 0.5, 24)}, FieldAxis{"batch", octavesOf(1, 1, 9)}, FieldAxis{"q_heads", octavesOf(1, 1, 8)}, FieldAxis{"kv_heads", octavesOf(1, 1, 6)}),
		Width:      width, Range: wide(op.KindAttnFwd), Spread: tenPercent,
	}
	if err := law.validate(); err != nil {
		t.Fatal(err)
	}
	return law
}

func correctedGEMM(t testing.TB) *Law {
	core := h100Core()
	width := waved(0, FieldAxis{"m", octavesOf(1, 1, 16)}, FieldAxis{"weights", octavesOf(4096, 1, 18)})
	for i := range width.Values {
		width.Values[i] -= 3000
	}
	law := &Law{
		Op: op.KindGEMM, Variant: op.GEMM{Pass: op.Forward, DType: core.DType}.Variant(), Device: "gpu", GEMM: core,
		Correction: waved(0, FieldAxis{"m", octavesOf(16, 0.5, 24)}, FieldAxis{"n", octavesOf(64, 0.5, 20)}, FieldAxis{"k", octavesOf(64, 0.5, 20)}),
		Width:      width, Range: wide(op.KindGEMM), Spread: tenPercent,
	}
	if err := law.validate(); err != nil {
		t.Fatal(err)
	}
	return law
}

// predictEach predicts shapes that lie between the nodes of every axis. The
// solver asks so millions of times: 2 microseconds and no allocation are the
// limit.
func predictEach(b *testing.B, law *Law, shapes []op.Shape) {
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		e := law.Predict(shapes[i%len(shapes)])
		if !(e.Lo > 0 && e.Lo < e.Mid && e.Mid < e.Hi) {
			b.Fatalf("%+v", e)
		}
		i++
	}
}

func attentionShapes() []op.Shape {
	var shapes []op.Shape
	for i := range 64 {
		shapes = append(shapes, block(20+i*137, 1+i%5, 3*(1+i%7), 3))
	}
	return shapes
}

func gemmShapes() []op.Shape {
	var shapes []op.Shape
	for i := range 64 {
		shapes = append(shapes, op.GEMM{Pass: op.Forward, M: units.Tokens(17 + 211*i), N: 100 + 97*i, K: 4000 - 31*i, DType: op.BF16})
	}
	return shapes
}

func BenchmarkPredictAttention(b *testing.B) {
	predictEach(b, correctedAttention(b), attentionShapes())
}

func BenchmarkPredictGEMM(b *testing.B) { predictEach(b, correctedGEMM(b), gemmShapes()) }

// What the benchmarks predict allocates nothing.
func TestCorrectedLawsDoNotAllocate(t *testing.T) {
	for _, c := range []struct {
		law    *Law
		shapes []op.Shape
	}{{correctedAttention(t), attentionShapes()}, {correctedGEMM(t), gemmShapes()}} {
		i := 0
		if n := testing.AllocsPerRun(200, func() { c.law.Predict(c.shapes[i%len(c.shapes)]); i++ }); n != 0 {
			t.Errorf("%s: %v allocations a prediction", c.law.Op, n)
		}
	}
}

package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Nodes between measured head counts are 3 2^k and 5 2^k inside the range, none
// beside another, and all that were measured stay.
func TestNodesBetweenCounts(t *testing.T) {
	octaves := func(counts ...float64) []float64 {
		var x []float64
		for _, c := range counts {
			x = append(x, math.Log2(c))
		}
		return x
	}
	for _, c := range []struct{ measured, want []float64 }{
		{[]float64{1, 2, 4, 8, 16}, []float64{1, 2, 3, 4, 5, 6, 8, 10, 12, 16}},
		{[]float64{8, 12, 16, 32}, []float64{8, 10, 12, 16, 20, 24, 32}},
		{[]float64{4, 13}, []float64{4, 5, 6, 10, 13}}, // 12 is too near to 13
		{[]float64{7}, []float64{7}},
	} {
		got := between(octaves(c.measured...))
		if !slices.EqualFunc(got, octaves(c.want...), func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
			var counts []float64
			for _, x := range got {
				counts = append(counts, math.Round(math.Exp2(x)))
			}
			t.Errorf("between %v: %v, want %v", c.measured, counts, c.want)
		}
	}
}

func TestOddPart(t *testing.T) {
	for x, want := range map[float64]float64{1: 1, 2: 1, 64: 1, 3: 3, 12: 3, 40: 5, 96: 3, 14: 7, 1.5: 1.5, 0.5: 0.5} {
		if got := oddPart(x); got != want {
			t.Errorf("%v: %v, want %v", x, got, want)
		}
	}
	if got := oddPart(math.Inf(1)); !math.IsInf(got, 1) {
		t.Errorf("infinity: %v", got)
	}
}

// A library that is a tenth slower at head counts that are no power of two is so
// at one that was not measured: what a law saw at 3, 6 and 12 heads it says of 24,
// rather than what lies half way between 16 and 32.
func TestCorrectionsTellKindsOfCounts(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	dev := coreDevice()
	kind := func(heads int) float64 {
		if oddPart(float64(heads)) > 1 {
			return 1.1
		}
		return 1
	}
	rng := rand.New(rand.NewPCG(1, 61))
	var train, test []Point
	for _, p := range inventedAttention(dev, 1200, 62) {
		a := p.Shape.(op.AttnFwd)
		heads := a.QHeads
		if 3*heads <= 32 && rng.IntN(2) == 0 {
			heads *= 3
		}
		s := attentionShape(int(a.QLen), a.Blocks(), heads, a.KVHeads)
		q := pointOf(dev, s, waves(dev, s.Attention)*kind(heads)*math.Exp(0.01*rng.NormFloat64()))
		if heads == 24 {
			test = append(test, q)
		} else if !slices.ContainsFunc(train, func(p Point) bool { return p.Key == q.Key }) {
			train = append(train, q)
		}
	}
	law := mustCorrect(t, dev, train)
	if slices.Contains(law.Width.Unmeasured[0].Known, 24) || len(test) < 30 {
		t.Fatalf("24 heads are among %v, or %d points are too few", law.Width.Unmeasured[0].Known, len(test))
	}
	body := *law
	body.Correction = nil
	off := func(l *costmodel.Law) float64 {
		return scoreOf(func(s op.Shape) float64 { return float64(l.Seconds(s)) }, test).median
	}
	t.Logf("24 heads: %.1f %% off, %.1f %% without the correction", off(law), off(&body))
	if off(law) > 4 {
		t.Errorf("24 heads: %.1f %% off, where half way between the kinds would be 5 to 10", off(law))
	}
}

// Where every point has as many query heads to a KV head, these follow the
// query heads and have no axis of their own; where not, they keep theirs.
func TestKVHeadsFollow(t *testing.T) {
	dev := coreDevice()
	axes := func(groups ...int) []string {
		var points []Point
		for _, gqa := range groups {
			for heads := gqa; heads <= 64; heads *= 2 {
				s := attentionShape(512, 1, heads, heads/gqa)
				points = append(points, pointOf(dev, s, waves(dev, s.Attention)))
			}
		}
		return attentionField(points, 128).lattices[0].axes
	}
	for _, groups := range [][]int{{1}, {8}} {
		if slices.Contains(axes(groups...), "kv_heads") {
			t.Errorf("%d query heads a KV head, and an axis of KV heads", groups[0])
		}
	}
	if !slices.Contains(axes(1, 8), "kv_heads") {
		t.Error("1 and 8 query heads a KV head, and no axis of KV heads")
	}
	like := attentionShape(512, 1, 32, 4)
	for heads, want := range map[float64]int{64: 8, 8: 1, 2: 1} {
		s := shapeAt(like, []string{"q_len", "q_heads"}, []float64{10, math.Log2(heads)}).(op.AttnFwd)
		if s.QHeads != int(heads) || s.KVHeads != want {
			t.Errorf("%v query heads: %d and %d KV heads, want %d", heads, s.QHeads, s.KVHeads, want)
		}
	}
}

// Lengths of images have nodes of their own, within a tile of another and beside a
// near one, and what is measured within a tile stays apart.
func TestLengthsOfImagesHaveNodes(t *testing.T) {
	dev := coreDevice()
	core := func(s op.Shape) float64 { return waves(dev, s.(op.AttnFwd).Attention) }
	lengths := []float64{400, 512, 1500, 1536}
	slower := map[float64]float64{512: 0.1} // in log time
	var points []Point
	for _, q := range lengths {
		for heads := 1; heads <= 16; heads *= 2 {
			s := attentionShape(int(q), 1, heads, heads)
			s.Mask = op.Full
			points = append(points, pointOf(dev, s, math.Exp(slower[q])*core(s)))
		}
	}
	f, _, err := learnField(attentionField(points, 128), points, core, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range lengths {
		if nodes := f.Axes[0].Nodes; !slices.Contains(nodes, q) {
			t.Errorf("no node of %v tokens among %v", q, nodes)
		}
	}
	for _, p := range points {
		q := costmodel.AxisOf("q_len", p.Shape)
		if got, want := f.Log(p.Shape), slower[q]; math.Abs(got-want) > 0.015 {
			t.Errorf("%v tokens: correction %.3f, want %.3f", q, got, want)
		}
	}
}

// Rows of a GEMM have nodes of their own as long as there may be so many, and share
// those of their tiles beyond.
func TestManyRowsShareNodesOfTiles(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	dev := coreDevice()
	of := func(rows int) *costmodel.Field {
		var points []Point
		for m := 1; m <= rows; m++ {
			points = append(points, pointOf(dev, op.GEMM{Pass: op.Forward, M: units.Tokens(16 * m), N: 4096, K: 4096, DType: op.BF16}, 1e-3*float64(m)))
		}
		law := lawFrom(t, dev, points)
		if law.Correction == nil {
			t.Fatalf("%d lengths: no correction of a law far from its core: %s", rows, law.Form())
		}
		return law.Correction
	}
	if f := of(mostNodesAnAxis); f.Tile != 0 {
		t.Errorf("%d lengths: rounded to tiles of %d", mostNodesAnAxis, f.Tile)
	}
	f := of(4 * mostNodesAnAxis)
	if f.Tile != rowsOfTile {
		t.Fatalf("%d lengths: tiles of %d", 4*mostNodesAnAxis, f.Tile)
	}
	for _, m := range f.Axes[0].Nodes {
		if m > rowsOfTile && m < 64*mostNodesAnAxis && math.Mod(m, rowsOfTile) != 0 {
			t.Errorf("a node at %v rows, inside a tile", m)
		}
	}
}

package costmodel

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// block is a causal call of attention on the axes of attentionAxes.
func block(qLen, batch, qHeads, kvHeads int) op.AttnFwd {
	a := op.Attention{Mask: op.Diag, QLen: units.Tokens(qLen), KVLen: units.Tokens(qLen), QHeads: qHeads, KVHeads: kvHeads, HeadDim: 128, DType: op.BF16}
	if batch > 1 {
		a.Batch = batch
	}
	return op.AttnFwd{Attention: a}
}

func attentionAxes() []string { return []string{"q_len", "batch", "q_heads", "kv_heads"} }

// blockAt is block with its sizes in the order of attentionAxes.
func blockAt(at []float64) op.AttnFwd {
	return block(int(at[0]), int(at[1]), int(at[2]), int(at[3]))
}

// drawField draws a field of up to four axes of attention.
func drawField(t *rapid.T) *Field {
	f := &Field{Decay: rapid.Float64Range(0.1, 20).Draw(t, "decay"), Step: rapid.SampledFrom([]float64{0.001, 0.01, 0.0037}).Draw(t, "step")}
	size := 1
	for _, name := range attentionAxes()[:rapid.IntRange(1, 4).Draw(t, "axes")] {
		axis := FieldAxis{Name: name}
		x := 0
		for range rapid.IntRange(1, 5).Draw(t, "nodes") {
			x += rapid.IntRange(1, 60).Draw(t, "gap")
			axis.Nodes = append(axis.Nodes, float64(x))
		}
		f.Axes = append(f.Axes, axis)
		size *= len(axis.Nodes)
	}
	f.Values = rapid.SliceOfN(rapid.Int16Range(-2000, 2000), size, size).Draw(t, "values")
	return f
}

// plainLog is Log by its definition: the sum over all nodes of the product of
// their hat functions, faded by the octaves beyond the worst axis.
func plainLog(f *Field, at []float64) float64 {
	sum, beyond := 0.0, 0.0
	for node, v := range f.Values {
		weight, rest := 1.0, node
		for a := len(f.Axes) - 1; a >= 0; a-- {
			nodes := f.Axes[a].Nodes
			weight *= hat(nodes, rest%len(nodes), at[a])
			rest /= len(nodes)
		}
		sum += weight * float64(v)
	}
	for a, axis := range f.Axes {
		beyond = max(beyond, math.Log2(axis.Nodes[0]/at[a]), math.Log2(at[a]/axis.Nodes[len(axis.Nodes)-1]))
	}
	return sum * f.Step * math.Exp(-beyond/f.Decay)
}

// hat is 1 at node i, 0 at the others, linear in logarithms between them and
// constant beyond the ends.
func hat(nodes []float64, i int, x float64) float64 {
	x = min(max(x, nodes[0]), nodes[len(nodes)-1])
	switch {
	case x == nodes[i]:
		return 1
	case i > 0 && x < nodes[i] && x > nodes[i-1]:
		return math.Log(x/nodes[i-1]) / math.Log(nodes[i]/nodes[i-1])
	case i < len(nodes)-1 && x > nodes[i] && x < nodes[i+1]:
		return math.Log(nodes[i+1]/x) / math.Log(nodes[i+1]/nodes[i])
	}
	return 0
}

func drawPlace(t *rapid.T) []float64 {
	at := make([]float64, 4)
	for i := range at {
		at[i] = float64(rapid.IntRange(1, 1000).Draw(t, "at"))
	}
	return at
}

func TestFieldIsMultilinearInLogarithms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, at := drawField(t), drawPlace(t)
		if got, want := f.Log(blockAt(at)), plainLog(f, at); math.Abs(got-want) > 1e-12*(1+math.Abs(want)) {
			t.Fatalf("%+v at %v: %v, want %v", f, at, got, want)
		}
	})
}

func TestFieldIsExactAtItsNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawField(t)
		for node, v := range f.Values {
			at, rest := []float64{3, 3, 3, 3}, node
			for a := len(f.Axes) - 1; a >= 0; a-- {
				nodes := f.Axes[a].Nodes
				at[a], rest = nodes[rest%len(nodes)], rest/len(nodes)
			}
			if got := f.Log(blockAt(at)); got != float64(v)*f.Step {
				t.Fatalf("node %d at %v: %v, want %v", node, at, got, float64(v)*f.Step)
			}
		}
	})
}

// Outside, the edge's value falls by e with every Decay octaves of the worst
// axis, on either side, until the core alone speaks.
func TestFieldFadesBeyondItsLattice(t *testing.T) {
	f := &Field{Axes: []FieldAxis{{"q_len", []float64{1024, 4096}}, {"batch", []float64{4, 8}}}, Decay: 2, Step: 0.01, Values: NodeValues{10, 20, 30, 40}}
	for _, c := range []struct {
		qLen, batch int
		want        float64
	}{
		{4096, 8, 0.4},
		{8192, 8, 0.4 * math.Exp(-0.5)},
		{16384, 8, 0.4 * math.Exp(-1)},
		{512, 4, 0.1 * math.Exp(-0.5)},
		{1024, 16, 0.2 * math.Exp(-0.5)},
		{16384, 64, 0.4 * math.Exp(-1.5)}, // three octaves of batch count, not two of tokens besides
		{2048, 2, 0.2 * math.Exp(-0.5)},   // half way between 0.1 and 0.3
	} {
		if got := f.Log(block(c.qLen, c.batch, 8, 8)); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%d tokens, batch %d: %v, want %v", c.qLen, c.batch, got, c.want)
		}
	}
	if far := f.Log(block(1<<30, 8, 8, 8)); far <= 0 || far > 1e-3 {
		t.Errorf("18 octaves beyond: %v", far)
	}
	if none := (*Field)(nil).Log(block(1, 1, 1, 1)); none != 0 {
		t.Errorf("no field says %v", none)
	}
}

// A field stands still where the core's tiles do, on axes of lengths only.
func TestFieldRoundsUpToTiles(t *testing.T) {
	f := &Field{Axes: []FieldAxis{{"q_len", []float64{64, 4096}}, {"batch", []float64{1, 1000}}}, Tile: 128, Decay: 1, Step: 0.001, Values: NodeValues{0, 500, 1000, 1500}}
	at := func(qLen, batch int) float64 { return f.Log(block(qLen, batch, 1, 1)) }
	if at(129, 1) != at(256, 1) || at(1000, 1) != at(1024, 1) {
		t.Error("lengths of one tile differ")
	}
	if at(256, 1) == at(257, 1) || at(64, 1) == at(100, 1) {
		t.Error("beyond a tile, and inside the first, lengths are alike")
	}
	if at(256, 129) == at(256, 256) {
		t.Error("the batch is rounded to tiles")
	}
	rows := &Field{Axes: []FieldAxis{{"m", []float64{64, 4096}}, {"n", []float64{1, 1000}}}, Tile: 64, Decay: 1, Step: 0.001, Values: NodeValues{0, 500, 1000, 1500}}
	of := func(m units.Tokens, n int) float64 { return rows.Log(op.GEMM{M: m, N: n, K: 1}) }
	if of(65, 1) != of(128, 1) || of(128, 1) == of(129, 1) || of(64, 65) == of(64, 128) {
		t.Error("rows of a GEMM are not rounded to tiles, or something else is")
	}
}

func TestAxisOf(t *testing.T) {
	a := op.Attention{Mask: op.Full, QLen: 100, KVLen: 300, QHeads: 12, KVHeads: 4, HeadDim: 64, DType: op.BF16, Batch: 5}
	gemm := op.GEMM{Pass: op.Forward, M: 65, N: 130, K: 7, DType: op.BF16}
	for _, c := range []struct {
		shape op.Shape
		want  map[string]float64
	}{
		{op.AttnFwd{Attention: a}, map[string]float64{"q_len": 100, "kv_len": 300, "q_heads": 12, "kv_heads": 4, "batch": 5, "blocks": 60, "tokens": 500, "gqa": 3}},
		{&op.AttnFwd{Attention: a}, map[string]float64{"q_len": 100}},
		{op.AttnBwd{Attention: a}, map[string]float64{"blocks": 60}},
		{&op.AttnBwd{Attention: a}, map[string]float64{"gqa": 3}},
		{block(10, 1, 6, 2), map[string]float64{"batch": 1, "blocks": 6, "tokens": 10}},
		{gemm, map[string]float64{"m": 65, "n": 130, "k": 7, "tiles": 2 * 3, "weights": 910}},
	} {
		for name, want := range c.want {
			if got := AxisOf(name, c.shape); got != want {
				t.Errorf("%s of %+v: %v, want %v", name, c.shape, got, want)
			}
		}
	}
	for _, s := range []op.Shape{gemm, op.AttnFwd{Attention: a}, op.AdamW{Params: 1}} {
		if got := AxisOf("colour", s); !math.IsNaN(got) {
			t.Errorf("colour of %s: %v", s.Kind(), got)
		}
	}
}

func TestFieldNamesWhatIsWrong(t *testing.T) {
	good := func() *Field {
		return &Field{
			Axes: []FieldAxis{{"m", []float64{1, 2, 4}}, {"n", []float64{64, 128}}}, Decay: 3, Step: 0.001,
			Values: NodeValues{1, 2, 3, 4, 5, 6}, Switches: []Switch{{"m", 1, 2, 0.1, 0.25}},
			Unmeasured: []Unmeasured{{"n", []float64{64, 96, 128}, NodeValues{7, 8, 9, 10, 11, 12}}},
		}
	}
	example := op.GEMM{Pass: op.Forward, M: 1, N: 1, K: 1, DType: op.BF16}
	if err := good().validate(example); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Field){
		`axes[1].axis: "q_len": gemm has no such axis`:                   func(f *Field) { f.Axes[1].Name = "q_len" },
		`axes[1].axis: "m": listed twice`:                                func(f *Field) { f.Axes[1].Name = "m" },
		"axes[0].nodes[2]: 2: want positive numbers that rise":           func(f *Field) { f.Axes[0].Nodes[2] = 2 },
		"axes[0].nodes[0]: 0: want":                                      func(f *Field) { f.Axes[0].Nodes[0] = 0 },
		"axes[1].nodes[1]: +Inf: want":                                   func(f *Field) { f.Axes[1].Nodes[1] = math.Inf(1) },
		"axes[1].nodes[0]: NaN: want":                                    func(f *Field) { f.Axes[1].Nodes[0] = math.NaN() },
		"switches[0]: from 2 to 2, fall 0.1":                             func(f *Field) { f.Switches[0].From = 2 },
		"switches[0].share: 1.5: want 0 to 1":                            func(f *Field) { f.Switches[0].Share = 1.5 },
		"switches[0]: from 1 to 2, fall -1":                              func(f *Field) { f.Switches[0].Fall = -1 },
		"axes: 0: want 1 to 4":                                           func(f *Field) { f.Axes = nil },
		"axes: 5: want 1 to 4":                                           func(f *Field) { f.Axes = append(f.Axes, f.Axes[0], f.Axes[0], f.Axes[0]) },
		"values: 5: the axes have 6 nodes":                               func(f *Field) { f.Values = f.Values[:5] },
		"values: 6: the axes have 0 nodes":                               func(f *Field) { f.Axes[0].Nodes = nil },
		"values: 401 counts of step 0.1: want a log ratio of at most 40": func(f *Field) { f.Step, f.Values[2] = 0.1, -401 },
		"step: 0, decay_octaves 3, tile_tokens 0":                        func(f *Field) { f.Step = 0 },
		"step: 1, ":          func(f *Field) { f.Step = 1 },
		"decay_octaves 0,":   func(f *Field) { f.Decay = 0 },
		"decay_octaves NaN,": func(f *Field) { f.Decay = math.NaN() },
		`unmeasured[0].axis: "kv_len": gemm has no such axis`:         func(f *Field) { f.Unmeasured[0].Axis = "kv_len" },
		"unmeasured[0].known[1]: 64: want positive numbers that rise": func(f *Field) { f.Unmeasured[0].Known[1] = 64 },
		"unmeasured[0].values: 5: the axes have 6 nodes":              func(f *Field) { f.Unmeasured[0].Values = f.Unmeasured[0].Values[:5] },
		`unmeasured[1].axis: "n": listed twice`:                       func(f *Field) { f.Unmeasured = append(f.Unmeasured, f.Unmeasured[0]) },
		"values: 30000 counts of step 0.1: want a log ratio":          func(f *Field) { f.Step, f.Unmeasured[0].Values[1] = 0.1, 30000 },
		"tile_tokens -1: want 0 < step < 1, 0 < decay <= 100, tile":   func(f *Field) { f.Tile = -1 },
	} {
		f := good()
		spoil(f)
		if err := f.validate(example); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

// A field of widths holds other values at counts that are none of those
// measured; a correction at the same shape does not know of them.
func TestWidthsTellMeasuredCountsFromOthers(t *testing.T) {
	f := &Field{
		Axes: []FieldAxis{{"q_len", []float64{1024, 4096}}}, Decay: 2, Step: 0.01, Values: NodeValues{-300, -200},
		Unmeasured: []Unmeasured{{Axis: "q_heads", Known: []float64{1, 8, 64}, Values: NodeValues{-150, -50}}},
	}
	for _, c := range []struct {
		heads        int
		short, width float64
	}{{1, -3, -2.5}, {8, -3, -2.5}, {64, -3, -2.5}, {2, -1.5, -1}, {7, -1.5, -1}, {63, -1.5, -1}, {128, -1.5, -1}} {
		if got := f.WidthLog(block(1024, 1, c.heads, 1)); got != c.short {
			t.Errorf("%d heads, at a node: %v, want %v", c.heads, got, c.short)
		}
		if got := f.WidthLog(block(2048, 3, c.heads, 1)); math.Abs(got-c.width) > 1e-12 {
			t.Errorf("%d heads, between nodes: %v, want %v", c.heads, got, c.width)
		}
		if got := f.Log(block(1024, 1, c.heads, 1)); got != -3 {
			t.Errorf("%d heads: a correction of %v, want -3", c.heads, got)
		}
	}
	core := exampleCore()
	law := Law{Op: op.KindAttnFwd, Attention: &core, Width: f, Range: wide(op.KindAttnFwd), Spread: tenPercent}
	for heads, half := range map[int]float64{8: math.Exp(-3), 12: math.Exp(-1.5)} {
		e := law.Predict(block(1024, 1, heads, 1))
		if got := math.Log(float64(e.Hi / e.Mid)); math.Abs(got-half) > 1e-9 {
			t.Errorf("%d heads: half a width of %v, want %v", heads, got, half)
		}
	}
}

// Beyond all measured rows of a product the widths are those of measured ones; between them
// others hold.
func TestWidthsBeyondAllRows(t *testing.T) {
	f := Field{
		Axes: []FieldAxis{{Name: "m", Nodes: []float64{64, 4096}}}, Step: 0.01, Decay: math.Inf(1), Values: NodeValues{-200, -200},
		Unmeasured: []Unmeasured{{Axis: "m", Known: []float64{64, 4096}, Values: NodeValues{-100, -100}}},
	}
	for m, want := range map[units.Tokens]float64{32: -2, 64: -2, 65: -1, 4096: -2, 8192: -2} {
		if got := f.WidthLog(op.GEMM{M: m, N: 64, K: 64, DType: op.BF16, Pass: op.Forward}); math.Abs(got-want) > 1e-9 {
			t.Errorf("%d rows: %v, want %v", m, got, want)
		}
	}
}

// Between measured lengths of attention, too, and at every head count that was not measured.
func TestWidthsBetweenLengths(t *testing.T) {
	f := Field{
		Axes: []FieldAxis{{Name: "q_len", Nodes: []float64{64, 4096}}}, Step: 0.01, Decay: math.Inf(1), Values: NodeValues{-200, -200},
		Unmeasured: []Unmeasured{
			{Axis: "q_len", Known: []float64{64, 4096}, Values: NodeValues{-100, -100}},
			{Axis: "q_heads", Known: []float64{8}, Values: NodeValues{-50, -50}},
		},
	}
	both := math.Log(math.Exp(-2)+math.Exp(-1)-math.Exp(-4)) / 2
	for _, c := range []struct {
		q, heads int
		want     float64
	}{{32, 8, -2}, {64, 8, -2}, {65, 8, -1}, {4096, 8, -2}, {8192, 8, -2}, {64, 4, -0.5}, {64, 16, -0.5}, {65, 16, both}} {
		if got := f.WidthLog(block(c.q, 1, c.heads, 1)); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%d tokens, %d heads: %v, want %v", c.q, c.heads, got, c.want)
		}
	}
}

func TestFieldDoesNotAllocate(t *testing.T) {
	f := &Field{Axes: []FieldAxis{{"q_len", []float64{1024, 4096}}, {"batch", []float64{4, 8}}}, Decay: 2, Step: 0.01, Values: NodeValues{10, 20, 30, 40}}
	var s op.Shape = block(3000, 5, 8, 8)
	f.Unmeasured = []Unmeasured{{Axis: "q_heads", Known: []float64{1, 2}, Values: f.Values}}
	if n := testing.AllocsPerRun(100, func() { f.Log(s); f.WidthLog(s) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

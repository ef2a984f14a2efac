package costmodel

import (
	"math"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Inside the range on every axis, and yet larger than all that was measured: a product lies
// outside by its cells, an attention by the root of them.
func TestShapesOfMoreCellsLieOutside(t *testing.T) {
	product := Law{
		Op: op.KindGEMM, GEMM: h100Core(), Spread: tenPercent, Widen: 1,
		Range: []AxisRange{{"m", 1, 8192}, {"n", 128, 8192}, {"k", 128, 8192}}, MaxCells: 1 << 30,
	}
	of := func(m, n, k int) op.GEMM {
		return op.GEMM{Pass: op.Forward, M: units.Tokens(m), N: n, K: k, DType: op.BF16}
	}
	for _, c := range []struct {
		s      op.GEMM
		beyond float64
		source Source
	}{
		{of(1024, 1024, 1024), 0, Interpolated},
		{of(1, 8192, 8192), 0, Interpolated},
		{of(1100, 1024, 1024), math.Log2(1100. / 1024), Interpolated},
		{of(4096, 4096, 1024), 4, Extrapolated},
		{of(8192, 8192, 16384), 10, Extrapolated},
		{of(1, 16, 128), 3, Extrapolated},
	} {
		e := product.Predict(c.s)
		if got := product.Beyond(c.s); math.Abs(got-c.beyond) > 1e-9 || e.Source != c.source {
			t.Errorf("%+v: %v doublings beyond, %s, want %v, %s", c.s, got, e.Source, c.beyond, c.source)
		}
		if got, want := float64(e.Hi/e.Mid), math.Pow(1.1, 1+c.beyond); math.Abs(got/want-1) > 1e-9 {
			t.Errorf("%+v: up to %v times the time, want %v", c.s, got, want)
		}
	}

	core := exampleCore()
	attention := Law{Op: op.KindAttnFwd, Attention: &core, Range: wide(op.KindAttnFwd), Spread: tenPercent, MaxCells: 2 * 1024 * 1024 * 8}
	for s, want := range map[op.Shape]float64{block(1024, 2, 8, 8): 0, block(4096, 2, 8, 8): 2, block(1024, 8, 32, 8): 2} {
		if got := attention.Beyond(s); math.Abs(got-want) > 1e-9 {
			t.Errorf("%+v: %v doublings beyond, want %v", s, got, want)
		}
	}
	attention.MaxCells = 0
	if got := attention.Beyond(block(4096, 2, 8, 8)); got != 0 {
		t.Errorf("of unknown cells: %v doublings beyond", got)
	}
}

// A correction that was learnt from blocks of equal lengths, or of one query head a KV head,
// tells nothing of others: they lie outside, and the interval says so.
func TestLengthsAndHeadsThatWereNeverMeasuredTogether(t *testing.T) {
	core := exampleCore()
	of := func(axes ...string) *Law {
		f := &Field{Decay: 3, Step: 0.001, Values: make(NodeValues, 1)}
		for _, name := range axes {
			f.Axes = append(f.Axes, FieldAxis{name, []float64{1}})
		}
		return &Law{Op: op.KindAttnFwd, Attention: &core, Correction: f, Range: wide(op.KindAttnFwd), Spread: tenPercent}
	}
	shape := func(q, kv units.Tokens, qHeads int) op.AttnFwd {
		return op.AttnFwd{Attention: op.Attention{Mask: op.Full, QLen: q, KVLen: kv, QHeads: qHeads, KVHeads: 8, HeadDim: 128, DType: op.BF16}}
	}
	squares, apart := of("q_len", "batch", "q_heads"), of("q_len", "kv_len", "blocks", "gqa")
	for _, c := range []struct {
		law            *Law
		s              op.AttnFwd
		beyond, untold float64
	}{
		{squares, shape(1024, 1024, 8), 0, 0},
		{squares, shape(1024, 1025, 8), math.Log2(1025. / 1024), 0.12 * math.Log2(1025./1024)},
		{squares, shape(1024, 4096, 8), 2, 0.24},
		{squares, shape(4096, 512, 8), 3, 0.36},
		{squares, shape(1024, 1024, 32), 2, 0.24},
		{squares, shape(1024, 8192, 128), 4, 0.12 * 5}, // of lengths 3, of heads 4
		{apart, shape(1024, 4096, 8), 0, 0},
		{apart, shape(1024, 4096, 16), 1, 0.12},
	} {
		e := c.law.Predict(c.s)
		own := (1 + c.beyond) * math.Log(1.1)
		if got := math.Log(float64(e.Hi / e.Mid)); math.Abs(c.law.Beyond(c.s)-c.beyond) > 1e-9 || math.Abs(got-math.Hypot(own, c.untold)) > 1e-9 {
			t.Errorf("%+v: %v doublings beyond, up to exp(%v) times the time, want %v, exp(%v)", c.s, c.law.Beyond(c.s), got, c.beyond, math.Hypot(own, c.untold))
		}
		if want := c.beyond > rangeSlack; want != (e.Source == Extrapolated) {
			t.Errorf("%+v: %s", c.s, e.Source)
		}
	}
}

// No time is shorter than the FLOPs at the peak take, nor does an interval reach below that.
func TestNoCallBeatsThePeak(t *testing.T) {
	s := op.GEMM{Pass: op.Forward, M: 8192, N: 8192, K: 8192, DType: op.BF16}
	law := Law{Op: op.KindGEMM, GEMM: h100Core(), Range: wide(op.KindGEMM), Spread: Spread{Lo: 0.5, Hi: 2}}
	free := law.Seconds(s)
	flops := float64(s.Work().FLOPs)

	law.Peak = units.FLOPsPerS(flops / float64(free) / 0.8)
	e := law.Predict(s)
	if e.Mid != free || math.Abs(float64(e.Lo/free)-0.8) > 1e-9 {
		t.Errorf("%v from %v, want %v from 0.8 of it", e.Mid, e.Lo, free)
	}
	law.Peak = units.FLOPsPerS(flops / float64(free) / 3)
	if e := law.Predict(s); math.Abs(float64(e.Mid/free)-3) > 1e-9 || e.Lo != e.Mid || math.Abs(float64(e.Hi/e.Mid)-2) > 1e-9 {
		t.Errorf("%+v, want %v and no less, up to twice as much", e, 3*free)
	}
	for by, want := range map[float64]float64{0.5: 3, 2: 3, 4: 4} { // the peak is the device's
		slowed := law.Slowed(by)
		if got := slowed.Seconds(s); math.Abs(float64(got/free)-want) > 1e-9 {
			t.Errorf("times %v: %v, want %v times %v", by, got, want, free)
		}
	}
	for want, spoil := range map[string]func(*Law){
		"peak_flops_per_s: -1: want a rate of at least 1":     func(l *Law) { l.Peak = -1 },
		"peak_flops_per_s: 1e-300: want a rate of at least 1": func(l *Law) { l.Peak = 1e-300 },
		"peak_flops_per_s: +Inf":                              func(l *Law) { l.Peak = units.FLOPsPerS(math.Inf(1)) },
		"peak_flops_per_s: only compute ops":                  func(l *Law) { *l = toySendRecv(); l.Peak = 1 },
		"range_max_cells: NaN: want 0 to":                     func(l *Law) { l.MaxCells = math.NaN() },
		"range_max_cells: 1e+60: want 0 to":                   func(l *Law) { l.MaxCells = 1e60 },
		"range_max_cells: 5: want 0 to 0":                     func(l *Law) { *l = toySendRecv(); l.MaxCells = 5 },
	} {
		l := law
		l.Device = "d"
		spoil(&l)
		if err := l.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func toySendRecv() Law {
	return Law{Op: op.KindSendRecv, Group: "g", Curve: wireLine(1e-6, 1e9), Range: everySize(op.KindSendRecv), Spread: tenPercent}
}

// Of a product with neither rows nor columns measured each adds to the width what it would
// alone.
func TestWidthsWhereSeveralAxesWereNotMeasured(t *testing.T) {
	f := &Field{
		Axes: []FieldAxis{{"m", []float64{64, 4096}}}, Decay: 100, Step: 0.001, Values: NodeValues{-3000, -3000},
		Unmeasured: []Unmeasured{
			{Axis: "m", Known: []float64{64, 4096}, Values: NodeValues{-2000, -2000}},
			{Axis: "n", Known: []float64{128, 256, 512}, Values: NodeValues{-1000, -1000}},
		},
	}
	at := func(m, n int) float64 {
		return math.Exp(f.WidthLog(op.GEMM{M: units.Tokens(m), N: n, K: 64, DType: op.BF16, Pass: op.Forward}))
	}
	known, rows, columns := math.Exp(-3), math.Exp(-2), math.Exp(-1)
	for _, c := range []struct {
		m, n int
		want float64
	}{
		{64, 128, known},
		{65, 128, rows},
		{64, 200, columns},
		{65, 200, math.Sqrt(rows*rows + columns*columns - known*known)},
		{65, 1024, rows}, // beyond all columns the law itself widens
	} {
		if got := at(c.m, c.n); math.Abs(got/c.want-1) > 1e-9 {
			t.Errorf("%d rows, %d columns: %v, want %v", c.m, c.n, got, c.want)
		}
	}
}

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

// A library that treats every head count a little differently: what it does at
// one count shows at no other, so that intervals must be wider at counts that
// were not measured, and hold there what they promise.
func TestIntervalsAreWiderAtUnmeasuredCounts(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	dev := coreDevice()
	taste := func(heads float64) float64 {
		return math.Exp(0.06 * rand.New(rand.NewPCG(uint64(heads), 41)).NormFloat64())
	}
	var train, test []Point
	for _, p := range inventedAttention(dev, 1200, 42) {
		h := costmodel.AxisOf("q_heads", p.Shape)
		p.Seconds *= taste(h)
		// Counts of 2^k stay, so that others lie between them.
		train = append(train, p)
		a := p.Shape.(op.AttnFwd)
		s := attentionShape(int(a.QLen), a.Blocks(), 3*a.QHeads, a.KVHeads)
		if h > 1 && h < 16 {
			test = append(test, pointOf(dev, s, waves(dev, s.Attention)*taste(3*h)*math.Exp(fieldNoise*rand.New(rand.NewPCG(hashOf(p.Key), 43)).NormFloat64())))
		}
	}
	law := mustCorrect(t, dev, train)
	if few := mustCorrect(t, dev, train[:fewToRefit+50]).Width.Unmeasured; few == nil {
		t.Error("a law of 200 points takes unmeasured counts for measured ones")
	}
	if len(law.Width.Unmeasured) != 2 {
		t.Fatalf("%+v", law.Width.Unmeasured)
	}
	u := law.Width.Unmeasured[0]
	if u.Axis != "q_heads" || !slices.Contains(u.Known, 8) || slices.Contains(u.Known, 12) {
		t.Fatalf("%+v", u)
	}
	for i, v := range law.Width.Values {
		if u.Values[i] < v {
			t.Errorf("node %d: %d at unmeasured counts, %d at measured ones", i, u.Values[i], v)
		}
	}
	known, other := coverage(law, train), coverage(law, test)
	blind := *law
	width := *law.Width
	blind.Width, width.Unmeasured = &width, width.Unmeasured[1:]
	without := coverage(&blind, test)
	t.Logf("inside: %.2f at measured counts, %.2f at others, %.2f of these without widths of their own", known, other, without)
	if known < 0.85 || other < 0.8 || without > other-0.1 {
		t.Errorf("inside: %.2f at measured counts, %.2f at others, %.2f of these without widths of their own", known, other, without)
	}
}

// Short calls are off by much now and then, long ones by about as much every time: of both
// an interval holds the share that it promises, though the same multiple of their mean
// errors does not.
func TestWidthsHoldWhateverTheTails(t *testing.T) {
	points := inventedAttention(coreDevice(), 1400, 46)
	r := rand.New(rand.NewPCG(46, 1))
	short := func(p Point) bool { return costmodel.AxisOf("q_len", p.Shape) < 2048 }
	logs := make([]float64, len(points))
	for i, p := range points {
		logs[i] = 0.03 + 0.02*r.Float64()
		if short(p) {
			logs[i] = 0.01 * math.Exp(1.5*r.NormFloat64())
		}
	}
	w := attentionField(points, 64).widths(points, unseenErrors{logs: logs, apart: []errorsApart{{"q_heads", make([]float64, len(points))}}}, 0.9)
	in, all := map[bool]float64{}, map[bool]float64{}
	for i, p := range points {
		all[short(p)]++
		if logs[i] <= math.Exp(w.WidthLog(p.Shape)) {
			in[short(p)]++
		}
	}
	for s, n := range all {
		if held := in[s] / n; n < 300 || math.Abs(held-0.9) > 0.05 {
			t.Errorf("short calls %v: %.3f of %.0f points inside, want 0.9", s, held, n)
		}
	}
	t.Log(in, all)
}

// Most points are met exactly, as simulated ones without noise: the others' errors still
// have widths that are numbers.
func TestWidthsWhereMostErrorsAreNone(t *testing.T) {
	points := inventedAttention(coreDevice(), 400, 47)
	u := noErrors(points)
	for i := range u.logs {
		if i%9 == 0 {
			u.logs[i] = 0.05
		}
	}
	w := attentionField(points, 64).widths(points, u, 0.9)
	in := 0.0
	for i, p := range points {
		at := math.Exp(w.WidthLog(p.Shape))
		if !(at < 1) {
			t.Fatalf("%s: half a width of %v", p.Key, at)
		}
		if math.Abs(u.logs[i]) <= at {
			in += 1 / float64(len(points))
		}
	}
	if in < 0.85 {
		t.Errorf("%.2f of the points inside, want 0.9", in)
	}
}

// Errors of nothing, as of simulated times without noise, have widths too.
func TestWidthsOfNoErrors(t *testing.T) {
	points := inventedAttention(coreDevice(), 200, 44)
	shape := attentionField(points, 64)
	w := shape.widths(points, noErrors(points), 0.9)
	for _, p := range points {
		if at := w.WidthLog(p.Shape); !(at < -20) {
			t.Fatalf("%s: half a width of exp(%v)", p.Key, at)
		}
	}
}

// What powers of two leave untold of other counts fades with the keys that a
// query sees, which a window bounds, and is half as much of older kernels.
func TestUntoldCounts(t *testing.T) {
	const half = olderKernels
	for _, c := range []struct {
		arch         string
		mask         op.Mask
		window, keys int
		want         float64
	}{
		{"sm90", op.Diag, 0, 512, untoldCausal},
		{"sm90", op.Diag, 0, 8192, untoldCausal * shownKeys / 8192},
		{"sm90", op.Diag, 128, 8192, untoldCausal},
		{"", op.Diag, 0, 512, untoldCausal},
		{"sm80", op.Diag, 0, 512, untoldCausal * half},
		{"sm120", op.Diag, 0, 8192, untoldCausal * half * shownKeys / 8192},
		{"sm100", op.Full, 0, 1024, untoldFull},
		{"sm100", op.Full, 0, 16384, untoldFull * shownKeys / 16384},
	} {
		var points []Point
		for q := 128; q <= 32768; q *= 2 {
			for heads := 1; heads <= 64; heads *= 2 {
				a := attentionShape(q, 1, heads, heads)
				a.Mask, a.Window = c.mask, units.Tokens(c.window)
				points = append(points, Point{Shape: a, Seconds: 1})
			}
		}
		dev := op.DeviceType{Sheet: op.Sheet{Arch: c.arch}}
		w := attentionField(points, 0).on(dev).widths(points, noErrors(points), 0.9)
		a := attentionShape(c.keys, 1, 7, 7)
		if got := math.Exp(w.WidthLog(a)); math.Abs(got/c.want-1) > 0.01 {
			t.Errorf("%s, %s of %d keys, window %d: half a width of %.4f at 7 heads, want %.4f", c.arch, c.mask, c.keys, c.window, got, c.want)
		}
	}
}

// A law's interval grows beyond the range by its kind's share of itself where it
// is wide at the end of the range, and by untoldBeyond where it is exact there.
func TestGrowthBeyondTheRange(t *testing.T) {
	points := inventedAttention(coreDevice(), 300, 45)
	for _, c := range []struct {
		arch         string
		errors, want float64
	}{
		{"sm90", 0.5, widenCausal},
		{"sm80", 0.5, widenCausal * olderKernels},
		{"sm90", 0.02, math.Hypot(1+widenCausal, untoldBeyond/0.02) - 1},
		{"sm90", 1e-9, mostGrowth},
	} {
		u := noErrors(points)
		for i := range u.logs {
			u.logs[i] = c.errors
		}
		shape := attentionField(points, 64).on(op.DeviceType{Sheet: op.Sheet{Arch: c.arch}})
		if got := shape.growth(points, shape.widths(points, u, 0.9)); math.Abs(got/c.want-1) > 0.02 {
			t.Errorf("%s, errors of %v: grows by %.3f a doubling, want %.3f", c.arch, c.errors, got, c.want)
		}
	}
}

func noErrors(points []Point) unseenErrors {
	return unseenErrors{logs: make([]float64, len(points)), apart: []errorsApart{{"q_heads", make([]float64, len(points))}}}
}

// A library that treats every number of a product's rows, columns or inner lengths a little
// differently: intervals are wider at numbers that were not measured, by what the measured ones
// say of each other, and the time is as it was. Where hundreds were measured any other lies near
// some.
func TestIntervalsAreWiderAtUnmeasuredSides(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	dev := coreDevice()
	for _, c := range []struct {
		axis string
		held []float64
	}{{"m", []float64{16, 96, 256, 384, 1024, 1536, 4096, 6144}}, {"n", nil}, {"k", nil}} {
		var train, test []Point
		all := inventedGEMM(dev, 700, 48)
		if c.held == nil {
			for i, x := range countsOf(c.axis, all) {
				if i%3 == 1 {
					c.held = append(c.held, x)
				}
			}
		}
		for _, p := range all {
			x := costmodel.AxisOf(c.axis, p.Shape)
			p.Seconds *= math.Exp(0.06 * rand.New(rand.NewPCG(uint64(x), 49)).NormFloat64())
			if slices.Contains(c.held, x) {
				test = append(test, p)
			} else {
				train = append(train, p)
			}
		}
		law := mustCorrect(t, dev, train)
		at := slices.IndexFunc(law.Width.Unmeasured, func(u costmodel.Unmeasured) bool { return u.Axis == c.axis })
		if at < 0 || !slices.Equal(law.Width.Unmeasured[at].Known, countsOf(c.axis, train)) {
			t.Fatalf("%s: %+v", c.axis, law.Width.Unmeasured)
		}
		blind, width := *law, *law.Width
		blind.Width, width.Unmeasured = &width, nil
		known, other, without := coverage(law, train), coverage(law, test), coverage(&blind, test)
		t.Logf("%s: %d points of other places; inside: %.2f at measured ones, %.2f at others, %.2f of these without widths of their own", c.axis, len(test), known, other, without)
		if known < 0.85 || other < 0.75 || without > other-0.15 {
			t.Errorf("%s: inside: %.2f at measured places, %.2f at others, %.2f of these without widths of their own", c.axis, known, other, without)
		}
	}
	many := inventedGEMM(dev, 300, 48)
	for i, p := range many {
		g := p.Shape.(op.GEMM)
		p.Seconds *= math.Exp(0.06 * rand.New(rand.NewPCG(uint64(g.M), 49)).NormFloat64())
		g.M += units.Tokens(i % 97)
		many[i] = pointOf(dev, g, p.Seconds)
	}
	for _, u := range mustCorrect(t, dev, many).Width.Unmeasured {
		if u.Axis == "m" {
			t.Errorf("of %d numbers of rows others are taken for unmeasured", len(u.Known))
		}
	}
}

// Of lengths that are whole tiles of 64 rows and of 128 a kernel of either takes about the same
// time: a law that saw powers of two alone cannot know which it is, and is as wide between
// them as that leaves open. At what was measured it is as it was, and where lengths that are
// no whole tiles were measured, too, hardly wider than the errors there.
func TestIntervalsAreWiderBetweenLengths(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	dev := coreDevice()
	kernel := expectedCore(dev, inventedAttention(dev, 4, 51), 64, 64)
	kernel.Parallel, kernel.TileRows, kernel.TileKeys = dev.Parallel, 64, 64
	of := func(seed uint64, draws int, length func(r *rand.Rand) int) []Point {
		r := rand.New(rand.NewPCG(seed, 1))
		var points []Point
		seen := map[string]bool{}
		for range draws {
			q, heads := length(r), 1<<r.IntN(7)
			s := attentionShape(q, 1<<r.IntN(4), heads, heads)
			p := pointOf(dev, s, kernel.Seconds(s.Attention, false)*math.Exp(0.01*r.NormFloat64()))
			if !seen[p.Key] {
				points, seen[p.Key] = append(points, p), true
			}
		}
		return points
	}
	drawn := func(r *rand.Rand) int { return int(128 * math.Exp2(7*r.Float64())) }
	between := func(l *costmodel.Law) (holds, half float64) {
		test := of(52, 300, drawn)
		for _, p := range test {
			e := l.Predict(p.Shape)
			half += math.Log(float64(e.Hi/e.Mid)) / float64(len(test))
		}
		return coverage(l, test), half
	}
	powers := of(53, 600, func(r *rand.Rand) int { return 128 << r.IntN(8) })
	law := lawFrom(t, dev, powers)
	if law.Width == nil {
		t.Fatalf("%s: no widths", law.Form())
	}
	holds, half := between(law)
	blind, width := *law, *law.Width
	blind.Width, width.Unmeasured = &width, nil
	without, _ := between(&blind)
	told, narrow := between(lawFrom(t, dev, of(54, 220, drawn)))
	t.Logf("powers of two: %.2f inside, half a width of %.3f, %.2f without widths between lengths; any lengths: %.2f, %.3f", holds, half, without, told, narrow)
	if holds < 0.8 || without > holds-0.15 || told < 0.8 || narrow > half/2 {
		t.Errorf("powers of two: %.2f inside, half a width of %.3f, %.2f without widths between lengths; any lengths: %.2f, %.3f", holds, half, without, told, narrow)
	}
	for _, p := range powers {
		if a, b := law.Predict(p.Shape), blind.Predict(p.Shape); math.Abs(float64(a.Hi/b.Hi)-1) > 1e-12 {
			t.Fatalf("%s: wider where it was measured", p.Key)
		}
	}
}

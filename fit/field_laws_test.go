package fit

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// The same points give the same profile, in whatever order they come.
func TestCorrectedLawsDoNotDependOnTheOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	dev := coreDevice()
	points := append(inventedAttention(dev, 400, 1), inventedGEMM(dev, 300, 1)...)
	fitted := func() []byte {
		d := NewData()
		d.Devices, d.Points = []op.DeviceType{dev}, points
		p, err := Fit(d, Defaults())
		if err != nil {
			t.Fatal(err)
		}
		if p.Laws[0].Correction == nil || p.Laws[1].Correction == nil {
			t.Fatal("a law has no correction to compare")
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	once := fitted()
	slices.Reverse(points)
	rand.New(rand.NewPCG(7, 7)).Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	if !bytes.Equal(once, fitted()) {
		t.Error("shuffled, the laws are others")
	}
}

// validLaw saves a law in a profile and demands that what it says is finite and
// positive at any valid shape, however far out.
func validLaw(t *testing.T, dev op.DeviceType, law *costmodel.Law) {
	t.Helper()
	p := &costmodel.Profile{Devices: []op.DeviceType{dev}, Laws: []costmodel.Law{*law}}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 15))
	upTo := func(most float64) int { return int(math.Exp2(rng.Float64() * math.Log2(most))) }
	for range 2000 {
		kv := upTo(64)
		s := op.Shape(attentionShape(upTo(1<<24), upTo(1<<10), kv*upTo(32), kv))
		if law.Op == op.KindGEMM {
			s = op.GEMM{Pass: op.Forward, M: units.Tokens(upTo(1 << 24)), N: upTo(1 << 18), K: upTo(1 << 18), DType: op.BF16}
		}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		if e := law.Predict(s); !(e.Lo > 0 && e.Lo <= e.Mid && e.Mid <= e.Hi) || math.IsInf(float64(e.Hi), 0) {
			t.Fatalf("%+v: %+v", s, e)
		}
	}
}

// Whatever a handful of points shows, a law comes out whole.
func TestLawsOfFewOrStrangePoints(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	dev := coreDevice()
	equal := func(points []Point) []Point {
		for i := range points {
			points[i].Seconds = 1e-4
		}
		return points
	}
	along := func(n int) []Point {
		var points []Point
		for i := range n {
			s := attentionShape(128*(i+1), 1, 8, 8)
			points = append(points, pointOf(dev, s, waves(dev, s.Attention)))
		}
		return points
	}
	rows := func(n int) []Point {
		var points []Point
		for i := range n {
			g := op.GEMM{Pass: op.Forward, M: units.Tokens(64 * (i + 1)), N: 4096, K: 4096, DType: op.BF16}
			points = append(points, pointOf(dev, g, 1e-5+float64(g.Work().FLOPs)/2e14))
		}
		return points
	}
	wild := func(points []Point) []Point {
		rng := rand.New(rand.NewPCG(1, 16))
		for i := range points {
			points[i].Seconds = math.Exp(-18 + 18*rng.Float64())
		}
		return points
	}
	sets := map[string][]Point{
		"equal attention": equal(inventedAttention(dev, 120, 2)), "equal gemm": equal(inventedGEMM(dev, 120, 2)),
		"one axis of attention": along(60), "one axis of gemm": rows(60),
		"noise of attention": wild(inventedAttention(dev, 120, 3)), "noise of gemm": wild(inventedGEMM(dev, 120, 3)),
	}
	for name, points := range sets {
		t.Run(name, func(t *testing.T) { validLaw(t, dev, lawFrom(t, dev, points)) })
	}
	for _, n := range []int{fewestToFit, leastField, fewToCorrect, 60} {
		validLaw(t, dev, lawFrom(t, dev, inventedAttention(dev, n, 4)))
		validLaw(t, dev, lawFrom(t, dev, inventedGEMM(dev, n, 4)))
	}
	if _, _, err := learnField(gemmField(), inventedGEMM(dev, leastField-1, 1), func(op.Shape) float64 { return 1 }, nil, nil); err == nil {
		t.Error("learns a field from eleven points")
	}
}

// More points predict unseen ones better, and the correction better than the core.
func TestCorrectionsPay(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	dev := coreDevice()
	test := inventedAttention(dev, 1000, 21)
	law := mustCorrect(t, dev, inventedAttention(dev, 800, 22))
	body := *law
	body.Correction = nil
	whole := scoreOf(func(s op.Shape) float64 { return float64(law.Seconds(s)) }, test)
	core := scoreOf(func(s op.Shape) float64 { return float64(body.Seconds(s)) }, test)
	few := lawFrom(t, dev, inventedAttention(dev, 40, 22))
	little := scoreOf(func(s op.Shape) float64 { return float64(few.Seconds(s)) }, test)
	t.Logf("median errors: %.2f %% with the correction, %.2f %% without, %.2f %% from 40 points", whole.median, core.median, little.median)
	// Noise of 3 % alone has a median error of 0.67 x 3 % = 2 %.
	if whole.median > 0.85*core.median || whole.median > 2.9 || little.median < whole.median {
		t.Errorf("%.2f %% with the correction, %.2f %% without, %.2f %% from 40 points", whole.median, core.median, little.median)
	}
}

// A law of few points whose sibling knows the shape of the correction takes it.
func TestCorrectionsBorrowFromASibling(t *testing.T) {
	sequential(t)
	core := func(s op.Shape) float64 { return float64(s.Work().FLOPs) / 1e14 }
	// Three bumps over tokens that 40 points cannot show.
	times := func(n int, seed uint64) []Point {
		points := inventedAttention(coreDevice(), n, seed)
		rng := rand.New(rand.NewPCG(seed, 17))
		for i := range points {
			q := costmodel.AxisOf("q_len", points[i].Shape)
			points[i].Seconds = core(points[i].Shape) * math.Exp(0.2*math.Sin(3*math.Log2(q))+0.01*rng.NormFloat64())
		}
		return points
	}
	few, test := times(30, 2), times(500, 3)
	shape := attentionField(few, 64)
	sibling, _, err := learnField(attentionField(times(600, 1), 64), times(600, 1), core, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	off := func(prior *costmodel.Field) float64 {
		f, _, err := learnField(shape, few, core, prior, nil)
		if err != nil {
			t.Fatal(err)
		}
		return scoreOf(func(s op.Shape) float64 { return core(s) * math.Exp(f.Log(s)) }, test).median
	}
	alone, helped := off(nil), off(sibling)
	t.Logf("median errors: %.1f %% alone, %.1f %% with a sibling", alone, helped)
	if helped > 0.5*alone {
		t.Errorf("median error %.1f %% alone, %.1f %% with a sibling", alone, helped)
	}
}

// A device of two head widths: the one with few points is fitted with the other
// beside it, and the profile comes back from its file to the last bit.
func TestProfilesWithCorrectionsComeBack(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	dev := coreDevice()
	dev.Model, dev.Stack, dev.Memory = "m", "s", 80<<30
	d := NewData()
	d.Devices, d.Created = []op.DeviceType{dev}, "2026-01-01T00:00:00Z"
	d.Points = append(inventedAttention(dev, 300, 1), inventedGEMM(dev, 300, 1)...)
	for _, p := range inventedAttention(dev, 60, 2) {
		s := p.Shape.(op.AttnFwd)
		s.HeadDim = 64
		d.Points = append(d.Points, pointOf(dev, s, p.Seconds))
	}
	p, err := Fit(d, Defaults())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.profile.json")
	if err := doc.Save(path, p); err != nil {
		t.Fatal(err)
	}
	var back costmodel.Profile
	if err := doc.Load(path, &back); err != nil {
		t.Fatal(err)
	}
	corrected := 0
	for i := range p.Laws {
		if p.Laws[i].Correction != nil {
			corrected++
		}
		for _, q := range d.Points {
			if q.Shape.Kind() != p.Laws[i].Op {
				continue
			}
			if a, b := p.Laws[i].Predict(q.Shape), back.Laws[i].Predict(q.Shape); a != b {
				t.Fatalf("%+v: %+v, from the file %+v", q.Shape, a, b)
			}
		}
	}
	if len(p.Laws) != 3 || corrected < 2 {
		t.Errorf("%d laws, %d with a correction", len(p.Laws), corrected)
	}
}

// Errors whose size varies tenfold from place to place are told apart: of points
// that were not there, nine in ten lie inside the interval, everywhere.
func TestWidthsCoverUnevenErrors(t *testing.T) {
	dev := coreDevice()
	for _, size := range []int{150, 1000} {
		scatter := func(points []Point, seed uint64) []float64 {
			rng := rand.New(rand.NewPCG(seed, 18))
			logs := make([]float64, len(points))
			for i, p := range points {
				sd := 0.2 * math.Pow(costmodel.AxisOf("q_len", p.Shape)/32, -0.25) // 0.2 for short calls, 0.03 for long
				logs[i] = sd * rng.NormFloat64()
			}
			return logs
		}
		points, test := inventedAttention(dev, size, 31), inventedAttention(dev, 1500, 32)
		w := attentionField(points, 64).widths(points, unseenErrors{logs: scatter(points, 33)}, 0.9)
		var in, all [3]float64
		for i, e := range scatter(test, 34) {
			third := min(2, int(math.Log2(costmodel.AxisOf("q_len", test[i].Shape)/32)/3))
			all[third]++
			if math.Abs(e) <= math.Exp(w.Log(test[i].Shape)) {
				in[third]++
			}
		}
		total := (in[0] + in[1] + in[2]) / (all[0] + all[1] + all[2])
		t.Logf("from %d points %.3f, short to long %.3f %.3f %.3f", size, total, in[0]/all[0], in[1]/all[1], in[2]/all[2])
		if total < 0.85 || total > 0.95 {
			t.Errorf("from %d points: %.3f of the others are inside", size, total)
		}
		for third := range in {
			if share := in[third] / all[third]; size >= 1000 && (share < 0.82 || share > 0.97) {
				t.Errorf("from %d points, third %d: %.3f are inside", size, third, share)
			}
		}
	}
}

// What bending takes back of a point's own say is no error of a law without it.
func TestBentIsWhatBendingMovesBeyond(t *testing.T) {
	for _, c := range []struct{ others, all, now, want float64 }{
		{0, 1, 1, 0},
		{0, 1, 0.5, 0},
		{0, 1, 0, 0}, // taken back, in part or all
		{0, 1, -0.5, -0.5},
		{0, 1, 1.25, 0.25}, // moved beyond
		{1, 0, 1.5, 1.5},
		{1, 0, -0.5, 0.5},
		{2, 2, 2.5, 2.5},
	} {
		if got := bent(c.others, c.all, c.now); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("of %v, with the point %v, bent to %v: %v, want %v", c.others, c.all, c.now, got, c.want)
		}
	}
}

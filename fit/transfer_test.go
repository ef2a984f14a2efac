package fit

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile"
)

// halfWidth is that of a law's interval at a shape, in log time.
func halfWidth(l *costmodel.Law, s op.Shape) float64 {
	e := l.Predict(s)
	return math.Log(float64(e.Hi/e.Lo)) / 2
}

// TestLentIntervalsGrowAsTheDonors: a doubling beyond the range adds to a lent law's half
// width what it adds to the donor's, however wide the lent one is; outside points of its own
// also what makes it as unsure as the donor where these tell nothing any more.
func TestLentIntervalsGrowAsTheDonors(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	dev := coreDevice()
	dev.Sheet.Arch = "sm90"
	points := inventedAttention(dev, 400, 3)
	law := costmodel.Law{Op: op.KindAttnFwd, Variant: points[0].Shape.Variant(), Device: dev.Name, Range: hull(op.KindAttnFwd, points)}
	core, _ := coreOf(op.KindAttnFwd, dev)
	if _, err := core.tiled(&law, dev, points, nil); err != nil {
		t.Fatal(err)
	}
	longest := 0
	for _, p := range points {
		longest = max(longest, int(p.Shape.(op.AttnFwd).QLen))
	}
	inside, beyond := attentionShape(longest, 1, 8, 8), attentionShape(8*longest, 1, 8, 8)
	law.Width = nil // the donor's spread is its interval then
	want := halfWidth(&law, beyond) - halfWidth(&law, inside)
	if !(want > 0) {
		t.Fatalf("the donor's interval does not grow: %v", want)
	}
	from := Donor{Law: &law, Device: dev}
	for _, arch := range []string{dev.Sheet.Arch, "sm75"} {
		to := dev
		to.Name, to.Sheet.Arch = "other", arch
		l := from.carry(to)
		l.Peak = 0 // which cuts the interval off from below
		if got := halfWidth(l, beyond) - halfWidth(l, inside); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: three doublings add %.4f to a half width of %.2f, of the donor's %.4f", arch, got, from.width(to), want)
		}
		own := points[:30]
		target := costmodel.Law{Op: law.Op, Variant: law.Variant, Device: to.Name, Range: hull(law.Op, own)}
		lent, _, err := core.lent(&target, to, own, nil, &from)
		if err != nil {
			t.Fatal(err)
		}
		lent.Peak = 0
		last := slices.MaxFunc(own, func(a, b Point) int {
			return int(a.Shape.(op.AttnFwd).QLen - b.Shape.(op.AttnFwd).QLen)
		}).Shape.(op.AttnFwd)
		longer := last
		longer.QLen, longer.KVLen = 8*last.QLen, 8*last.KVLen
		want := max(want, 3*from.width(to)/octavesToUnlike)
		if got := halfWidth(lent, longer) - halfWidth(lent, last); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s, with points: three doublings add %.4f, want %.4f", arch, got, want)
		}
	}
	// A law that is not moved to its only point has that in its interval, however far off.
	for _, off := range []float64{1.01, 1.5, 4} {
		only := points[7]
		only.Seconds = off * float64(law.Seconds(only.Shape))
		lent, _, err := core.lent(&law, dev, []Point{only}, nil, &from)
		if err != nil {
			t.Fatal(err)
		}
		if e := lent.Predict(only.Shape); only.Seconds > float64(e.Hi)*(1+1e-9) {
			t.Errorf("%v times as long as lent: %v s, the interval is %v to %v", off, only.Seconds, e.Lo, e.Hi)
		}
		if got := math.Log(lent.Spread.Hi); off < 1.1 && got >= from.width(dev) {
			t.Errorf("%v times as long as lent: half width %v, promised %v", off, got, from.width(dev))
		}
	}
	law.Spread = costmodel.Spread{Lo: 1, Hi: 1}
	if l := from.carry(dev); l.Widen != leastGrowth {
		t.Errorf("a donor without errors: widen %v, want %v", l.Widen, leastGrowth)
	}
}

// A device whose law is another's, moved to its points, lends that law as it was moved, and
// what is estimated around it is of the points' own time.
func TestMovedLawsAreLentAsMoved(t *testing.T) {
	dev, core := coreDevice(), trueCore()
	points := corePoints(60, 5, 1<<15, false)
	law := &costmodel.Law{Op: op.KindAttnFwd, Variant: points[0].Shape.Variant(), Device: dev.Name, Attention: core, Range: hull(op.KindAttnFwd, points), Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1}}
	for i := range points {
		points[i].Seconds *= 1.4
	}
	second := moved(law, points)
	carried := (&Donor{Law: second, Device: dev}).carry(dev)
	kind, _ := coreOf(op.KindAttnFwd, dev)
	again, err := kind.around(carried, dev, points)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []*costmodel.Law{carried, again} {
		if off := math.Abs(math.Log(float64(l.Seconds(points[0].Shape) / second.Seconds(points[0].Shape)))); off > 0.02 {
			t.Errorf("scale %v: a time is off by %.3f of the donor's, in log", l.Scale, off)
		}
	}
}

// A law's range holds its own points as well as the donor's, whichever of the two have
// batches.
func TestLentRangesHoldOwnPoints(t *testing.T) {
	dev := coreDevice()
	single, batched := attentionShape(4096, 1, 8, 8), attentionShape(1<<15, 8, 8, 8)
	for _, c := range []struct{ donors, own op.AttnFwd }{{single, batched}, {batched, single}} {
		law := &costmodel.Law{Op: op.KindAttnFwd, Variant: c.own.Variant(), Device: dev.Name, Attention: trueCore(), Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1}}
		mine := []Point{pointOf(dev, c.own, 1e-3)}
		law.Range = hull(op.KindAttnFwd, []Point{pointOf(dev, c.donors, 1e-3)})
		target := &costmodel.Law{Op: law.Op, Variant: law.Variant, Device: dev.Name, Range: hull(op.KindAttnFwd, mine)}
		core, _ := coreOf(op.KindAttnFwd, dev)
		lent, _, err := core.lent(target, dev, mine, nil, &Donor{Law: law, Device: dev})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []op.Shape{c.donors, c.own} {
			if beyond := lent.Beyond(s); beyond != 0 {
				t.Errorf("donor with batches of %d, points with %d: %v is %v doublings beyond the range %v", c.donors.Blocks(), c.own.Blocks(), s, beyond, lent.Range)
			}
		}
	}
}

// TestBelievedLawsAnswerForTheirOwnRange: from 20 points on a lent law no longer counts as
// transferred, and what it calls measured is what these are of, not what the donor's were. That
// holds where the donor saw another ratio of query heads to KV heads, too.
func TestBelievedLawsAnswerForTheirOwnRange(t *testing.T) {
	if testing.Short() {
		t.Skip("nothing in it runs beside anything else")
	}
	dev := coreDevice()
	dev.Sheet.Arch = "sm90"
	var donors []Point
	for _, p := range inventedAttention(dev, 150, 3) {
		s := p.Shape.(op.AttnFwd)
		s.KVHeads = s.QHeads
		donors = append(donors, pointOf(dev, s, waves(dev, s.Attention)))
	}
	law := costmodel.Law{Op: op.KindAttnFwd, Variant: donors[0].Shape.Variant(), Device: dev.Name, Range: hull(op.KindAttnFwd, donors)}
	core, _ := coreOf(op.KindAttnFwd, dev)
	if _, err := core.tiled(&law, dev, donors, nil); err != nil {
		t.Fatal(err)
	}
	if law.Correction == nil || law.Correction.Axes[len(law.Correction.Axes)-1].Name == "kv_heads" {
		t.Fatalf("the donor has the correction %v, want one of query heads alone", law.Correction)
	}
	to := dev
	to.Name = "other"
	var lengths, heads []Point
	for i := range 30 {
		s := attentionShape(256<<(i/5)+i*64, 1, 32, 8)
		lengths = append(lengths, pointOf(to, s, waves(to, s.Attention)))
		s = attentionShape(4096, 1, i+1, i+1)
		heads = append(heads, pointOf(to, s, waves(to, s.Attention)))
	}
	for name, own := range map[string][]Point{"lengths": lengths, "heads": heads} {
		target := costmodel.Law{Op: law.Op, Variant: law.Variant, Device: to.Name, Range: hull(law.Op, own)}
		lent, _, err := core.lent(&target, to, own, nil, &Donor{Law: &law, Device: dev})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range own {
			if e := lent.Predict(p.Shape); e.Source != costmodel.Interpolated {
				t.Errorf("%s: its own point %v is %s", name, p.Shape, e.Source)
			}
		}
		inside, outside := attentionShape(4096, 1, 8, 8), attentionShape(512, 1, 8, 8)
		if name == "lengths" {
			inside, outside = attentionShape(4096, 1, 32, 8), attentionShape(4096, 8, 32, 8)
		}
		e, grown := lent.Predict(outside), halfWidth(lent, outside)-halfWidth(lent, inside)
		if e.Source != costmodel.Extrapolated || grown < 3*sameArchWidth/octavesToUnlike || name == "heads" && grown < 2.9*untoldLength {
			t.Errorf("%s: three doublings from them %v is %s, its half width %.3f more", name, outside, e.Source, grown)
		}
	}
}

// TestBeatenCorrectionsAreNotBent: a correction that is no better than what it is compared with is
// given up before the longest part of its making, and one that is better is the same whatever
// that was. A lent law of a device whose own is better is left without.
func TestBeatenCorrectionsAreNotBent(t *testing.T) {
	if testing.Short() {
		t.Skip("nothing in it runs beside anything else")
	}
	dev, points := coreDevice(), inventedAttention(coreDevice(), 60, 3)
	kind, _ := coreOf(op.KindAttnFwd, dev)
	core, err := kind.fit(dev, points, nil)
	if err != nil {
		t.Fatal(err)
	}
	shape, none, errs := kind.field(points, core, dev), make([]float64, len(points)), errorsOn(core, points)
	if _, _, err := learnField(shape, points, bodyOf(core), nil, none); !errors.Is(err, errBeaten) {
		t.Errorf("compared with no errors at all: %v", err)
	}
	free, _, err := learnField(shape, points, bodyOf(core), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if field, _, err := learnField(shape, points, bodyOf(core), nil, errs); err != nil || !slices.Equal(field.Values, free.Values) {
		t.Errorf("compared with a core off by %.3f: %v, another correction than compared with nothing", meanError(errs), err)
	}
	from := &Donor{Law: &costmodel.Law{Op: op.KindAttnFwd, Variant: points[0].Shape.Variant(), Device: "lender", Attention: core.Attention, Range: hull(op.KindAttnFwd, points), Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1}}, Device: dev}
	for _, own := range [][]float64{nil, none} {
		target := &costmodel.Law{Op: op.KindAttnFwd, Variant: points[0].Shape.Variant(), Device: dev.Name, Range: hull(op.KindAttnFwd, points)}
		lent, _, err := kind.lent(target, dev, points, own, from)
		if err != nil || (lent.Correction != nil) != (own == nil) {
			t.Errorf("%d errors of an own law: %v, lent with a correction: %v", len(own), err, lent.Correction != nil)
		}
	}
}

// What a device cannot compute in is not lent to it: bf16 is f16 on tensor cores from before
// Ampere, once, and without a datasheet's rate there is no fp8.
func TestBorrowedInPrecisionsThatThereAre(t *testing.T) {
	donor := op.DeviceType{Name: "lender", Parallel: 100, Sheet: op.Sheet{BF16PerS: 1e15, FP8PerS: 2e15, MemoryPerS: 3e12, Arch: "sm90"}}
	var donors []Donor
	for _, d := range []op.DType{op.BF16, op.FP8, op.F16} {
		donors = append(donors, Donor{Device: donor, Law: &costmodel.Law{
			Op: op.KindGEMM, Variant: op.Variant{DType: d, Pass: op.Forward}, Device: donor.Name, GEMM: &costmodel.GEMMCore{}, Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1},
		}})
	}
	for _, c := range []struct {
		arch string
		fp8  float64
		want []op.DType
	}{{"sm75", 0, []op.DType{op.F16}}, {"sm86", 0, []op.DType{op.BF16, op.F16}}, {"sm89", 7e14, []op.DType{op.BF16, op.FP8, op.F16}}} {
		dev := op.DeviceType{Name: "borrower", Parallel: 50, Sheet: op.Sheet{BF16PerS: 3e14, FP8PerS: c.fp8, MemoryPerS: 1e12, Arch: c.arch}}
		p, err := Borrowed(dev, donors)
		if err != nil {
			t.Fatal(err)
		}
		var got []op.DType
		for _, l := range p.Laws {
			got = append(got, l.Variant.DType)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: laws in %v, want %v", c.arch, got, c.want)
		}
	}
}

// TestLentIntervalsHoldBeyondTheRange carries laws fitted to the shorter calls of others'
// recordings to other devices: the 90 % interval is to cover what is two to three
// doublings longer about as often as it says, and to tell something still.
func TestLentIntervalsHoldBeyondTheRange(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	t.Parallel()
	var all []recorded
	for _, r := range tables(t, "aiconfigurator/*/context_attention_trtllm.csv") {
		if strings.Contains(r.name, "(diag d128 bf16") {
			all = append(all, r)
		}
	}
	if len(all) < 4 {
		t.Fatalf("%d tables", len(all))
	}
	pairs, covered, sum, worst := 0, 0, 0, 0.0
	for _, lender := range all {
		d := &Data{Devices: []op.DeviceType{lender.device}, Groups: []op.GroupType{lender.group}}
		f := &task{Stratum: Stratum{On: lender.on(), Op: op.KindAttnFwd, Variant: lender.points[0].Shape.Variant()}}
		long := beyondShare(lender.points, 0.125)
		for _, p := range lender.points {
			if !long(p) {
				f.points = append(f.points, p)
			}
		}
		if estimate(d, []*task{f}, nil); f.err != nil {
			t.Fatalf("%s: %v", lender.name, f.err)
		}
		from := Donor{Law: f.law, Device: lender.device}
		for _, r := range all {
			if r.name == lender.name {
				continue
			}
			law, n, in := from.carry(r.device), 0, 0
			for _, p := range r.points {
				if b := law.Beyond(p.Shape); b < 1.9 || b > 3.1 {
					continue
				}
				n++
				if e := law.Predict(p.Shape); p.Seconds >= float64(e.Lo) && p.Seconds <= float64(e.Hi) {
					in++
				}
				worst = max(worst, halfWidth(law, p.Shape))
			}
			if n == 0 {
				continue
			}
			t.Logf("%s from %s: %d of %d within", r.device.Name, lender.device.Name, in, n)
			pairs, covered, sum = pairs+1, covered+in, sum+n
		}
	}
	share := float64(covered) / float64(sum)
	t.Logf("%d pairs: %.1f %% of %d points within, factors of %.2f at most", pairs, 100*share, sum, math.Exp(worst))
	if share < 0.85 || worst > math.Log(3) {
		t.Errorf("%.1f %% of %d points lie in the 90 %% intervals of lent laws, which are factors of up to %.2f", 100*share, sum, math.Exp(worst))
	}
}

// What one kernel takes tells another's time of the same generation to a half, not to a tenth:
// few points that happen to agree with the donor do not make it surer than that.
func TestAnotherKernelsLawIsLessSure(t *testing.T) {
	if testing.Short() {
		t.Skip("nothing in it runs beside anything else")
	}
	dev, core := coreDevice(), trueCore()
	dev.Sheet.Arch = "sm90"
	points := corePoints(24, 5, 1<<14, false)
	own := points[0].Shape.Variant()
	kind, _ := coreOf(op.KindAttnFwd, dev)
	half := func(kernel string, n int) float64 {
		donors := &costmodel.Law{Op: op.KindAttnFwd, Variant: own, Device: dev.Name, Attention: core, Range: hull(op.KindAttnFwd, points), Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1}}
		donors.Variant.Kernel = kernel
		law := &costmodel.Law{Op: op.KindAttnFwd, Variant: own, Device: dev.Name, Range: hull(op.KindAttnFwd, points[:n])}
		lent, _, err := kind.lent(law, dev, points[:n], nil, &Donor{Law: donors, Device: dev})
		if err != nil {
			t.Fatal(err)
		}
		return math.Log(lent.Spread.Hi)
	}
	for _, n := range []int{1, 3, 5, 8, 19} {
		same, other := half(own.Kernel, n), half("another", n)
		if want := donorWeight * (otherKernelWidth - sameArchWidth) / (donorWeight + float64(n)); math.Abs(other-same-want) > 0.01 {
			t.Errorf("%d points: half widths %.3f by the same kernel's law, %.3f by another's, want %.3f more", n, same, other, want)
		}
	}
	if same, other := half(own.Kernel, fewToBelieve), half("another", fewToBelieve); same != other {
		t.Errorf("%d points of its own: half widths %v and %v", fewToBelieve, same, other)
	}
}

// TestDonorsOfOneMaker: units that reach the same rates on paper run other kernels where
// another made them. The sheets are those of an H100, a B200 and an Arc Pro B60.
func TestDonorsOfOneMaker(t *testing.T) {
	device := func(name, arch string, parallel int, flops, bytes float64) op.DeviceType {
		return op.DeviceType{Name: name, Parallel: parallel, Sheet: op.Sheet{BF16PerS: flops, MemoryPerS: bytes, Arch: arch}}
	}
	h100, b200, b60 := device("h100", "sm90", 132, 989e12, 3.35e12), device("b200", "sm100", 148, 2250e12, 7.7e12), device("b60", "", 20, 98e12, 0.456e12)
	mi300, mi210 := device("mi300", "gfx942", 304, 1307e12, 5.3e12), device("mi210", "gfx90a", 104, 181e12, 1.6e12)
	gemm := func(on op.DeviceType) Donor {
		return Donor{Device: on, Law: &costmodel.Law{Op: op.KindGEMM, Variant: op.Variant{DType: op.BF16, Pass: op.Forward}, Device: on.Name, GEMM: &costmodel.GEMMCore{}, Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1}}}
	}
	s := Stratum{Op: op.KindGEMM, Variant: op.Variant{DType: op.BF16, Pass: op.Forward}}
	for _, c := range []struct {
		to, from op.DeviceType
		among    []Donor
		width    float64
	}{
		{h100, b200, []Donor{gemm(b60), gemm(b200)}, otherArchWidth},
		{h100, b60, []Donor{gemm(b60)}, otherMakerWidth},
		{mi300, mi210, []Donor{gemm(b60), gemm(h100), gemm(mi210)}, otherArchWidth},
		{mi300, h100, []Donor{gemm(b60), gemm(h100)}, otherMakerWidth}, // of B60's units, 20, each is as one of its 304
		{b60, h100, []Donor{gemm(h100), gemm(b200)}, otherMakerWidth},
	} {
		got := nearestDonor(c.among, s, c.to)
		if got.Device.Name != c.from.Name || got.width(c.to) != c.width {
			t.Errorf("%s borrows from %s with a half width of %v, want %s and %v", c.to.Name, got.Device.Name, got.width(c.to), c.from.Name, c.width)
		}
		p, err := Borrowed(c.to, c.among)
		if err != nil || p.Laws[0].From != c.from.Name {
			t.Errorf("%s borrows all laws from %s, %v, want %s", c.to.Name, p.Laws[0].From, err, c.from.Name)
		}
	}
}

// TestAModelIsLikeItself: a GPU whose architecture has no name, as Intel's, borrows from its
// own model under other software as from one of its generation: the correction with the core,
// and nearer than from any other.
func TestAModelIsLikeItself(t *testing.T) {
	b60 := embedded(t, "b60")
	dev := Donors(b60)[0].Device
	if dev.Sheet.Arch != "" {
		t.Fatalf("%s has the architecture %s", dev.Name, dev.Sheet.Arch)
	}
	for stack, another := range map[string]bool{"vllm-0.20.0": false, "vllm-0.30.0": false, "": true} {
		to := dev
		to.Name, to.Stack = dev.Model+"/"+stack, stack
		if another {
			to.Name, to.Model = "b50", "b50"
		}
		to.Fingerprint = profile.Fingerprint(to.Name)
		donors := Donors(b60, embedded(t, "h100_sxm"))
		from := nearestDonor(donors, Stratum{Op: op.KindGEMM, Variant: op.Variant{DType: op.BF16, Pass: op.Forward}}, to)
		if from == nil || from.Device.Name != dev.Name {
			t.Fatalf("%s borrows from %+v", to.Name, from)
		}
		l, want := from.carry(to), max(sameArchWidth, from.own())
		if another {
			want = otherMakerWidth
		}
		if half := math.Log(l.Spread.Hi); from.Law.Correction == nil || (l.Correction == nil) != another || math.Abs(half-want) > 1e-9 {
			t.Errorf("%s: correction %v, half width %.3f, want %.3f", to.Name, l.Correction != nil, half, want)
		}
	}
}

// TestMorePointsAreNoWorse: a law of a few hundred points is chosen between that of a donor
// that was named and the device's own as one of a few dozen is, and no worse than that one.
func TestMorePointsAreNoWorse(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	t.Parallel()
	r := tables(t, "aiconfigurator/gb200/gemm_trtllm.csv")[0]
	points := slices.Clone(r.points)
	rand.New(rand.NewPCG(7, 7)).Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	d := &Data{Devices: []op.DeviceType{r.device}}
	off := func(n int, donors []Donor) float64 {
		f := &task{Stratum: Stratum{On: r.device.Name, Op: op.KindGEMM, Variant: points[0].Shape.Variant()}, points: points[:n]}
		if estimate(d, []*task{f}, donors); f.err != nil {
			t.Fatal(f.err)
		}
		return meanError(errorsOn(f.law, points[len(points)-2500:]))
	}
	b200 := Donors(embedded(t, "b200_sxm"))
	unnamed := off(250, b200)
	for i := range b200 {
		b200[i].Named = true
	}
	few, more, own := off(20, b200), off(250, b200), off(250, nil)
	if unnamed != own {
		t.Errorf("a donor that was not named helps 250 points: %.4f, alone %.4f", unnamed, own)
	}
	t.Logf("%d points of %s: of 20 points %.4f, of 250 %.4f, of their own %.4f", len(points), r.name, few, more, own)
	if more > 1.1*few || more > 0.85*own {
		t.Errorf("mean errors: of 20 points %.4f, of 250 %.4f, of their own %.4f", few, more, own)
	}
}

// TestNobodyBorrowsFromItself: a law that was measured on the same machine lends nothing,
// for it may rest on the same points; one of imported times of the same name does.
func TestNobodyBorrowsFromItself(t *testing.T) {
	dev := coreDevice()
	law := &costmodel.Law{Op: op.KindAttnFwd, Variant: corePoints(1, 5, 1<<12, false)[0].Shape.Variant(), Device: dev.Name, Attention: trueCore()}
	s := Stratum{On: dev.Name, Op: law.Op, Variant: law.Variant}
	for fingerprint, lends := range map[string]bool{"measured": false, profile.Fingerprint(dev.Name): true} {
		dev.Fingerprint = fingerprint
		if from := nearestDonor([]Donor{{Law: law, Device: dev}}, s, dev); (from != nil) != lends {
			t.Errorf("fingerprint %.12s: lent by %v", fingerprint, from)
		}
		other := dev
		other.Fingerprint = "another"
		if nearestDonor([]Donor{{Law: law, Device: other}}, s, dev) == nil {
			t.Errorf("fingerprint %.12s: another device lends nothing", fingerprint)
		}
	}
}

// TestLentLawsAreNoSurerThanTheLender: between like devices the ratios of datasheets are off
// by less than a law of few points is by itself.
func TestLentLawsAreNoSurerThanTheLender(t *testing.T) {
	dev := coreDevice()
	dev.Sheet.Arch = "sm90"
	to := dev
	to.Name = "other"
	for own, want := range map[float64]float64{0.03: sameArchWidth, 0.3: 0.3} {
		law := costmodel.Law{Op: op.KindAttnFwd, Variant: corePoints(1, 5, 1<<12, false)[0].Shape.Variant(), Device: dev.Name, Attention: trueCore(), Spread: costmodel.Spread{Lo: math.Exp(-own), Hi: math.Exp(own)}}
		if got := math.Log((&Donor{Law: &law, Device: dev}).carry(to).Spread.Hi); math.Abs(got-want) > 1e-9 {
			t.Errorf("a lender within %v lends within %v, want %v", own, got, want)
		}
	}
}

// TestFewPointsOfAWrongDonorAreCovered: one or two points tell that a donor is wrong, and
// where the other points lie is around them, not between them and the donor. A donor that is
// right stays about as narrow as it promises.
func TestFewPointsOfAWrongDonorAreCovered(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	t.Parallel()
	var p costmodel.Profile
	if err := doc.Load("../results/profiles/h100_sxm.profile.json", &p); err != nil {
		t.Fatal(err)
	}
	table := tables(t, "aiconfigurator/h100_sxm/context_attention_trtllm.csv")[0]
	points := table.points
	s := Stratum{Op: points[0].Shape.Kind(), Variant: points[0].Shape.Variant()}
	dev := table.device
	dev.Name = "other"
	from := nearestDonor(Donors(&p), s, dev)
	if from == nil {
		t.Fatalf("no donor for %s", table.name)
	}
	core, _ := coreOf(s.Op, dev)
	for _, c := range []struct {
		slower float64
		few    []int
		draws  int
		least  float64 // share of all points inside, a mean over the draws
		most   float64 // half width, a mean over the draws
	}{
		{1, []int{1, 2}, 20, 0.85, 1.05 * sameArchWidth},
		{1.2, []int{1, 2}, 20, 0.85, math.Log(1.2) + sameArchWidth},
		{1.6, []int{1, 2}, 20, 0.85, math.Log(1.6) + sameArchWidth},
		{1 / 1.6, []int{1, 2}, 20, 0.85, math.Log(1.6) + sameArchWidth},
		{1.6, []int{3, 10}, 3, 0.85, 1.5 * sameArchWidth},
	} {
		slowed := slices.Clone(points)
		for i := range slowed {
			slowed[i].Seconds *= c.slower
		}
		for _, n := range c.few {
			covered, half, draws := 0.0, 0.0, float64(c.draws)
			for seed := range uint64(c.draws) {
				var own []Point
				for _, i := range rand.New(rand.NewPCG(seed, 1)).Perm(len(slowed))[:n] {
					own = append(own, slowed[i])
				}
				law := &costmodel.Law{Op: s.Op, Variant: s.Variant, Device: dev.Name, Range: hull(s.Op, own)}
				lent, _, err := core.lent(law, dev, own, nil, from)
				if err != nil {
					t.Fatal(err)
				}
				inside := 0
				for _, p := range slowed {
					if e := lent.Predict(p.Shape); p.Seconds >= float64(e.Lo) && p.Seconds <= float64(e.Hi) {
						inside++
					}
				}
				covered += float64(inside) / float64(len(slowed)) / draws
				half += math.Log(lent.Spread.Hi) / draws
			}
			t.Logf("%.3g times as long, %d points: %.3f inside a half width of %.3f", c.slower, n, covered, half)
			if covered < c.least || half > c.most {
				t.Errorf("%.3g times as long, %d points: %.3f of all lie inside, want %.2f; half width %.3f, want at most %.3f", c.slower, n, covered, c.least, half, c.most)
			}
		}
	}
}

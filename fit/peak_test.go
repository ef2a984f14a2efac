package fit

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func TestPeakOfADevice(t *testing.T) {
	dev, v := coreDevice(), op.Variant{DType: op.BF16}
	product := op.GEMM{Pass: op.Forward, M: 1000, N: 1000, K: 1000, DType: op.BF16} // 2 GFLOP
	at := func(perS float64) []Point {
		return []Point{{Shape: product, Seconds: 2e9 / perS}, {Shape: product, Seconds: 1}}
	}
	sheet := units.FLOPsPerS(op.PeakSlack * 4e14)
	for name, c := range map[string]struct {
		dev    op.DeviceType
		k      op.Kind
		points []Point
		want   units.FLOPsPerS
	}{
		"the datasheet's":            {dev, op.KindGEMM, at(3e14), sheet},
		"nothing measured":           {dev, op.KindGEMM, nil, sheet},
		"a little faster":            {dev, op.KindGEMM, at(4.1e14), sheet},
		"another board":              {dev, op.KindGEMM, at(5e14), 1e15},
		"no datasheet":               {op.DeviceType{}, op.KindGEMM, at(5e9), 1e10},
		"nothing known":              {op.DeviceType{}, op.KindGEMM, nil, 0},
		"an op that computes little": {dev, op.KindNorm, nil, 0},
	} {
		if got := peakOf(c.dev, c.k, v, c.points); math.Abs(float64(got-c.want)) > 1e-6*float64(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Products of few rows are bound by memory and tell little of larger ones: those are predicted
// at no more than the peak and are known to lie outside of what was measured, by intervals that
// hold most of them.
func TestSmallProductsTellLittleOfLargeOnes(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	for _, r := range tables(t, "aiconfigurator/h100_sxm/gemm_trtllm.csv") {
		d := &Data{Devices: []op.DeviceType{r.device}}
		stratum := Stratum{On: r.device.Name, Op: op.KindGEMM, Variant: r.points[0].Shape.Variant()}
		few, more := divide(r.points, func([]Point) func(Point) bool {
			return func(p Point) bool { return p.Shape.(op.GEMM).M > 256 }
		})
		law, err := lawOf(d, stratum, few)
		if err != nil {
			t.Fatal(err)
		}
		fastest := 0.0
		for _, p := range more {
			fastest = max(fastest, float64(p.Shape.Work().FLOPs)/float64(law.Seconds(p.Shape)))
		}
		if peak := op.PeakSlack * r.device.Sheet.BF16PerS; fastest > 1.000001*peak {
			t.Errorf("%s: up to %v of more rows than 256, the peak is %v", r.name, units.FLOPsPerS(fastest), units.FLOPsPerS(peak))
		}
		small, large := divide(r.points, func([]Point) func(Point) bool {
			return func(p Point) bool { return costmodel.Cells(op.KindGEMM, p.Shape.(op.Located).Coords()) > 1<<32 }
		})
		if law, err = lawOf(d, stratum, small); err != nil {
			t.Fatal(err)
		}
		blind := *law
		blind.MaxCells = 0
		now, without := coverage(law, large), coverage(&blind, large)
		t.Logf("%s: of %d products of more cells %.2f inside, %.2f without", r.name, len(large), now, without)
		if now < 0.8 || without > now-0.2 {
			t.Errorf("%s: of %d products of more cells than 2^32 %.2f lie in the interval, %.2f taken for smaller ones", r.name, len(large), now, without)
		}
	}
}

// On a busy processor a fit may explain the time of attention by bytes and rows alone. It still
// predicts no rate of arithmetic that is far above all that was measured.
func TestProcessorsHaveAPeakToo(t *testing.T) {
	dev := op.DeviceType{Name: "cpu", Fingerprint: "cpu", Parallel: 2}
	r := rand.New(rand.NewPCG(3, 5))
	var points []Point
	fastest := 0.0
	for range 40 {
		n := units.Tokens(16 + r.IntN(200))
		s := op.AttnFwd{Attention: op.Attention{Mask: op.Full, QLen: n, KVLen: n, QHeads: 4, KVHeads: 4, HeadDim: 64, DType: op.F32}}
		p := pointOf(dev, s, 1e-5+1e-9*float64(s.Work().Bytes())*math.Exp(0.3*r.NormFloat64()))
		fastest = max(fastest, float64(s.Work().FLOPs)/p.Seconds)
		points = append(points, p)
	}
	law := lawFrom(t, dev, points)
	long := op.AttnFwd{Attention: op.Attention{Mask: op.Full, QLen: 65536, KVLen: 65536, QHeads: 4, KVHeads: 4, HeadDim: 64, DType: op.F32}}
	if rate := float64(long.Work().FLOPs) / float64(law.Seconds(long)); rate > 1.001*beyondFastest*fastest || rate < fastest {
		t.Errorf("%v of attention where the fastest call has %v", units.FLOPsPerS(rate), units.FLOPsPerS(fastest))
	}
}

// Whoever borrows a law, or guesses one from another, has the peak of the device that it is for.
func TestLentAndGuessedLawsHaveAPeak(t *testing.T) {
	from, to := coreDevice(), coreDevice()
	to.Name, to.Fingerprint, to.Sheet.BF16PerS = "other", "other", 1e14
	law := lawFrom(t, from, inventedGEMM(from, 60, 3))
	d := Donor{Law: law, Device: from}
	lent := d.carry(to)
	if want := units.FLOPsPerS(op.PeakSlack * 1e14); lent.Peak != want || lent.MaxCells != law.MaxCells || lent.MaxCells == 0 {
		t.Errorf("lent with a peak of %v and %v cells, want %v and %v", lent.Peak, lent.MaxCells, want, law.MaxCells)
	}
	if guess := kin(*law, op.KindGEMM, op.Variant{Pass: op.WGrad, DType: op.BF16}, 1, aKin, ""); guess.Peak != law.Peak || guess.MaxCells != law.MaxCells {
		t.Errorf("guessed with a peak of %v and %v cells, want %v and %v", guess.Peak, guess.MaxCells, law.Peak, law.MaxCells)
	}
}

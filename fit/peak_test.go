package fit

import (
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func TestPeakOfADevice(t *testing.T) {
	dev := coreDevice()
	product := op.GEMM{Pass: op.Forward, M: 1000, N: 1000, K: 1000, DType: op.BF16} // 2 GFLOP
	at := func(perS float64) []Point {
		return []Point{{Shape: product, Seconds: 2e9 / perS}, {Shape: product, Seconds: 1}}
	}
	sheet := units.FLOPsPerS(mostHeadroom * dev.Sheet.BF16PerS)
	eight := dev
	eight.Sheet.FP8PerS = 2 * dev.Sheet.BF16PerS
	for name, c := range map[string]struct {
		dev    op.DeviceType
		k      op.Kind
		dtype  op.DType
		points []Point
		want   units.FLOPsPerS
	}{
		"the datasheet's":             {dev, op.KindGEMM, op.BF16, at(3e14), sheet},
		"nothing measured":            {dev, op.KindGEMM, op.BF16, nil, sheet},
		"clocked beyond it":           {dev, op.KindGEMM, op.BF16, at(5e14), sheet},
		"another board":               {dev, op.KindGEMM, op.BF16, at(6e14), 0},
		"no datasheet":                {op.DeviceType{}, op.KindGEMM, op.BF16, at(5e9), 0},
		"8 bits":                      {eight, op.KindGEMM, op.FP8, nil, 2 * sheet},
		"8 bits of which nobody says": {dev, op.KindGEMM, op.FP8, nil, 0},
		"whole numbers":               {eight, op.KindGEMM, op.I8, nil, 0},
		"an op that computes little":  {dev, op.KindNorm, op.BF16, nil, 0},
	} {
		if got := peakOf(c.dev, c.k, op.Variant{DType: c.dtype}, c.points); math.Abs(float64(got-c.want)) > 1e-6*float64(c.want) {
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
		if peak := mostHeadroom * r.device.Sheet.BF16PerS; fastest > 1.000001*peak {
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

// A processor has neither: nobody states its peak, and the costs of a linear law are its cells.
func TestLinearLawsHaveNoEnds(t *testing.T) {
	cpu := op.DeviceType{Name: "cpu", Fingerprint: "cpu", Parallel: 2}
	if l := lawFrom(t, cpu, inventedGEMM(coreDevice(), 60, 3)); l.Linear == nil || l.Peak != 0 || l.MaxCells != 0 {
		t.Errorf("%s with a peak of %v and %v cells", l.Form(), l.Peak, l.MaxCells)
	}
}

// Whoever borrows a law, or guesses one from another, has the peak of the device that it is for.
func TestLentAndGuessedLawsHaveAPeak(t *testing.T) {
	if testing.Short() {
		t.Skip("nothing in it runs beside anything else")
	}
	from, to := coreDevice(), coreDevice()
	to.Name, to.Fingerprint, to.Sheet.BF16PerS = "other", "other", 1e14
	law := lawFrom(t, from, inventedGEMM(from, 60, 3))
	d := Donor{Law: law, Device: from}
	lent := d.carry(to)
	if want := units.FLOPsPerS(mostHeadroom * 1e14); lent.Peak != want || lent.MaxCells != law.MaxCells || lent.MaxCells == 0 {
		t.Errorf("lent with a peak of %v and %v cells, want %v and %v", lent.Peak, lent.MaxCells, want, law.MaxCells)
	}
	for _, c := range []struct{ donor, own, want float64 }{{1e12, 1e9, 1e12}, {1e9, 1e12, 1e12}, {0, 1e9, 0}} {
		if got := cellsOfBoth(c.donor, c.own); got != c.want {
			t.Errorf("%v cells lent to a law of %v: %v, want %v", c.donor, c.own, got, c.want)
		}
	}
	if guess := kin(*law, op.KindGEMM, op.Variant{Pass: op.WGrad, DType: op.BF16}, 1, aKin, ""); guess.Peak != law.Peak || guess.MaxCells != law.MaxCells {
		t.Errorf("guessed with a peak of %v and %v cells, want %v and %v", guess.Peak, guess.MaxCells, law.Peak, law.MaxCells)
	}
}

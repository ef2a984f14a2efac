package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func gemmDevice() op.DeviceType {
	return op.DeviceType{Name: "gpu", Parallel: 120, Sheet: op.Sheet{BF16PerS: 8e14, MemoryPerS: 3e12, L2: 40 << 20}}
}

// trueGEMM is a device that differs from what a fit starts from in every
// coefficient, by up to a factor of 1.6.
func trueGEMM(r *rand.Rand) *costmodel.GEMMCore {
	c := usualGEMM(gemmDevice(), op.BF16, nil)
	for _, f := range c.Coefs() {
		if !strings.HasPrefix(f.Name, "tiles") {
			*f.At *= math.Exp(0.5 * (2*r.Float64() - 1))
		}
	}
	return c
}

// gemmPoints are n products timed by a core with 1 % of noise.
func gemmPoints(r *rand.Rand, c *costmodel.GEMMCore, n int) []Point {
	var points []Point
	axis := func(most float64) float64 { return math.Floor(math.Exp(r.Float64() * math.Log(most+1))) }
	for i := range n {
		g := op.GEMM{Pass: op.Forward, M: units.Tokens(axis(1 << 15)), N: 32 * int(axis(1<<11)), K: 32 * int(axis(1<<10)), DType: op.BF16}
		points = append(points, Point{Shape: g, Seconds: c.Seconds(g) * math.Exp(0.01*r.NormFloat64()), rank: uint64(i) * 0x9e3779b97f4a7c15})
	}
	return points
}

func gemmScore(c *costmodel.GEMMCore, points []Point) score {
	return scoreOf(func(s op.Shape) float64 { return c.Seconds(s.(op.GEMM)) }, points)
}

func TestGEMMFitFindsACore(t *testing.T) {
	sequential(t)
	for _, c := range []struct {
		points int
		median float64 // percent, on points it has not seen
	}{{6, 25}, {40, 8}, {600, 2}} {
		r := rand.New(rand.NewPCG(5, 6))
		truth := trueGEMM(r)
		held := gemmPoints(r, truth, 400)
		got, err := fitGEMMCore(gemmDevice(), gemmPoints(r, truth, c.points), nil)
		if err != nil {
			t.Fatal(err)
		}
		before := gemmScore(usualGEMM(gemmDevice(), op.BF16, nil), held).median
		if s := gemmScore(got, held); s.median > c.median || s.median > before {
			t.Errorf("%d points: %.1f %% off in the median, want %v and less than the %.1f without any", c.points, s.median, c.median, before)
		}
	}
}

func TestGEMMFitIsOneFunctionOfItsInput(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	points := gemmPoints(r, trueGEMM(r), 100)
	a, err := fitGEMMCore(gemmDevice(), points, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := fitGEMMCore(gemmDevice(), points, nil)
	if d := cmp.Diff(a, b); d != "" {
		t.Errorf("two fits of the same points differ: %s", d)
	}
}

// What the derivatives leave out are zeros: only the coefficients of its own tile, and
// those of no tile, move a product's time.
func TestGEMMDerivativesAreOfTheOwnTile(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	e := newGEMMEstimate(trueGEMM(r), gemmPoints(r, trueGEMM(r), 200))
	at := make([]float64, len(e.shapes))
	e.residuals(e.theta, at)
	others := 0
	for k, c := range e.coefs {
		was := *c.At
		*c.At *= 1.5
		for i, g := range e.shapes {
			moved := math.Log(e.core.SecondsAs(g, e.plans[i]))-e.logs[i] != at[i]
			if other := e.tile[k] >= 0 && e.tile[k] != e.plans[i].Tile; other {
				if others++; moved {
					t.Errorf("%s moves %+v by tile %d", c.Name, g, e.plans[i].Tile)
				}
			}
		}
		*c.At = was
	}
	if own := slices.IndexFunc(e.coefs, func(c costmodel.GEMMCoef) bool { return c.Name == "tiles[1].rate" }); e.tile[own] != 1 || e.tile[0] != -1 || others == 0 {
		t.Errorf("of tiles %v, %d times another's", e.tile, others)
	}
}

// TestGEMMFitLeansOnItsPrior: few points move a prior that is right less than
// they tell one that is not.
func TestGEMMFitLeansOnItsPrior(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	truth := trueGEMM(r)
	few, held := gemmPoints(r, truth, 8), gemmPoints(r, truth, 400)
	with, err := fitGEMMCore(gemmDevice(), few, truth)
	if err != nil {
		t.Fatal(err)
	}
	without, err := fitGEMMCore(gemmDevice(), few, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := gemmScore(with, held).median, gemmScore(without, held).median; a > 3 || a >= b {
		t.Errorf("%.1f %% off with the right prior, %.1f %% without", a, b)
	}
}

func TestGEMMFitWithoutADatasheet(t *testing.T) {
	sequential(t)
	r := rand.New(rand.NewPCG(11, 12))
	truth := trueGEMM(r)
	held := gemmPoints(r, truth, 300)
	got, err := fitGEMMCore(op.DeviceType{Parallel: 120}, gemmPoints(r, truth, 300), nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := gemmScore(got, held); s.median > 4 {
		t.Errorf("%.1f %% off in the median", s.median)
	}
}

func TestGEMMFitRefuses(t *testing.T) {
	bf16 := Point{Key: "a", Seconds: 1e-3, Shape: op.GEMM{Pass: op.Forward, M: 1, N: 1, K: 1, DType: op.BF16}}
	fp8 := Point{Key: "b", Seconds: 1e-3, Shape: op.GEMM{Pass: op.Forward, M: 1, N: 1, K: 1, DType: op.FP8}}
	norm := Point{Key: "c", Seconds: 1e-3, Shape: op.Norm{Rowwise: op.Rowwise{Tokens: 1, Width: 1, DType: op.BF16}}}
	for want, points := range map[string][]Point{"no points": nil, "point b": {bf16, fp8}, "point c": {bf16, norm}} {
		if _, err := fitGEMMCore(gemmDevice(), points, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestGEMMSpreadKeepsTheLongOnes(t *testing.T) {
	var points []Point
	for i := range 4000 {
		points = append(points, Point{Seconds: 1e-5, rank: uint64(i)})
	}
	points[1234].Seconds, points[77].Seconds = 1, 2
	long := 0
	for _, p := range gemmSpread(points, 200) {
		if p.Seconds >= 1 {
			long++
		}
	}
	if got := gemmSpread(points, 200); long != 2 || len(got) != 200 {
		t.Errorf("%d of 2 long points among %d of 4,000", long, len(got))
	}
}

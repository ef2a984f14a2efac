package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

func ranks(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(i + 1)
	}
	return x
}

func TestNotchHalfWidth(t *testing.T) {
	// 1..9: quartiles 3 and 7, so 1.57*4/3.
	if got := NotchHalfWidth(ranks(9)); !near(got, 1.57*4/3, 1e-12) {
		t.Errorf("got %v", got)
	}
	// Calibration: for normal data the notch is about 1.7 standard errors of the median.
	rng := rand.New(rand.NewPCG(3, 4))
	hit := 0
	for range 2000 {
		x := make([]float64, 100)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		if math.Abs(Median(x)) <= NotchHalfWidth(x) {
			hit++
		}
	}
	if share := float64(hit) / 2000; share < 0.88 || share > 0.96 {
		t.Errorf("notch covers %v, want about 0.91", share)
	}
}

// The bound solves the score test's equation, holds the truth in 95 % of all draws as well
// as counts allow, and ends at 1.
func TestShareUpper(t *testing.T) {
	for _, c := range []struct{ hits, n int }{{0, 1}, {0, 20}, {10, 20}, {11, 20}, {27, 100}, {699, 1000}} {
		p := ShareUpper(c.hits, c.n)
		if z := (p - float64(c.hits)/float64(c.n)) / math.Sqrt(p*(1-p)/float64(c.n)); math.Abs(z-1.6448536) > 1e-6 {
			t.Errorf("%d of %d: bound %v lies %v deviations above", c.hits, c.n, p, z)
		}
	}
	if p := ShareUpper(20, 20); p != 1 {
		t.Errorf("all of 20: %v", p)
	}
	rng := rand.New(rand.NewPCG(21, 22))
	for _, truth := range []float64{0.5, 0.7, 0.9} {
		const draws = 4000
		covered := 0
		for range draws {
			hits := 0
			for range 60 {
				if rng.Float64() < truth {
					hits++
				}
			}
			if ShareUpper(hits, 60) >= truth {
				covered++
			}
		}
		// Counts of 60 are coarse: the exact rates are 0.954, 0.937 and 0.927.
		if share := float64(covered) / draws; share < 0.91 || share > 0.97 {
			t.Errorf("a share of %v is below its bound in %.3f of the draws", truth, share)
		}
	}
}

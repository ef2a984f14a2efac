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

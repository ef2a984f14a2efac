package stats

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naiveIsotonic is the max-min formula of isotonic regression (Barlow et al. 1972):
// the largest, over starts s <= i, of the smallest, over ends e >= i, mean of s..e.
func naiveIsotonic(y, w []float64) []float64 {
	out := make([]float64, len(y))
	for i := range y {
		best := math.Inf(-1)
		for s := 0; s <= i; s++ {
			least := math.Inf(1)
			for e := i; e < len(y); e++ {
				var sum, weight float64
				for k := s; k <= e; k++ {
					sum += w[k] * y[k]
					weight += w[k]
				}
				least = min(least, sum/weight)
			}
			best = max(best, least)
		}
		out[i] = best
	}
	return out
}

func TestIsotonicExhaustive(t *testing.T) {
	for n := 0; n <= 6; n++ {
		eachTuple(n, 4, func(y []float64) {
			for _, w := range [][]float64{slices.Repeat([]float64{1}, n), {3, 1, 0.5, 2, 1, 7}} {
				got, want := Isotonic(y, w[:n]), naiveIsotonic(y, w[:n])
				for i := range want {
					if !near(got[i], want[i], 1e-12) {
						t.Fatalf("Isotonic(%v, %v) = %v, want %v", y, w[:n], got, want)
					}
				}
			}
		})
	}
}

func TestIsotonicProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		y := rapid.SliceOfN(rapid.Float64Range(-1e3, 1e3), 0, 40).Draw(t, "y")
		before := slices.Clone(y)
		got := Isotonic(y, nil)
		if len(got) != len(y) || !slices.IsSorted(got) || !slices.Equal(y, before) {
			t.Fatalf("Isotonic(%v) = %v", before, got)
		}
		if !slices.Equal(Isotonic(got, nil), got) {
			t.Fatalf("not idempotent: %v -> %v", got, Isotonic(got, nil))
		}
	})
}

func TestIsotonicPanics(t *testing.T) {
	wantPanic(t, "stats: Isotonic: 2 values, 1 weights", func() { Isotonic([]float64{1, 2}, []float64{1}) })
	wantPanic(t, "stats: Isotonic: weights[0] = 0, want > 0", func() { Isotonic([]float64{1}, []float64{0}) })
	wantPanic(t, "stats: y[0] = NaN, want a finite number", func() { Isotonic([]float64{math.NaN()}, nil) })
}

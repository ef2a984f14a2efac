package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

func TestBootstrapIsDeterministicAndSorted(t *testing.T) {
	x := []float64{3, 1, 4, 1, 5, 9, 2, 6}
	a, b := Bootstrap(x, Median, 200, 42), Bootstrap(x, Median, 200, 42)
	if !slices.Equal(a, b) || !slices.IsSorted(a) || len(a) != 200 {
		t.Fatalf("same seed: equal %v, sorted %v, %d replicates", slices.Equal(a, b), slices.IsSorted(a), len(a))
	}
	if slices.Equal(a, Bootstrap(x, Median, 200, 43)) {
		t.Error("another seed gave the same replicates")
	}
	if !slices.Equal(x, []float64{3, 1, 4, 1, 5, 9, 2, 6}) {
		t.Error("input changed")
	}
}

// TestBootstrapExhaustive: of the four samples of {0, 1} with replacement, the mean
// is 0, 1/2, 1 with probability 1/4, 1/2, 1/4.
func TestBootstrapExhaustive(t *testing.T) {
	const n = 20000
	count := map[float64]int{}
	for _, v := range Bootstrap([]float64{0, 1}, mean, n, 1) {
		count[v]++
	}
	for v, want := range map[float64]float64{0: 0.25, 0.5: 0.5, 1: 0.25} {
		if got := float64(count[v]) / n; math.Abs(got-want) > 4*math.Sqrt(want*(1-want)/n) {
			t.Errorf("share of mean %v is %v, want %v", v, got, want)
		}
	}
}

func TestBootstrapIndicesKeepsRowsTogether(t *testing.T) {
	x, y := []float64{1, 2, 3, 4}, []float64{2, 4, 6, 8}
	slopes := BootstrapIndices(4, func(index []int) float64 {
		var xy, xx float64
		for _, i := range index {
			xy += x[i] * y[i]
			xx += x[i] * x[i]
		}
		return xy / xx
	}, 50, 9)
	if slopes[0] != 2 || slopes[49] != 2 {
		t.Errorf("slopes of y = 2x: %v..%v", slopes[0], slopes[49])
	}
}

func TestBootstrapIntervalQuantiles(t *testing.T) {
	r := make([]float64, 101)
	for i := range r {
		r[i] = float64(i)
	}
	if got, want := BootstrapInterval(r, 0.9), (Interval{Lo: 5, Hi: 95}); math.Abs(got.Lo-5) > 1e-9 || math.Abs(got.Hi-95) > 1e-9 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := UpperBound(r, 0.95); math.Abs(got-95) > 1e-9 {
		t.Errorf("UpperBound = %v, want 95", got)
	}
}

// TestBootstrapCoverage: the 90 % interval of a mean of 40 exponentials covers 1
// a little less often than stated, as is known of percentile intervals.
func TestBootstrapCoverage(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	const rounds = 600
	hit, below := 0, 0
	for seed := range uint64(rounds) {
		x := make([]float64, 40)
		for i := range x {
			x[i] = rng.ExpFloat64()
		}
		r := Bootstrap(x, mean, 300, seed)
		if iv := BootstrapInterval(r, 0.9); iv.Lo <= 1 && 1 <= iv.Hi {
			hit++
		}
		if UpperBound(r, 0.9) >= 1 {
			below++
		}
	}
	if share := float64(hit) / rounds; share < 0.83 || share > 0.95 {
		t.Errorf("interval covers %v, stated 0.9", share)
	}
	if share := float64(below) / rounds; share < 0.80 || share > 0.95 {
		t.Errorf("upper bound holds in %v, stated 0.9", share)
	}
}

func TestBootstrapPanics(t *testing.T) {
	one := []float64{1}
	wantPanic(t, "stats: bootstrap of 0 values, 5 replicates: want at least one of each", func() { Bootstrap(nil, Median, 5, 1) })
	wantPanic(t, "stats: bootstrap of 1 values, 0 replicates: want at least one of each", func() { Bootstrap(one, Median, 0, 1) })
	wantPanic(t, "stats: bootstrap replicate[0] = NaN, want a finite number", func() {
		Bootstrap(one, func([]float64) float64 { return math.NaN() }, 3, 1)
	})
	wantPanic(t, "stats: UpperBound: no replicates", func() { UpperBound(nil, 0.9) })
	wantPanic(t, "stats: BootstrapInterval: replicates are not in ascending order; they come from Bootstrap", func() {
		BootstrapInterval([]float64{2, 1}, 0.9)
	})
	wantPanic(t, "stats: BootstrapInterval: confidence = 0, want 0 < confidence < 1", func() { BootstrapInterval(one, 0) })
}

package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// exactCoverage returns P(x(l) <= xi_p < x(u)) for a continuous distribution by
// adding up every pattern of "below the quantile or not" of n independent draws.
func exactCoverage(n, l, u int, p float64) float64 {
	sum := 0.0
	for pattern := range 1 << n {
		below, probability := 0, 1.0
		for i := range n {
			if pattern>>i&1 == 1 {
				below++
				probability *= p
			} else {
				probability *= 1 - p
			}
		}
		if l <= below && below < u {
			sum += probability
		}
	}
	return sum
}

func ranks(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(i + 1)
	}
	return x
}

// TestMedianIntervalExhaustive compares with a search over all symmetric pairs.
func TestMedianIntervalExhaustive(t *testing.T) {
	for n := 1; n <= 12; n++ {
		for _, confidence := range []float64{0.5, 0.8, 0.9, 0.95, 0.99} {
			want := Interval{Lo: 1, Hi: float64(n), Confidence: exactCoverage(n, 1, n, 0.5), TooFew: true}
			for l := 1; 2*l <= n+1; l++ {
				if c := exactCoverage(n, l, n+1-l, 0.5); c >= confidence {
					want = Interval{Lo: float64(l), Hi: float64(n + 1 - l), Confidence: c}
				}
			}
			got := MedianInterval(ranks(n), confidence)
			if got.Lo != want.Lo || got.Hi != want.Hi || got.TooFew != want.TooFew || !near(got.Confidence, want.Confidence, 1e-12) {
				t.Errorf("n=%d confidence=%v: got %+v, want %+v", n, confidence, got, want)
			}
		}
	}
}

// TestQuantileIntervalExhaustive compares with a search over all pairs of ranks.
func TestQuantileIntervalExhaustive(t *testing.T) {
	for n := 1; n <= 9; n++ {
		for _, p := range []float64{0.1, 0.25, 0.5, 0.9} {
			for _, confidence := range []float64{0.3, 0.5, 0.8, 0.95} {
				width, level := n, 0.0
				for l := 1; l <= n; l++ {
					for u := l; u <= n; u++ {
						c := exactCoverage(n, l, u, p)
						if c >= confidence && (u-l < width || u-l == width && c > level) {
							width, level = u-l, c
						}
					}
				}
				got := QuantileInterval(ranks(n), p, confidence)
				l, u := int(got.Lo), int(got.Hi)
				if !near(got.Confidence, exactCoverage(n, l, u, p), 1e-12) {
					t.Fatalf("n=%d p=%v: [%d, %d] states %v, covers %v", n, p, l, u, got.Confidence, exactCoverage(n, l, u, p))
				}
				if tooFew := width == n; got.TooFew != tooFew || !tooFew && (u-l != width || !near(got.Confidence, level, 1e-12)) {
					t.Errorf("n=%d p=%v confidence=%v: got %+v, want width %d level %v", n, p, confidence, got, width, level)
				}
				if got.TooFew && (l != 1 || u != n) {
					t.Errorf("n=%d: too few, but not the extremes: %+v", n, got)
				}
			}
		}
	}
}

func TestMedianIntervalTooFew(t *testing.T) {
	// Five draws all fall on one side of the median with probability 2/32, so 93.75 %
	// is the most that n = 5 can reach; 95 % needs six.
	got := MedianInterval([]float64{5, 1, 4, 2, 3}, 0.95)
	if want := (Interval{Lo: 1, Hi: 5, Confidence: 0.9375, TooFew: true}); got != want {
		t.Errorf("n=5: got %+v, want %+v", got, want)
	}
	if got := MedianInterval([]float64{6, 5, 1, 4, 2, 3}, 0.95); got.TooFew || got.Lo != 1 || got.Hi != 6 {
		t.Errorf("n=6: got %+v", got)
	}
	if got, want := MedianInterval([]float64{7}, 0.5), (Interval{Lo: 7, Hi: 7, TooFew: true}); got != want {
		t.Errorf("n=1: got %+v, want %+v", got, want)
	}
}

// TestIntervalCoverage draws from a skewed distribution, the exponential, and counts how often the true quantile is inside.
func TestIntervalCoverage(t *testing.T) {
	const rounds = 4000
	rng := rand.New(rand.NewPCG(7, 7))
	for _, n := range []int{10, 25, 60} {
		hit, hitHigh := 0, 0
		var level, levelHigh float64
		for range rounds {
			x := make([]float64, n)
			for i := range x {
				x[i] = rng.ExpFloat64()
			}
			iv := MedianInterval(x, 0.9)
			high := QuantileInterval(x, 0.75, 0.8)
			level, levelHigh = iv.Confidence, high.Confidence
			if iv.Lo <= math.Ln2 && math.Ln2 <= iv.Hi {
				hit++
			}
			if q := -math.Log(0.25); high.Lo <= q && q <= high.Hi {
				hitHigh++
			}
		}
		// Four standard errors of a share.
		for _, c := range []struct{ got, want float64 }{
			{float64(hit) / rounds, level}, {float64(hitHigh) / rounds, levelHigh},
		} {
			if slack := 4 * math.Sqrt(c.want*(1-c.want)/rounds); math.Abs(c.got-c.want) > slack {
				t.Errorf("n=%d: covered %v, stated %v (+- %v)", n, c.got, c.want, slack)
			}
		}
	}
}

func TestIntervalsOfLargeSamples(t *testing.T) {
	// 0.5^5000 underflows; the normal approximation says l = n/2 - 0.98*sqrt(n).
	got := MedianInterval(ranks(5000), 0.95)
	if math.Abs(got.Lo-(2500-0.98*math.Sqrt(5000))) > 2 || got.Confidence < 0.95 || got.Confidence > 0.955 {
		t.Errorf("n=5000: %+v", got)
	}
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

func TestIntervalPanics(t *testing.T) {
	x := ranks(4)
	wantPanic(t, "stats: MedianInterval: confidence = 1, want 0 < confidence < 1", func() { MedianInterval(x, 1) })
	wantPanic(t, "stats: QuantileInterval: p = 0, want 0 < p < 1", func() { QuantileInterval(x, 0, 0.9) })
	wantPanic(t, "stats: QuantileInterval: confidence = 95, want 0 < confidence < 1", func() { QuantileInterval(x, 0.5, 95) })
	wantPanic(t, "stats: empty sample", func() { MedianInterval(nil, 0.9) })
	wantPanic(t, "stats: empty sample", func() { QuantileInterval(nil, 0.5, 0.9) })
}

package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naiveQuantile is type 7 read off the definition: the piecewise linear function
// through the points ((i-1)/(n-1), x(i)), found by walking along them.
func naiveQuantile(x []float64, p float64) float64 {
	s := slices.Clone(x)
	slices.Sort(s)
	n := float64(len(s))
	for i := 1; i < len(s); i++ {
		left, right := float64(i-1)/(n-1), float64(i)/(n-1)
		if p <= right {
			t := (p - left) / (right - left)
			return (1-t)*s[i-1] + t*s[i]
		}
	}
	return s[len(s)-1]
}

// eachTuple calls f with every sequence of the given length over 0..values-1.
func eachTuple(length, values int, f func(x []float64)) {
	x := make([]float64, length)
	var fill func(i int)
	fill = func(i int) {
		if i == length {
			f(slices.Clone(x))
			return
		}
		for v := range values {
			x[i] = float64(v)
			fill(i + 1)
		}
	}
	fill(0)
}

func near(a, b, tolerance float64) bool {
	return math.Abs(a-b) <= tolerance*max(1, math.Abs(a), math.Abs(b))
}

func TestQuantileExhaustive(t *testing.T) {
	for n := 1; n <= 5; n++ {
		eachTuple(n, 4, func(x []float64) {
			before := slices.Clone(x)
			for i := range 21 {
				p := float64(i) / 20
				if got, want := Quantile(x, p), naiveQuantile(x, p); !near(got, want, 1e-12) {
					t.Fatalf("Quantile(%v, %v) = %v, want %v", x, p, got, want)
				}
			}
			q1, med, q3 := Quartiles(x)
			if q1 != Quantile(x, 0.25) || med != Median(x) || q3 != Quantile(x, 0.75) || IQR(x) != q3-q1 {
				t.Fatalf("Quartiles(%v) = %v, %v, %v disagree with Quantile", x, q1, med, q3)
			}
			if !slices.Equal(x, before) {
				t.Fatalf("input changed: %v, was %v", x, before)
			}
		})
	}
}

func TestMADExhaustive(t *testing.T) {
	for n := 1; n <= 5; n++ {
		eachTuple(n, 4, func(x []float64) {
			m := naiveQuantile(x, 0.5)
			var centred, zero []float64
			for _, v := range x {
				centred = append(centred, math.Abs(v-m))
				zero = append(zero, math.Abs(v-3))
			}
			if got, want := MAD(x), 1.4826022185056018*naiveQuantile(centred, 0.5); !near(got, want, 1e-12) {
				t.Fatalf("MAD(%v) = %v, want %v", x, got, want)
			}
			for i := range x {
				x[i] -= 3
			}
			if got, want := RobustScale(x), 1.4826022185056018*naiveQuantile(zero, 0.5); !near(got, want, 1e-12) {
				t.Fatalf("RobustScale(%v) = %v, want %v", x, got, want)
			}
		})
	}
}

func TestScalesEstimateSigma(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([]float64, 20000)
	for i := range x {
		x[i] = 3 * rng.NormFloat64()
	}
	// The MAD's standard error is 1.17*sigma/sqrt(n) = 0.8 % here; 3 % is beyond 3.5 of them.
	for name, got := range map[string]float64{"MAD": MAD(x), "RobustScale": RobustScale(x)} {
		if !near(got, 3, 0.03) {
			t.Errorf("%s of normal data with sigma 3 = %v", name, got)
		}
	}
}

func TestQuantileProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 30).Draw(t, "x")
		p := rapid.Float64Range(0, 1).Draw(t, "p")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		if p > q {
			p, q = q, p
		}
		lo, hi := Quantile(x, p), Quantile(x, q)
		if lo > hi+1e-9 {
			t.Fatalf("not monotone: Quantile(%v)=%v > Quantile(%v)=%v", p, lo, q, hi)
		}
		if lo < slices.Min(x) || hi > slices.Max(x)+1e-9 {
			t.Fatalf("outside the sample: %v, %v of %v", lo, hi, x)
		}
	})
}

func TestQuantileOfConstantIsThatConstant(t *testing.T) {
	// 0.1 has no exact binary form, so a weighted mean of it with itself may round away.
	x := slices.Repeat([]float64{0.1}, 7)
	for i := range 101 {
		if got := Quantile(x, float64(i)/100); got != 0.1 {
			t.Fatalf("Quantile(0.1 seven times, %v) = %v", float64(i)/100, got)
		}
	}
}

func TestReferenceQuantiles(t *testing.T) {
	// Tabulated: Phi^-1(0.975), and t(0.975) with 5 and 30 degrees of freedom.
	for _, c := range []struct{ got, want float64 }{
		{NormalQuantile(0.975), 1.959963985},
		{NormalQuantile(0.5), 0},
		{StudentQuantile(0.975, 5), 2.570581836},
		{StudentQuantile(0.975, 30), 2.042272456},
		{StudentQuantile(0.025, 30), -2.042272456},
	} {
		if !near(c.got, c.want, 1e-8) {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
}

// wantPanic checks that f panics with exactly the given message.
func wantPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if got := fmt.Sprint(recover()); got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
	}()
	f()
}

func TestQuantilePanics(t *testing.T) {
	one := []float64{1}
	wantPanic(t, "stats: empty sample", func() { Median(nil) })
	wantPanic(t, "stats: empty sample", func() { MAD(nil) })
	wantPanic(t, "stats: empty sample", func() { RobustScale(nil) })
	wantPanic(t, "stats: empty sample", func() { NotchHalfWidth(nil) })
	wantPanic(t, "stats: sample[1] = NaN, want a finite number", func() { Median([]float64{1, math.NaN()}) })
	wantPanic(t, "stats: sample[0] = -Inf, want a finite number", func() { IQR([]float64{math.Inf(-1)}) })
	wantPanic(t, "stats: quantile p = 1.5, want 0 <= p <= 1", func() { Quantile(one, 1.5) })
	wantPanic(t, "stats: quantile p = NaN, want 0 <= p <= 1", func() { Quantile(one, math.NaN()) })
	wantPanic(t, "stats: NormalQuantile: p = 1, want 0 < p < 1", func() { NormalQuantile(1) })
	wantPanic(t, "stats: StudentQuantile: p = 0, want 0 < p < 1", func() { StudentQuantile(0, 3) })
	wantPanic(t, "stats: StudentQuantile: df = 0, want a positive finite number", func() { StudentQuantile(0.5, 0) })
	wantPanic(t, "stats: StudentQuantile: df = +Inf, want a positive finite number", func() { StudentQuantile(0.5, math.Inf(1)) })
}

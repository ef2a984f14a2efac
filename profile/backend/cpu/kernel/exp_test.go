package kernel

import (
	"math"
	"testing"
)

// Two million arguments over the whole domain: every 1009th float32, a stride coprime to every power of two, so that all
// patterns of the low mantissa bits occur.
func TestExpErrorBound(t *testing.T) {
	const stride = 1009
	worst, at := 0.0, float32(0)
	check := func(from, to float32) {
		for bits := math.Float32bits(from); bits <= math.Float32bits(to); bits += stride {
			x := math.Float32frombits(bits)
			want := math.Exp(float64(x))
			ulp := math.Ldexp(1, math.Ilogb(want)-23)
			if e := math.Abs(float64(exp32(x))-want) / ulp; !(e <= worst) {
				worst, at = e, x
			}
		}
	}
	check(0, ExpMax)
	check(float32(math.Copysign(0, -1)), ExpMin)
	t.Logf("worst error %.3f ulp at %v", worst, at)
	if !(worst <= ExpULP) {
		t.Errorf("exp32(%v) is off by %.3f ulp, stated bound %d", at, worst, ExpULP)
	}
}

func TestExpEdges(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct{ x, want float32 }{{0, 1}, {-inf, 0}, {inf, inf}, {-100, 0}, {-1e30, 0}, {89, inf}, {1e30, inf}} {
		if got := exp32(c.x); got != c.want {
			t.Errorf("exp32(%v) = %v, want %v", c.x, got, c.want)
		}
	}
	if y := exp32(float32(math.NaN())); y == y {
		t.Errorf("exp32(NaN) = %v", y)
	}
}

func TestExpShiftIsExp32AndItsSum(t *testing.T) {
	src := normal(seeded(1), 133)
	src[7], src[8] = float32(math.Inf(-1)), -300
	dst := poison(len(src))
	sum, want := expShift(dst, src, 1.5), 0.0
	for i, x := range src {
		if dst[i] != exp32(x-1.5) {
			t.Errorf("element %d: %v, exp32 gives %v", i, dst[i], exp32(x-1.5))
		}
		want += float64(dst[i])
	}
	if math.Abs(float64(sum)/want-1) > 1e-6 {
		t.Errorf("sum %v, want %v", sum, want)
	}
	nan := []float32{0, float32(math.NaN())}
	if s := expShift(nan, nan, 0); s == s {
		t.Errorf("a NaN vanished: sum %v", s)
	}
}

func TestLargest(t *testing.T) {
	for n := 1; n < 12; n++ {
		for at := range n {
			row := make([]float32, n)
			for i := range row {
				row[i] = -5
			}
			row[at] = -2
			if got := largest(row); got != -2 {
				t.Errorf("n=%d at=%d: %v", n, at, got)
			}
		}
	}
}

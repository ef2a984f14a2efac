package workload

import (
	"math"
	"testing"
)

// The words are default_rng(seed).bit_generator.random_raw(3) of NumPy 1.24.2.
func TestWordsAreThoseOfNumPy(t *testing.T) {
	for seed, want := range map[uint64][3]uint64{
		0:                    {11749869230777074271, 4976686463289251617, 755828109848996024},
		7:                    {11530976094092348043, 16550673365885938325, 14308875409591826786},
		12345678901234567890: {77935276331132168, 12033622772062331548, 11213416055601313548},
	} {
		g := newPCG64(seed)
		if got := [3]uint64{g.uint64(), g.uint64(), g.uint64()}; got != want {
			t.Errorf("seed %d: got %d, want %d", seed, got, want)
		}
	}
}

// The numbers are default_rng(7).random(3) of NumPy 1.24.2.
func TestFloatsAreThoseOfNumPy(t *testing.T) {
	g := newPCG64(7)
	for _, want := range []float64{0.625095466604667, 0.8972138009695755, 0.7756856902451935} {
		if got := g.float64(); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

// The numbers are default_rng(7).standard_normal() of NumPy 1.24.2; its largest
// of a million comes from the tail.
func TestNormalsAreThoseOfNumPy(t *testing.T) {
	n := newNormals(newPCG64(7))
	same := func(got, want float64) {
		if !(math.Abs(got-want) <= 2e-13*math.Abs(want)) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	first := []float64{0.0012301533574825742, 0.2987455375084699, -0.2741378553622176, -0.8905918387572742}
	largest := 0.0
	for i := range 1_000_000 {
		x := n.next()
		if i < len(first) {
			same(x, first[i])
		}
		largest = max(largest, math.Abs(x))
	}
	same(largest, 4.947871460149176)
}

func TestBetweenCoversBothEnds(t *testing.T) {
	g := newPCG64(1)
	seen := map[int64]int{}
	for range 6000 {
		seen[g.between(3, 8)]++
	}
	for v := int64(3); v <= 8; v++ {
		if n := seen[v]; n < 850 || n > 1150 { // 1,000 expected, standard deviation 29
			t.Errorf("%d was drawn %d of 6000 times", v, n)
		}
	}
	if len(seen) != 6 {
		t.Errorf("drawn: %v", seen)
	}
}

package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// naiveTau counts pair by pair as the definition has it.
func naiveTau(a, b []float64) float64 {
	n, concordant, discordant, tiesA, tiesB := 0, 0, 0, 0, 0
	for i := range a {
		for j := i + 1; j < len(a); j++ {
			n++
			if a[i] == a[j] {
				tiesA++
			}
			if b[i] == b[j] {
				tiesB++
			}
			switch d := (a[i] - a[j]) * (b[i] - b[j]); {
			case d > 0:
				concordant++
			case d < 0:
				discordant++
			}
		}
	}
	return float64(concordant-discordant) / math.Sqrt(float64((n-tiesA)*(n-tiesB)))
}

// TestKendallTauBExhaustive goes through all pairs of up to four values of three.
func TestKendallTauBExhaustive(t *testing.T) {
	for n := range 5 {
		for code := range int(math.Pow(9, float64(n))) {
			a, b := make([]float64, n), make([]float64, n)
			for i, c := 0, code; i < n; i, c = i+1, c/9 {
				a[i], b[i] = float64(c%3), float64(c/3%3)
			}
			got, pairs := KendallTauB(a, b, nil)
			want := naiveTau(a, b)
			if pairs != n*(n-1)/2 || math.IsNaN(got) != math.IsNaN(want) || math.Abs(got-want) > 1e-12 {
				t.Fatalf("%v, %v: %v of %d pairs, want %v", a, b, got, pairs, want)
			}
		}
	}
}

// TestKendallTauBKnown: R, cor(c(1,2,3,4,5), c(1,3,2,4,5), method="kendall") is
// 0.8, and with a tie in the second, c(1,2,2,4,5), 9/sqrt(90).
func TestKendallTauBKnown(t *testing.T) {
	a := []float64{1, 2, 3, 4, 5}
	for _, c := range []struct {
		b    []float64
		want float64
	}{{[]float64{1, 3, 2, 4, 5}, 0.8}, {[]float64{1, 2, 2, 4, 5}, 9 / math.Sqrt(90)}, {[]float64{5, 4, 3, 2, 1}, -1}} {
		if got, _ := KendallTauB(a, c.b, nil); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v: %v, want %v", c.b, got, c.want)
		}
	}
}

// TestKendallTauBTieBands: the order of a tied pair does not matter, and counts
// nowhere.
func TestKendallTauBTieBands(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 3 + rng.IntN(8)
		a, b := make([]float64, n), make([]float64, n)
		for i := range a {
			a[i], b[i] = rng.Float64(), float64(i)
		}
		near := func(i, j int) bool { return i/2 == j/2 }
		got, pairs := KendallTauB(a, b, near)
		for i := 0; i+1 < n; i += 2 {
			b[i], b[i+1] = b[i+1], b[i]
		}
		swapped, _ := KendallTauB(a, b, near)
		if got != swapped || pairs != n*(n-1)/2-n/2 {
			t.Errorf("seed %d: %v, with tied pairs swapped %v; %d pairs of %d", seed, got, swapped, pairs, n)
		}
	}
	if tau, pairs := KendallTauB([]float64{1, 2, 3}, []float64{1, 2, 3}, func(int, int) bool { return true }); !math.IsNaN(tau) || pairs != 0 {
		t.Errorf("all tied: %v of %d pairs", tau, pairs)
	}
	if tau, pairs := KendallTauB([]float64{1, 2, 3}, []float64{2, 1, 3}, func(i, j int) bool { return i+j == 1 }); tau != 1 || pairs != 2 {
		t.Errorf("the swapped pair is a tie: %v of %d pairs", tau, pairs)
	}
}

func TestKendallTauBPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"lengths": func() { KendallTauB([]float64{1}, nil, nil) },
		"NaN":     func() { KendallTauB([]float64{math.NaN()}, []float64{1}, nil) },
	} {
		mustPanic(t, name, f)
	}
}

func mustPanic(t *testing.T, name string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", name)
		}
	}()
	f()
}

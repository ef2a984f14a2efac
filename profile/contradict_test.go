package profile

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// norms gives times of n row-wise norms that a machine takes, with the scatter of their logs.
func norms(s *Sources, source, on string, n int, factor, scatter float64) {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(len(source))))
	for i := range n {
		at := NewSpot(on, op.Norm{Rowwise: op.Rowwise{Tokens: 64 << i, Width: 128, DType: op.F32}})
		for range 3 {
			s.Observe(source, at, factor*1e-6*float64(i+1)*math.Exp(scatter*rng.NormFloat64()))
		}
	}
}

func TestSourcesThatContradictAreNamed(t *testing.T) {
	for _, c := range []struct {
		name   string
		points int
		factor float64
		want   string
	}{
		{"twice as long", 8, 2, "a and b contradict each other: in the second norm on gpu takes typically 2 times as long (8 points)"},
		{"half the time", 8, 0.5, "a and b contradict each other: in the second norm on gpu takes typically 1/2 of the time (8 points)"},
		{"a third slower is another day", 8, 1.33, ""},
		{"four points are few", 4, 2, ""},
	} {
		var s Sources
		norms(&s, "a", "gpu", c.points, 1, 0.001)
		norms(&s, "b", "gpu", c.points, c.factor, 0.001)
		norms(&s, "c", "other", 8, 10*c.factor, 0.001) // shares nothing
		var got []string
		for _, x := range s.Contradictions() {
			got = append(got, x.String())
		}
		if got := strings.Join(got, "\n"); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Noise is no contradiction, however large within a source; what goes either way is one.
func TestNoiseContradictsNothing(t *testing.T) {
	var s Sources
	norms(&s, "noisy", "gpu", 20, 1, 0.3)
	norms(&s, "noisier", "gpu", 20, 1, 0.3)
	if got := s.Contradictions(); len(got) > 0 {
		t.Errorf("%v", got)
	}
	for i := range 20 {
		at := NewSpot("gpu", op.Norm{Rowwise: op.Rowwise{Tokens: 64 << i, Width: 128, DType: op.F32}})
		s.Observe("wild", at, 1e-6*float64(i+1)*math.Pow(4, float64(i%2*2-1)), 1e-6*float64(i+1)*math.Pow(4, float64(i%2*2-1)))
	}
	got := s.Contradictions()
	if len(got) != 1 || got[0].First != "noisy" || got[0].Second != "wild" || !strings.Contains(got[0].What, " or 1/4") {
		t.Errorf("%v", got)
	}
}

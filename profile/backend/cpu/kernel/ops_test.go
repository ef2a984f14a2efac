package kernel

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestGEMMMatchesReference(t *testing.T) {
	for i, s := range []GEMMShape{{1, 1, 1}, {63, 65, 7}, {65, 130, 64}, {130, 127, 129}, {1, 200, 70}, {256, 64, 3}} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			rng := seeded(uint64(i))
			a, b, c := normal(rng, s.M*s.K), normal(rng, s.K*s.N), normal(rng, s.M*s.N)
			got := poison(s.M * s.N)
			GEMMForward(s, got, a, b, crew(2))
			within(t, "forward", got, RefGEMMForward(s, a, b))
			got = poison(s.M * s.K)
			GEMMDGrad(s, got, c, b, crew(2))
			within(t, "dgrad", got, RefGEMMDGrad(s, c, b))
			got = poison(s.K * s.N)
			GEMMWGrad(s, got, a, c, crew(2))
			within(t, "wgrad", got, RefGEMMWGrad(s, a, c))
		})
	}
}

// drawRows is a small odd shape and a thread count, often more threads than rows.
func drawRows(rt *rapid.T) (Rows, int) {
	s := Rows{Tokens: rapid.IntRange(1, 9).Draw(rt, "tokens"), Width: rapid.IntRange(1, 300).Draw(rt, "width")}
	return s, rapid.IntRange(1, 12).Draw(rt, "threads")
}

func TestNormMatchesReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, threads := drawRows(rt)
		rng := seeded(1)
		x, w, y := normal(rng, s.Size()), normal(rng, s.Width), poison(s.Size())
		Norm(s, y, x, w, 1e-5, crew(threads))
		within(rt, "y", y, RefNorm(s, x, w, 1e-5))
	})
}

func TestRopeMatchesReferenceAndInverts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := RopeShape{
			Heads: rapid.IntRange(1, 4).Draw(rt, "heads"), Tokens: rapid.IntRange(1, 9).Draw(rt, "tokens"),
			HeadDim: 2 * rapid.IntRange(1, 65).Draw(rt, "half"),
		}
		threads := rapid.IntRange(1, 5).Draw(rt, "threads")
		x := normal(seeded(2), s.Heads*s.Tokens*s.HeadDim)
		n := s.Tokens * s.HeadDim / 2
		cos, sin, back := make([]float32, n), make([]float32, n), make([]float32, n)
		for i := range n {
			sn, c := math.Sincos(float64(i))
			cos[i], sin[i], back[i] = float32(c), float32(sn), float32(-sn)
		}
		y, start := slices.Clone(x), make([]float64, len(x))
		Rope(s, y, cos, sin, crew(threads))
		within(rt, "rotated", y, RefRope(s, x, cos, sin))
		for i, v := range x {
			start[i] = float64(v)
		}
		Rope(s, y, cos, back, crew(threads))
		within(rt, "rotated back", y, start)
	})
}

func TestSwiGLUMatchesReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, threads := drawRows(rt)
		rng := seeded(3)
		gate, up, out := normal(rng, s.Size()), normal(rng, s.Size()), poison(s.Size())
		gate[0] = -200 // sigmoid underflows: the product must be 0, not NaN
		gate[len(gate)-1] = 200
		SwiGLU(s, out, gate, up, crew(threads))
		within(rt, "out", out, RefSwiGLU(s, gate, up))
	})
}

func TestGELUMatchesReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, threads := drawRows(rt)
		x, out := normal(seeded(5), s.Size()), poison(s.Size())
		x[0] = -2000 // the exponential overflows: the result must be 0, not NaN
		x[len(x)-1] = 2000
		GELU(s, out, x, crew(threads))
		within(rt, "out", out, RefGELU(s, x))
		for i, v := range x { // far ends would hide the rest in a norm
			if want := RefGELU(Rows{1, 1}, x[i:])[0]; math.Abs(float64(out[i])-want) > 1e-6*(1+math.Abs(float64(v))) {
				rt.Errorf("gelu(%v) = %v, want %v", v, out[i], want)
			}
		}
	})
}

func TestCEChunkMatchesReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, threads := drawRows(rt)
		s.Width++ // with one class loss and gradient are exact zeros, where a relative error says nothing
		rng := seeded(4)
		logits, losses := normal(rng, s.Size()), poison(s.Tokens)
		targets := make([]int32, s.Tokens)
		for i := range targets {
			targets[i] = int32(rng.IntN(s.Width))
		}
		grad, want := RefCEChunk(s, logits, targets, 0.25)
		CEChunk(s, logits, targets, losses, 0.25, crew(threads))
		within(rt, "grad", logits, grad)
		within(rt, "losses", losses, want)
	})
}

func TestCEChunkRefusesTargetOutsideVocabulary(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("target 3 of a vocabulary of 3 was accepted")
		}
	}()
	CEChunk(Rows{1, 3}, make([]float32, 3), []int32{3}, make([]float32, 1), 1, crew(1))
}

func TestAdamWMatchesReference(t *testing.T) {
	for step := 1; step <= 3; step++ {
		rng := seeded(uint64(step))
		s := AdamWState{Param: normal(rng, 1001), Moment1: normal(rng, 1001), Moment2: normal(rng, 1001), Grad: normal(rng, 1001)}
		for i, v := range s.Moment2 {
			s.Moment2[i] = v * v
		}
		h := AdamWParams{LearningRate: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Step: step}
		p, m, v := RefAdamW(h, s)
		AdamW(h, s, crew(step))
		within(t, "param", s.Param, p)
		within(t, "moment1", s.Moment1, m)
		within(t, "moment2", s.Moment2, v)
	}
}

func TestLSEMergeMatchesReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := MergeShape{
			Tokens: rapid.IntRange(1, 9).Draw(rt, "tokens"), QHeads: rapid.IntRange(1, 3).Draw(rt, "heads"),
			HeadDim: rapid.IntRange(1, 130).Draw(rt, "head_dim"),
		}
		rng, n := seeded(7), s.Tokens*s.QHeads
		a := Partial{O: normal(rng, n*s.HeadDim), LSE: normal(rng, n)}
		b := Partial{O: normal(rng, n*s.HeadDim), LSE: normal(rng, n)}
		b.LSE[0] += rapid.SampledFrom([]float32{-300, 0, 300}).Draw(rt, "gap")
		o, lse := RefLSEMerge(s, a, b)
		out := Partial{O: poison(len(a.O)), LSE: poison(n)}
		LSEMerge(s, out, a, b, crew(rapid.IntRange(1, 5).Draw(rt, "threads")))
		within(rt, "o", out.O, o)
		within(rt, "lse", out.LSE, lse)
		LSEMerge(s, a, a, b, crew(2))
		within(rt, "in place", a.O, o)
	})
}

// A block of no keys has lse = -Inf; merging it must not touch the other, and two of them are still none.
func TestLSEMergeOfNothing(t *testing.T) {
	none := float32(math.Inf(-1))
	out := Partial{O: poison(2), LSE: poison(2)}
	LSEMerge(MergeShape{2, 1, 1}, out, Partial{[]float32{3, 0}, []float32{1, none}}, Partial{[]float32{0, 0}, []float32{none, none}}, crew(1))
	if !slices.Equal(out.O, []float32{3, 0}) || !slices.Equal(out.LSE, []float32{1, none}) {
		t.Errorf("got %v", out)
	}
}

func TestRelErrNeverPassesBadNumbers(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		got  []float32
		want []float64
	}{
		{[]float32{nan}, []float64{1}},
		{[]float32{inf}, []float64{1}},
		{[]float32{inf}, []float64{math.Inf(1)}},
		{[]float32{1}, []float64{math.NaN()}},
		{[]float32{1}, []float64{1, 2}},
	} {
		if e := RelErr(c.got, c.want); !math.IsInf(e, 1) {
			t.Errorf("RelErr(%v, %v) = %v", c.got, c.want, e)
		}
	}
	if e := RelErr([]float32{3, 4}, []float64{3, 5}); math.Abs(e-1/math.Sqrt(34)) > 1e-15 {
		t.Errorf("got %v", e)
	}
	if e := RelErr([]float32{0.5}, []float64{0}); e != 0.5 {
		t.Errorf("zero reference: %v", e)
	}
}

func TestWrongLengthPanics(t *testing.T) {
	defer func() {
		if got, want := fmt.Sprint(recover()), "kernel: norm w has 3 elements, its shape needs 4"; got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
	}()
	Norm(Rows{2, 4}, make([]float32, 8), make([]float32, 8), make([]float32, 3), 0, crew(1))
}

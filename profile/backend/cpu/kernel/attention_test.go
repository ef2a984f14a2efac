package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// limit is the relative error in the 2-norm that every kernel must keep to its float64 reference. Sums of up to a few
// hundred float32 terms stay near 1e-6; a wrong mask, scale or head is off by 1e-2 and more.
const limit = 1e-5

func within(t interface {
	Helper()
	Errorf(string, ...any)
}, what string, got []float32, want []float64,
) {
	t.Helper()
	if e := RelErr(got, want); e > limit {
		t.Errorf("%s: relative error %.3g, limit %g", what, e, limit)
	}
}

// oddShapes meet every edge of the 64-row tiles: one row, one short of a tile, one over, two tiles and a bit.
func oddShapes() []AttentionShape {
	heads := []struct{ q, kv int }{{1, 1}, {4, 1}, {8, 1}, {5, 2}}
	rectangles := []struct{ q, kv int }{{1, 1}, {63, 65}, {65, 63}, {1, 130}, {127, 64}, {130, 1}}
	var shapes []AttentionShape
	for i, h := range heads {
		for j, r := range rectangles {
			d := []int{64, 128}[(i+j)%2]
			shapes = append(shapes, AttentionShape{Full, r.q, r.kv, h.q, h.kv, d})
		}
		for j, n := range []int{1, 63, 65, 127, 130} {
			d := []int{128, 64}[(i+j)%2]
			shapes = append(shapes, AttentionShape{Diag, n, n, h.q, h.kv, d})
		}
	}
	// Head dimensions that are not multiples of a vector, and one wide enough to be cut into strips.
	return append(shapes, AttentionShape{Full, 70, 90, 2, 1, 5}, AttentionShape{Diag, 66, 66, 2, 2, 260})
}

func TestAttentionForwardMatchesReference(t *testing.T) {
	for i, s := range oddShapes() {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			a, _ := attentionData(s, uint64(i))
			AttentionForward(s, a, crew(1+i%3))
			o, lse := RefAttentionForward(s, a)
			within(t, "o", a.O, o)
			within(t, "lse", a.LSE, lse)
		})
	}
}

func TestAttentionBackwardMatchesReference(t *testing.T) {
	for i, s := range oddShapes() {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			a, g := attentionData(s, uint64(i))
			AttentionForward(s, a, crew(1))
			if s.KVLen == 1 || s.QLen == 1 && s.Mask == Diag {
				// One key: P = 1 and dP-delta is pure rounding around an exact zero. Make o not this block's own, as in a
				// block of a longer sequence.
				a.O = normal(seeded(99), s.QSize())
			}
			AttentionBackward(s, a, g, crew(1+i%3))
			dq, dk, dv := RefAttentionBackward(s, a, g)
			within(t, "dQ", g.DQ, dq)
			within(t, "dK", g.DK, dk)
			within(t, "dV", g.DV, dv)
		})
	}
}

func randomShape(rt *rapid.T) AttentionShape {
	s := AttentionShape{
		Mask: rapid.SampledFrom([]Mask{Full, Diag}).Draw(rt, "mask"), HeadDim: rapid.IntRange(1, 80).Draw(rt, "head_dim"),
		QLen: rapid.IntRange(1, 150).Draw(rt, "q_len"), KVLen: rapid.IntRange(1, 150).Draw(rt, "kv_len"),
		QHeads: rapid.IntRange(1, 6).Draw(rt, "q_heads"),
	}
	s.KVHeads = rapid.IntRange(1, s.QHeads).Draw(rt, "kv_heads")
	if s.Mask == Diag {
		s.KVLen = s.QLen
	}
	return s
}

// The thread count decides who computes a tile, never the order of a sum: results are the same to the bit. All
// calls use the same memory, for the dot products of gonum's assembly begin with what lies before a multiple of 16
// bytes, and allocations of up to 24 bytes need not begin at one.
func TestAttentionIndependentOfThreads(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := randomShape(rt)
		a, g := attentionData(s, 7)
		outputs := map[string][]float32{"o": a.O, "lse": a.LSE, "dQ": g.DQ, "dK": g.DK, "dV": g.DV}
		alone := map[string][]float32{}
		for _, threads := range []int{1, 2, 3, 9} {
			for _, into := range outputs {
				copy(into, poison(len(into)))
			}
			AttentionForward(s, a, crew(threads))
			AttentionBackward(s, a, g, crew(threads))
			for name, got := range outputs {
				if threads == 1 {
					alone[name] = slices.Clone(got)
				}
				same(rt, name, alone[name], got)
			}
		}
	})
}

func same(t *rapid.T, what string, a, b []float32) {
	bits := func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }
	if !slices.EqualFunc(a, b, bits) {
		t.Errorf("%s depends on the thread count", what)
	}
}

// With v = 1 the output is the sum of the softmax weights.
func TestSoftmaxRowsSumToOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := randomShape(rt)
		a, _ := attentionData(s, 3)
		for i := range a.V {
			a.V[i] = 1
		}
		AttentionForward(s, a, crew(2))
		for i, v := range a.O {
			if !(math.Abs(float64(v)-1) < 1e-5) {
				rt.Fatalf("row %d of %+v sums to %v", i/s.HeadDim, s, v)
			}
		}
	})
}

// Scores of +-several hundred overflow a softmax that does not subtract the maximum.
func TestAttentionLargeScores(t *testing.T) {
	s := AttentionShape{Mask: Diag, QLen: 150, KVLen: 150, QHeads: 2, KVHeads: 1, HeadDim: 64}
	a, _ := attentionData(s, 11)
	for i := range a.Q {
		a.Q[i] *= 100
	}
	AttentionForward(s, a, crew(2))
	o, lse := RefAttentionForward(s, a)
	within(t, "lse", a.LSE, lse)
	// A score of 300 carries an absolute rounding error near 300*2^-24*sqrt(D), which the softmax turns into a relative one.
	if e := RelErr(a.O, o); e > 1e-4 {
		t.Errorf("o: relative error %.3g", e)
	}
}

// cut is a causal sequence in two halves: DIAG of each half and the FULL block of the second's queries on the first's keys.
type cut struct {
	whole AttentionShape
	n     int // tokens of the first half
}

func drawCut(rt *rapid.T) (cut, *rand.Rand) {
	s := randomShape(rt)
	s.QLen = max(s.QLen, 2)
	s.Mask, s.KVLen = Diag, s.QLen
	return cut{s, rapid.IntRange(1, s.QLen-1).Draw(rt, "cut")}, seeded(5)
}

func (c cut) shape(m Mask, q, kv int) AttentionShape {
	s := c.whole
	s.Mask, s.QLen, s.KVLen = m, q, kv
	return s
}

// rows copies rows [lo, hi) of every head of t[heads][length][dim].
func rows(t []float32, heads, length, dim, lo, hi int) []float32 {
	var out []float32
	for h := range heads {
		out = append(out, t[(h*length+lo)*dim:(h*length+hi)*dim]...)
	}
	return out
}

// add adds part to rows [lo, hi) of every head of sum.
func add(sum []float64, part []float32, heads, length, dim, lo, hi int) {
	for h := range heads {
		for i := range (hi - lo) * dim {
			sum[(h*length+lo)*dim+i] += float64(part[h*(hi-lo)*dim+i])
		}
	}
}

// block is the inputs of the block of queries [qlo, qhi) on keys [klo, khi).
func (c cut) block(a Attention, qlo, qhi, klo, khi int) Attention {
	s := c.whole
	return Attention{
		Q: rows(a.Q, s.QHeads, s.QLen, s.HeadDim, qlo, qhi), O: rows(a.O, s.QHeads, s.QLen, s.HeadDim, qlo, qhi),
		LSE: rows(a.LSE, s.QHeads, s.QLen, 1, qlo, qhi),
		K:   rows(a.K, s.KVHeads, s.KVLen, s.HeadDim, klo, khi), V: rows(a.V, s.KVHeads, s.KVLen, s.HeadDim, klo, khi),
	}
}

func TestFullAndDiagMergeToCausal(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, _ := drawCut(rt)
		s, n := c.whole, c.n
		a, _ := attentionData(s, 21)
		o, lse := RefAttentionForward(s, a)
		diag, full := c.block(a, n, s.QLen, n, s.QLen), c.block(a, n, s.QLen, 0, n)
		AttentionForward(c.shape(Diag, s.QLen-n, s.QLen-n), diag, crew(2))
		AttentionForward(c.shape(Full, s.QLen-n, n), full, crew(2))
		merged := Partial{O: poison(len(diag.O)), LSE: poison(len(diag.LSE))}
		LSEMerge(MergeShape{s.QLen - n, s.QHeads, s.HeadDim}, merged,
			Partial{diag.O, diag.LSE}, Partial{full.O, full.LSE}, crew(3))
		within(rt, "o", merged.O, rows64(o, s.QHeads, s.QLen, s.HeadDim, n, s.QLen))
		within(rt, "lse", merged.LSE, rows64(lse, s.QHeads, s.QLen, 1, n, s.QLen))
	})
}

func rows64(t []float64, heads, length, dim, lo, hi int) []float64 {
	var out []float64
	for h := range heads {
		out = append(out, t[(h*length+lo)*dim:(h*length+hi)*dim]...)
	}
	return out
}

func TestBackwardBlocksSumToWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, _ := drawCut(rt)
		s, n := c.whole, c.n
		a, g := attentionData(s, 22)
		AttentionForward(s, a, crew(2))
		AttentionBackward(s, a, g, crew(2))
		dq, dk, dv := make([]float64, s.QSize()), make([]float64, s.KVSize()), make([]float64, s.KVSize())
		for _, b := range []struct {
			mask               Mask
			qlo, qhi, klo, khi int
		}{{Diag, 0, n, 0, n}, {Full, n, s.QLen, 0, n}, {Diag, n, s.QLen, n, s.QLen}} {
			shape := c.shape(b.mask, b.qhi-b.qlo, b.khi-b.klo)
			part := AttentionGrad{
				DO: rows(g.DO, s.QHeads, s.QLen, s.HeadDim, b.qlo, b.qhi),
				DQ: poison(shape.QSize()), DK: poison(shape.KVSize()), DV: poison(shape.KVSize()),
			}
			AttentionBackward(shape, c.block(a, b.qlo, b.qhi, b.klo, b.khi), part, crew(2))
			add(dq, part.DQ, s.QHeads, s.QLen, s.HeadDim, b.qlo, b.qhi)
			add(dk, part.DK, s.KVHeads, s.KVLen, s.HeadDim, b.klo, b.khi)
			add(dv, part.DV, s.KVHeads, s.KVLen, s.HeadDim, b.klo, b.khi)
		}
		within(rt, "dQ", g.DQ, dq)
		within(rt, "dK", g.DK, dk)
		within(rt, "dV", g.DV, dv)
	})
}

// The reference's own gradient is checked against finite differences of its forward, so that a shared mistake cannot hide.
func TestRefBackwardIsTheDerivative(t *testing.T) {
	s := AttentionShape{Mask: Diag, QLen: 7, KVLen: 7, QHeads: 5, KVHeads: 2, HeadDim: 4}
	a, g := attentionData(s, 31)
	loss := func() (sum float64) {
		o, _ := RefAttentionForward(s, a)
		for i, v := range o {
			sum += v * float64(g.DO[i])
		}
		return sum
	}
	o, lse := RefAttentionForward(s, a)
	narrow(a.O, o)
	narrow(a.LSE, lse)
	dq, dk, dv := RefAttentionBackward(s, a, g)
	for _, c := range []struct {
		name string
		x    []float32
		grad []float64
	}{{"q", a.Q, dq}, {"k", a.K, dk}, {"v", a.V, dv}} {
		for i := range c.x {
			x := c.x[i]
			c.x[i] = x + 1.0/512
			up, step := loss(), float64(c.x[i])
			c.x[i] = x - 1.0/512
			down := loss()
			step -= float64(c.x[i])
			c.x[i] = x
			// Central differences are off by step^2/24 times a third derivative of order 1 to 10.
			if slope := (up - down) / step; math.Abs(slope-c.grad[i]) > 1e-4*(1+math.Abs(slope)) {
				t.Errorf("d%s[%d] = %g, slope %g", c.name, i, c.grad[i], slope)
			}
		}
	}
}

func narrow(dst []float32, src []float64) {
	for i, v := range src {
		dst[i] = float32(v)
	}
}

func TestAttentionShapeErrors(t *testing.T) {
	good := AttentionShape{Mask: Full, QLen: 2, KVLen: 3, QHeads: 2, KVHeads: 1, HeadDim: 4}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, breakIt := range map[string]func(*AttentionShape){
		"no mask": func(s *AttentionShape) { s.Mask = 0 }, "no queries": func(s *AttentionShape) { s.QLen = 0 },
		"more kv heads": func(s *AttentionShape) { s.KVHeads = 3 }, "rectangular diag": func(s *AttentionShape) { s.Mask = Diag },
	} {
		s := good
		breakIt(&s)
		if s.Validate() == nil {
			t.Errorf("%s: accepted %+v", name, s)
		}
	}
}

func TestFLOPsCountUnderTheMask(t *testing.T) {
	s := AttentionShape{Mask: Diag, QLen: 5, KVLen: 5, QHeads: 3, KVHeads: 1, HeadDim: 8}
	if got, want := s.ForwardFLOPs(), 4.0*3*8*15; got != want { // 15 = 5*6/2 pairs
		t.Errorf("diag forward %v, want %v", got, want)
	}
	s.Mask = Full
	if got, want := s.ForwardFLOPs(), 4.0*3*8*25; got != want {
		t.Errorf("full forward %v, want %v", got, want)
	}
}

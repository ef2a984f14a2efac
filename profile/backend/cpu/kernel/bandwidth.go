package kernel

import (
	"fmt"
	"math"
)

// Rows is the shape of a bandwidth-bound op: Tokens rows of Width elements, contiguous. The name is the GPU's: in scalar Go
// SwiGLU, GELU and CEChunk are bound by the exponential. Either way their time is a constant plus a rate times the elements.
type Rows struct {
	Tokens, Width int
}

// Validate reports a count below 1.
func (s Rows) Validate() error {
	if min(s.Tokens, s.Width) < 1 {
		return fmt.Errorf("kernel: row shape %+v: tokens and width must be at least 1", s)
	}
	return nil
}

// Size is Tokens*Width.
func (s Rows) Size() int { return s.Tokens * s.Width }

func (s Rows) check(names string, tensors ...[]float32) {
	must(s.Validate())
	for _, t := range tensors {
		wantLen(names, t, s.Size())
	}
}

// Norm is RMSNorm forward: y = x * w / sqrt(mean(x^2)+eps) over each row; w has Width elements. y may be x.
func Norm(s Rows, y, x, w []float32, eps float32, team *Team) {
	s.check("norm x or y", x, y)
	wantLen("norm w", w, s.Width)
	overRows(s.Tokens, team, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			in, out := x[r*s.Width:(r+1)*s.Width], y[r*s.Width:(r+1)*s.Width]
			mean := float64(dot(in, in)) / float64(s.Width)
			inverse := float32(1 / math.Sqrt(mean+float64(eps)))
			for i, v := range in {
				out[i] = v * inverse * w[i]
			}
		}
	})
}

// RopeShape is x[Heads][Tokens][HeadDim], HeadDim even.
type RopeShape struct {
	Heads, Tokens, HeadDim int
}

// Validate reports a count below 1 or an odd HeadDim.
func (s RopeShape) Validate() error {
	if min(s.Heads, s.Tokens, s.HeadDim) < 1 || s.HeadDim%2 != 0 {
		return fmt.Errorf("kernel: rope shape %+v: every count must be at least 1 and head_dim even", s)
	}
	return nil
}

// Rope rotates x in place: with h = HeadDim/2, the pair (x[i], x[i+h]) of token t turns by the angle whose cosine and sine
// are cos[t][i] and sin[t][i]; both tables are [Tokens][h]. The inverse, which backward needs, is Rope with -sin.
func Rope(s RopeShape, x, cos, sin []float32, team *Team) {
	must(s.Validate())
	half := s.HeadDim / 2
	wantLen("rope x", x, s.Heads*s.Tokens*s.HeadDim)
	wantLen("rope cos", cos, s.Tokens*half)
	wantLen("rope sin", sin, s.Tokens*half)
	overRows(s.Heads*s.Tokens, team, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			t := r % s.Tokens
			a, b := x[r*s.HeadDim:r*s.HeadDim+half], x[r*s.HeadDim+half:(r+1)*s.HeadDim]
			c, sn := cos[t*half:(t+1)*half], sin[t*half:(t+1)*half]
			for i := range a {
				u, v := a[i], b[i]
				a[i], b[i] = u*c[i]-v*sn[i], v*c[i]+u*sn[i]
			}
		}
	})
}

// SwiGLU is out = gate*sigmoid(gate) * up, element by element. out may be gate or up.
func SwiGLU(s Rows, out, gate, up []float32, team *Team) {
	s.check("swiglu out, gate or up", out, gate, up)
	overRows(s.Tokens, team, func(lo, hi int) {
		for i := lo * s.Width; i < hi*s.Width; i++ {
			g := gate[i]
			out[i] = g / (1 + exp32(-g)) * up[i]
		}
	})
}

// The argument of GELU's exponential is -x (gelu1 + gelu3 x^2): tanh(z) = 2/(1+exp(-2z)) - 1 turns x (1+tanh(z))/2 with
// z = sqrt(2/pi) (x + 0.044715 x^3) into x / (1+exp(-2z)).
const (
	gelu1 = 1.59576912160573071 // 2 sqrt(2/pi)
	gelu3 = 0.0713548162726009  // 0.044715 times that
)

// GELU is out = x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3))), the tanh form, element by element. out may be x.
func GELU(s Rows, out, x []float32, team *Team) {
	s.check("gelu out or x", out, x)
	overRows(s.Tokens, team, func(lo, hi int) {
		for i := lo * s.Width; i < hi*s.Width; i++ {
			v := x[i]
			out[i] = v / (1 + exp32(-v*(gelu1+gelu3*v*v)))
		}
	})
}

// CEChunk is softmax cross-entropy over a chunk of tokens, Width being the vocabulary: losses[t] = logsumexp(logits[t]) -
// logits[t][targets[t]], and logits is overwritten with its gradient, gradScale*(softmax-onehot). A target outside the
// vocabulary panics.
func CEChunk(s Rows, logits []float32, targets []int32, losses []float32, gradScale float32, team *Team) {
	s.check("logits", logits)
	wantLen("targets", targets, s.Tokens)
	wantLen("losses", losses, s.Tokens)
	for t, target := range targets {
		if target < 0 || int(target) >= s.Width {
			panic(fmt.Sprintf("kernel: target %d of token %d is outside the vocabulary of %d", target, t, s.Width))
		}
	}
	overRows(s.Tokens, team, func(lo, hi int) {
		for t := lo; t < hi; t++ {
			row, target := logits[t*s.Width:(t+1)*s.Width], targets[t]
			top, chosen := largest(row), row[target]
			sum := expShift(row, row, top)
			losses[t] = top - chosen + float32(math.Log(float64(sum)))
			scaleRow(row, gradScale/sum)
			row[target] -= gradScale
		}
	})
}

// AdamWParams are the constants of one optimizer step. Step counts from 1.
type AdamWParams struct {
	LearningRate, Beta1, Beta2, Eps, WeightDecay float32
	Step                                         int
}

// AdamWState is the memory of the update: Grad is read; Param and the first and second Moments are updated in place.
type AdamWState struct {
	Param, Moment1, Moment2, Grad []float32
}

// AdamW makes one decoupled-weight-decay Adam step, all in float32:
// m += (1-b1)(g-m), v += (1-b2)(g^2-v), p -= lr*(m/(1-b1^t)/(sqrt(v/(1-b2^t))+eps) + decay*p).
func AdamW(h AdamWParams, s AdamWState, team *Team) {
	n := len(s.Param)
	wantLen("moment1", s.Moment1, n)
	wantLen("moment2", s.Moment2, n)
	wantLen("grad", s.Grad, n)
	if h.Step < 1 {
		panic(fmt.Sprintf("kernel: adamw step %d: steps count from 1", h.Step))
	}
	unbias1 := float32(1 / (1 - math.Pow(float64(h.Beta1), float64(h.Step))))
	unbias2 := float32(1 / (1 - math.Pow(float64(h.Beta2), float64(h.Step))))
	keep := 1 - h.LearningRate*h.WeightDecay
	overRows(n, team, func(lo, hi int) {
		p, m, v := s.Param[lo:hi], s.Moment1[lo:hi], s.Moment2[lo:hi]
		for i, g := range s.Grad[lo:hi] {
			m[i] += (1 - h.Beta1) * (g - m[i])
			v[i] += (1 - h.Beta2) * (g*g - v[i])
			root := float32(math.Sqrt(float64(v[i] * unbias2)))
			p[i] = keep*p[i] - h.LearningRate*m[i]*unbias1/(root+h.Eps)
		}
	})
}

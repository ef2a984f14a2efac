package cpu

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/cpu/kernel"
)

// tolerance is the relative error, in the 2-norm, that float32 kernels stay
// under on the verified shapes; they reach about 3e-7.
const tolerance = 1e-5

// verify runs the kernel of an op and variant on a small odd shape and compares
// it with its float64 reference, once. A kernel that is wrong is never timed.
func (w *workload) verify(s op.Shape) error {
	name := fmt.Sprintf("%s %s", s.Kind(), s.Variant())
	if w.verified[name] {
		return nil
	}
	w.arena.reset(1<<20, 2*maxTensors, 1)
	worst, err := w.relErr(s)
	if err != nil {
		return err
	}
	if !(worst <= tolerance) {
		return &profile.OpError{Class: profile.Wrong, Err: fmt.Errorf("%s: relative error %.2g against the float64 reference, limit %g: not timed", name, worst, float64(tolerance))}
	}
	w.verified[name] = true
	return nil
}

// relErr is the largest relative error of the outputs of a small call.
func (w *workload) relErr(s op.Shape) (float64, error) {
	a, team := w.arena, w.team
	rows := kernel.Rows{Tokens: 37, Width: 130}
	switch s := s.(type) {
	case op.AttnFwd, op.AttnBwd:
		return w.attentionErr(s)
	case op.GEMM:
		return w.gemmErr(s.Pass), nil
	case op.LSEMerge:
		m := kernel.MergeShape{Tokens: 37, QHeads: 3, HeadDim: s.HeadDim}
		partial := func() kernel.Partial {
			return kernel.Partial{O: a.normal(m.Tokens * m.QHeads * m.HeadDim), LSE: a.normal(m.Tokens * m.QHeads)}
		}
		x, y, out := partial(), partial(), partial()
		o, lse := kernel.RefLSEMerge(m, x, y)
		kernel.LSEMerge(m, out, x, y, team)
		return max(kernel.RelErr(out.O, o), kernel.RelErr(out.LSE, lse)), nil
	case op.Norm:
		x, g, y := a.normal(rows.Size()), a.normal(rows.Width), a.take(rows.Size())
		kernel.Norm(rows, y, x, g, eps, team)
		return kernel.RelErr(y, kernel.RefNorm(rows, x, g, eps)), nil
	case op.Rope:
		r := kernel.RopeShape{Heads: 3, Tokens: 37, HeadDim: ropeHeadDim}
		x, cos, sin := a.normal(r.Heads*r.Tokens*r.HeadDim), a.take(r.Tokens*r.HeadDim/2), a.take(r.Tokens*r.HeadDim/2)
		fillAngles(r, cos, sin)
		want := kernel.RefRope(r, x, cos, sin)
		kernel.Rope(r, x, cos, sin, team)
		return kernel.RelErr(x, want), nil
	case op.SwiGLU:
		gate, up, out := a.normal(rows.Size()), a.normal(rows.Size()), a.take(rows.Size())
		kernel.SwiGLU(rows, out, gate, up, team)
		return kernel.RelErr(out, kernel.RefSwiGLU(rows, gate, up)), nil
	case op.GELU:
		x, out := a.normal(rows.Size()), a.take(rows.Size())
		kernel.GELU(rows, out, x, team)
		return kernel.RelErr(out, kernel.RefGELU(rows, x)), nil
	case op.CEChunk:
		logits, losses, targets := a.normal(rows.Size()), a.take(rows.Tokens), make([]int32, rows.Tokens)
		grad, want := kernel.RefCEChunk(rows, logits, targets, 1)
		kernel.CEChunk(rows, logits, targets, losses, 1, team)
		return max(kernel.RelErr(logits, grad), kernel.RelErr(losses, want)), nil
	case op.AdamW:
		return w.adamWErr(), nil
	}
	return 0, unsupported(s)
}

func (w *workload) attentionErr(s op.Shape) (float64, error) {
	var shape op.Attention
	switch s := s.(type) {
	case op.AttnFwd:
		shape = s.Attention
	case op.AttnBwd:
		shape = s.Attention
	}
	k := shapeOf(shape)
	k.QLen, k.KVLen, k.QHeads, k.KVHeads = 70, 70, 4, 2
	if k.Mask == kernel.Full {
		k.KVLen = 133
	}
	a := w.arena
	t := kernel.Attention{
		Q: a.normal(k.QSize()), K: a.normal(k.KVSize()), V: a.normal(k.KVSize()), O: a.take(k.QSize()), LSE: a.take(k.LSESize()),
	}
	o, lse := kernel.RefAttentionForward(k, t)
	kernel.AttentionForward(k, t, w.team)
	worst := max(kernel.RelErr(t.O, o), kernel.RelErr(t.LSE, lse))
	if s.Kind() == op.KindAttnFwd {
		return worst, nil
	}
	g := kernel.AttentionGrad{DO: a.normal(k.QSize()), DQ: a.take(k.QSize()), DK: a.take(k.KVSize()), DV: a.take(k.KVSize())}
	dq, dk, dv := kernel.RefAttentionBackward(k, t, g)
	kernel.AttentionBackward(k, t, g, w.team)
	return max(worst, kernel.RelErr(g.DQ, dq), kernel.RelErr(g.DK, dk), kernel.RelErr(g.DV, dv)), nil
}

func (w *workload) gemmErr(pass op.Pass) float64 {
	s, a := kernel.GEMMShape{M: 130, N: 67, K: 93}, w.arena
	x, b, c := a.normal(s.M*s.K), a.normal(s.K*s.N), a.normal(s.M*s.N)
	switch pass {
	case op.DGrad:
		want := kernel.RefGEMMDGrad(s, c, b)
		kernel.GEMMDGrad(s, x, c, b, w.team)
		return kernel.RelErr(x, want)
	case op.WGrad:
		want := kernel.RefGEMMWGrad(s, x, c)
		kernel.GEMMWGrad(s, b, x, c, w.team)
		return kernel.RelErr(b, want)
	}
	want := kernel.RefGEMMForward(s, x, b)
	kernel.GEMMForward(s, c, x, b, w.team)
	return kernel.RelErr(c, want)
}

func (w *workload) adamWErr() float64 {
	a := w.arena
	t := kernel.AdamWState{Param: a.normal(1001), Moment1: a.normal(1001), Moment2: a.normal(1001), Grad: a.normal(1001)}
	for i, v := range t.Moment2 {
		t.Moment2[i] = v * v
	}
	param, m1, m2 := kernel.RefAdamW(adamWParams(), t)
	kernel.AdamW(adamWParams(), t, w.team)
	return slices.Max([]float64{kernel.RelErr(t.Param, param), kernel.RelErr(t.Moment1, m1), kernel.RelErr(t.Moment2, m2)})
}

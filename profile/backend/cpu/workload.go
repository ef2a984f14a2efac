package cpu

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/cpu/kernel"
)

// workload is a device's kernels bound to inputs.
type workload struct {
	arena    *arena
	team     *kernel.Team
	l2       units.Bytes
	verified map[string]bool

	sets []func() // one call each, on inputs of its own
	next int
}

func newWorkload(threads int, l2 units.Bytes) *workload {
	return &workload{arena: newArena(), team: kernel.NewTeam(threads), l2: l2, verified: map[string]bool{}}
}

// maxSets bounds the memory that rotating inputs take.
const maxSets = 16

// maxTensors is the most that any op binds: attention's backward has q, k, v,
// out, log-sum-exp and four gradients.
const maxTensors = 9

// prepare makes enough sets of inputs that a call does not find those of the
// call before last in its second-level cache (training never does), after the
// kernel has proved itself against its reference.
func (w *workload) prepare(s op.Shape, seed uint64) error {
	if err := w.verify(s); err != nil {
		return err
	}
	b, err := binderOf(s)
	if err != nil {
		return err
	}
	elements := b.elements()
	bytes := 4 * units.Bytes(elements)
	if bytes > maxPoint {
		return &profile.OpError{Class: profile.OutOfMemory, Err: fmt.Errorf("needs %s of inputs and outputs, more than the %s that one point may take", bytes, units.Bytes(maxPoint))}
	}
	n := int(min(maxSets, max(1, (4*w.l2+bytes-1)/bytes)))
	w.arena.reset(n*elements, n*maxTensors, seed)
	w.sets, w.next = w.sets[:0], 0
	for range n {
		w.sets = append(w.sets, b.bind(w.arena, w.team))
	}
	return nil
}

// maxPoint is the most memory a point may take.
const maxPoint = 4 * units.GiB

// call runs the prepared op once on the next set of inputs.
func (w *workload) call() {
	w.sets[w.next%len(w.sets)]()
	w.next++
}

// binder knows how many elements an op needs and binds its kernel to them.
type binder interface {
	elements() int
	bind(a *arena, team *kernel.Team) func()
}

func binderOf(s op.Shape) (binder, error) {
	switch s := s.(type) {
	case op.AttnFwd:
		return attention{shapeOf(s.Attention), false}, nil
	case op.AttnBwd:
		return attention{shapeOf(s.Attention), true}, nil
	case op.LSEMerge:
		return merge{kernel.MergeShape{Tokens: int(s.Tokens), QHeads: s.QHeads, HeadDim: s.HeadDim}}, nil
	case op.GEMM:
		return gemm{kernel.GEMMShape{M: int(s.M), N: s.N, K: s.K}, s.Pass}, nil
	case op.Norm:
		return norm{rowsOf(s.Rowwise)}, nil
	case op.Rope:
		return newRope(s)
	case op.SwiGLU:
		return swiglu{rowsOf(s.Rowwise)}, nil
	case op.GELU:
		return gelu{rowsOf(s.Rowwise)}, nil
	case op.CEChunk:
		return ceChunk{rowsOf(s.Rowwise)}, nil
	case op.AdamW:
		return adamw{int(s.Params)}, nil
	}
	return nil, unsupported(s)
}

func unsupported(s op.Shape) error {
	return &profile.OpError{Class: profile.Unsupported, Err: fmt.Errorf("the cpu backend has no kernel for %s", s.Kind())}
}

func shapeOf(a op.Attention) kernel.AttentionShape {
	mask := kernel.Full
	if a.Mask == op.Diag {
		mask = kernel.Diag
	}
	return kernel.AttentionShape{
		Mask: mask, QLen: int(a.QLen), KVLen: int(a.KVLen), QHeads: a.QHeads, KVHeads: a.KVHeads, HeadDim: a.HeadDim,
	}
}

func rowsOf(r op.Rowwise) kernel.Rows { return kernel.Rows{Tokens: int(r.Tokens), Width: r.Width} }

type attention struct {
	kernel.AttentionShape
	backward bool
}

func (s attention) elements() int {
	n := 2*s.QSize() + 2*s.KVSize() + s.LSESize()
	if s.backward {
		n += 2*s.QSize() + 2*s.KVSize()
	}
	return n
}

func (s attention) bind(a *arena, team *kernel.Team) func() {
	t := kernel.Attention{
		Q: a.normal(s.QSize()), K: a.normal(s.KVSize()), V: a.normal(s.KVSize()),
		O: a.normal(s.QSize()), LSE: a.take(s.LSESize()),
	}
	if !s.backward {
		return func() { kernel.AttentionForward(s.AttentionShape, t, team) }
	}
	// Scores of normal q and k are normal with variance 1, so the log-sum-exp of
	// n of them is about log(n) + 1/2. Using that instead of a forward pass keeps
	// the probabilities in their usual range, which is all that time depends on.
	for i := range t.LSE {
		keys := s.KVLen
		if s.Mask == kernel.Diag {
			keys = i%s.QLen + 1
		}
		t.LSE[i] = float32(math.Log(float64(keys)) + 0.5)
	}
	g := kernel.AttentionGrad{
		DO: a.normal(s.QSize()), DQ: a.take(s.QSize()), DK: a.take(s.KVSize()), DV: a.take(s.KVSize()),
	}
	return func() { kernel.AttentionBackward(s.AttentionShape, t, g, team) }
}

type merge struct{ kernel.MergeShape }

func (s merge) elements() int { return 2 * s.Tokens * s.QHeads * (s.HeadDim + 1) }

func (s merge) bind(a *arena, team *kernel.Team) func() {
	partial := func() kernel.Partial {
		return kernel.Partial{O: a.normal(s.Tokens * s.QHeads * s.HeadDim), LSE: a.normal(s.Tokens * s.QHeads)}
	}
	x, y := partial(), partial()
	// In place, as a ring accumulates. The sum of two log-sum-exps grows by at
	// most log 2 a call, far from anything that changes a float's cost.
	return func() { kernel.LSEMerge(s.MergeShape, x, x, y, team) }
}

type gemm struct {
	kernel.GEMMShape
	pass op.Pass
}

func (s gemm) elements() int { return s.M*s.K + s.K*s.N + s.M*s.N }

func (s gemm) bind(a *arena, team *kernel.Team) func() {
	x, y := s.M*s.K, s.K*s.N
	switch s.pass {
	case op.DGrad:
		dc, b, da := a.normal(s.M*s.N), a.normal(y), a.take(x)
		return func() { kernel.GEMMDGrad(s.GEMMShape, da, dc, b, team) }
	case op.WGrad:
		in, dc, db := a.normal(x), a.normal(s.M*s.N), a.take(y)
		return func() { kernel.GEMMWGrad(s.GEMMShape, db, in, dc, team) }
	}
	in, b, c := a.normal(x), a.normal(y), a.take(s.M*s.N)
	return func() { kernel.GEMMForward(s.GEMMShape, c, in, b, team) }
}

const eps = 1e-5

type norm struct{ kernel.Rows }

func (s norm) elements() int { return 2*s.Size() + s.Width }

func (s norm) bind(a *arena, team *kernel.Team) func() {
	x, w, y := a.normal(s.Size()), a.normal(s.Width), a.take(s.Size())
	return func() { kernel.Norm(s.Rows, y, x, w, eps, team) }
}

// ropeHeadDim is the width of a head that rope's angle tables are made for.
const ropeHeadDim = 64

type rope struct{ kernel.RopeShape }

func newRope(s op.Rope) (binder, error) {
	if s.Width%ropeHeadDim != 0 {
		return nil, &profile.OpError{Class: profile.Unsupported, Err: fmt.Errorf("rope of width %d: the cpu kernel wants heads of %d elements", s.Width, ropeHeadDim)}
	}
	return rope{kernel.RopeShape{Heads: s.Width / ropeHeadDim, Tokens: int(s.Tokens), HeadDim: ropeHeadDim}}, nil
}

func (s rope) elements() int { return s.Heads*s.Tokens*s.HeadDim + s.Tokens*s.HeadDim }

func (s rope) bind(a *arena, team *kernel.Team) func() {
	x, cos, sin := a.normal(s.Heads*s.Tokens*s.HeadDim), a.take(s.Tokens*s.HeadDim/2), a.take(s.Tokens*s.HeadDim/2)
	fillAngles(s.RopeShape, cos, sin)
	return func() { kernel.Rope(s.RopeShape, x, cos, sin, team) }
}

// fillAngles: a rotation keeps lengths, so that repeated calls neither grow nor
// vanish; which angle it is does not matter to its time.
func fillAngles(s kernel.RopeShape, cos, sin []float32) {
	for i := range cos {
		t, f := i/(s.HeadDim/2), i%(s.HeadDim/2)
		angle := float64(t%64) * math.Pow(10000, -2*float64(f)/float64(s.HeadDim))
		cos[i], sin[i] = float32(math.Cos(angle)), float32(math.Sin(angle))
	}
}

type swiglu struct{ kernel.Rows }

func (s swiglu) elements() int { return 3 * s.Size() }

func (s swiglu) bind(a *arena, team *kernel.Team) func() {
	gate, up, out := a.normal(s.Size()), a.normal(s.Size()), a.take(s.Size())
	return func() { kernel.SwiGLU(s.Rows, out, gate, up, team) }
}

type gelu struct{ kernel.Rows }

func (s gelu) elements() int { return 2 * s.Size() }

func (s gelu) bind(a *arena, team *kernel.Team) func() {
	x, out := a.normal(s.Size()), a.take(s.Size())
	return func() { kernel.GELU(s.Rows, out, x, team) }
}

type ceChunk struct{ kernel.Rows }

func (s ceChunk) elements() int { return s.Size() + s.Tokens }

func (s ceChunk) bind(a *arena, team *kernel.Team) func() {
	logits, losses := a.normal(s.Size()), a.take(s.Tokens)
	targets := make([]int32, s.Tokens)
	for i := range targets {
		targets[i] = int32(i % s.Width)
	}
	// In place: after the first call the logits are a gradient, small numbers of
	// which the next call makes others. Their cost does not change.
	return func() { kernel.CEChunk(s.Rows, logits, targets, losses, 1, team) }
}

type adamw struct{ params int }

func (s adamw) elements() int { return 4 * s.params }

func (s adamw) bind(a *arena, team *kernel.Team) func() {
	t := kernel.AdamWState{Param: a.normal(s.params), Moment1: a.normal(s.params), Moment2: a.normal(s.params), Grad: a.normal(s.params)}
	for i, v := range t.Moment2 {
		t.Moment2[i] = v * v // a second moment is never negative
	}
	h := adamWParams()
	return func() { kernel.AdamW(h, t, team) }
}

func adamWParams() kernel.AdamWParams {
	return kernel.AdamWParams{LearningRate: 1e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Step: 1000}
}

package costmodel

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// defaultKernels gives every attention law that names a kernel a second place
// without one, unless a law without kernel is there: a planner asks for
// attention and means the fastest kernel measured. Of several the one that
// predicts least in the middle of the range that all were measured in is taken,
// for every shape, so that a plan stands on one law and not on the luckier of
// two at each block. Ties go to the first name.
func (q *Predictor) defaultKernels(laws []Law) {
	named := map[lawKey][]*Law{}
	for i := range laws {
		k := laws[i].key()
		if k.variant.Kernel == "" {
			continue
		}
		k.variant.Kernel = ""
		named[k] = append(named[k], &laws[i])
	}
	for k, rivals := range named {
		if _, ok := q.laws[k]; !ok {
			q.laws[k] = fastest(rivals)
			q.rivals[q.laws[k]] = len(rivals)
		}
	}
}

// Pace is how many times as long as the fastest of other kernels of the same attention a
// kernel's law says that it takes, in the middle of the range that all were measured in.
func Pace(of *Law, others []*Law) float64 {
	s := middle(append([]*Law{of}, others...))
	return float64(of.Seconds(s) / fastest(others).Seconds(s))
}

// IsAttention says that a law is of attention, of which there may be several kernels.
func (l *Law) IsAttention() bool {
	switch l.Op {
	case op.KindAttnFwd, op.KindAttnBwd, op.KindAttnVarlenFwd, op.KindAttnVarlenBwd:
		return true
	}
	return false
}

func fastest(rivals []*Law) *Law {
	if len(rivals) == 1 {
		return rivals[0]
	}
	s := middle(rivals)
	best := rivals[0]
	for _, l := range rivals[1:] {
		now, least := l.Seconds(s), best.Seconds(s)
		if now < least || now == least && l.Variant.Kernel < best.Variant.Kernel {
			best = l
		}
	}
	return best
}

// middle is a shape of the laws' op at the geometric middle of their common
// range, axis by axis. The laws are of attention and differ only in the kernel.
func middle(rivals []*Law) op.Shape {
	var at op.Coords
	for i := range op.CoordNames(rivals[0].Op) {
		lo, hi := 0.0, math.Inf(1)
		for _, l := range rivals {
			if i < len(l.Range) {
				lo, hi = max(lo, l.Range[i].Min), min(hi, l.Range[i].Max)
			}
		}
		at[i] = min(max(1, math.Round(math.Sqrt(lo)*math.Sqrt(hi))), 1<<20)
	}
	v := rivals[0].Variant
	heads, kv := int(at[2]), int(min(at[2], at[3]))
	a := op.Attention{Mask: v.Mask, QLen: units.Tokens(at[0]), KVLen: units.Tokens(at[1]), QHeads: heads, KVHeads: kv, HeadDim: v.HeadDim, DType: v.DType, Window: v.Window}
	if batch := int(at[4]); batch > 1 {
		a.Batch = batch
	}
	if a.Mask == op.Diag {
		a.KVLen = a.QLen
	}
	// Documents as long as the longest, as many as fill the tokens.
	longest := min(at[0], at[1])
	packed := op.Varlen{QHeads: heads, KVHeads: kv, HeadDim: v.HeadDim, DType: v.DType}
	for n := min(64, max(1, math.Round(at[0]/longest))); n > 0; n-- {
		packed.SeqLens = append(packed.SeqLens, units.Tokens(longest))
	}
	switch rivals[0].Op {
	case op.KindAttnBwd:
		return op.AttnBwd{Attention: a}
	case op.KindAttnVarlenFwd:
		return op.AttnVarlenFwd{Varlen: packed}
	case op.KindAttnVarlenBwd:
		return op.AttnVarlenBwd{Varlen: packed}
	}
	return op.AttnFwd{Attention: a}
}

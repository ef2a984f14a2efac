package analytic

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Block is an attention block: of a member of a group with Q tokens on keys and values of
// another group with KV tokens, 0 for its own.
type Block struct {
	Type, Heads, KVHeads int // Type is the member's device type, as the model numbers them
	Q, KV                units.Tokens
}

// Times is the seconds of a block in one forward and one backward pass.
type Times struct{ Forward, Backward float64 }

// Plus is the sum in either pass.
func (t Times) Plus(o Times) Times {
	return Times{t.Forward + o.Forward, t.Backward + o.Backward}
}

// Longer is the longer of two in either pass.
func (t Times) Longer(o Times) Times {
	return Times{max(t.Forward, o.Forward), max(t.Backward, o.Backward)}
}

// Block prices the attention of the heads of one rank under the nested zigzag.
// A group sees half the keys of the groups inside it with all its queries, and
// all keys of those outside with half of them; the mean of both is taken.
func (m *Model) Block(k Block) Times {
	if k.Heads == 0 {
		return Times{}
	}
	t, ok := m.blocks[k]
	if ok {
		return t
	}
	switch half := (k.Q + 1) / 2; {
	case k.KV == 0 && k.Q < 2:
		t = m.kernel(k, op.Diag, k.Q, k.Q)
	case k.KV == 0:
		d, f := m.kernel(k, op.Diag, half, half), m.kernel(k, op.Full, half, half)
		t = Times{2*d.Forward + f.Forward, 2*d.Backward + f.Backward}
	default:
		a, b := m.kernel(k, op.Full, k.Q, (k.KV+1)/2), m.kernel(k, op.Full, half, k.KV)
		t = Times{(a.Forward + b.Forward) / 2, (a.Backward + b.Backward) / 2}
	}
	m.blocks[k] = t
	return t
}

// kernel is one call, with the adding of its result, or of its gradients of
// queries, keys and values, to what the blocks before it left.
func (m *Model) kernel(k Block, mask op.Mask, q, kv units.Tokens) Times {
	j := m.p.Job
	kvHeads := k.KVHeads // repeated until the query heads share them evenly, as the simulator has it
	for k.Heads%kvHeads != 0 {
		kvHeads++
	}
	a := op.Attention{Mask: mask, QLen: q, KVLen: kv, QHeads: k.Heads, KVHeads: kvHeads, HeadDim: j.Model.HeadDim, DType: j.DType}
	m.fwd.Attention, m.bwd.Attention = a, a
	laws, masked := &m.kernels[k.Type], 0
	if mask == op.Diag {
		masked = 1
	}
	t := Times{m.priceBy(&laws.forward[masked], k.Type, &m.fwd), m.priceBy(&laws.backward[masked], k.Type, &m.bwd)}
	if mask == op.Full {
		merge := m.mergeTime(k.Type, q, k.Heads)
		t.Forward += merge
		t.Backward += merge + m.mergeTime(k.Type, 2*kv, k.KVHeads)
	}
	return t
}

// mergeTime is adding so many tokens and heads to what the blocks before left.
func (m *Model) mergeTime(dev int, tokens units.Tokens, heads int) float64 {
	m.merge = op.LSEMerge{Tokens: tokens, QHeads: heads, HeadDim: m.p.Job.Model.HeadDim}
	return m.priceBy(&m.kernels[dev].merge, dev, &m.merge)
}

// WholeBlock is the attention of a group alone: one causal square.
func (m *Model) WholeBlock(k Block) Times {
	if k.Heads == 0 {
		return Times{}
	}
	return m.kernel(k, op.Diag, k.Q, k.Q)
}

// kernelLaws are a device type's laws of attention, once they were asked for.
type kernelLaws struct {
	forward, backward [2]*costmodel.Law // FULL, DIAG
	merge             *costmodel.Law
}

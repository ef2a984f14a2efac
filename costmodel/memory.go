package costmodel

import (
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Memory predicts the peak memory of rank r, whose device type is dev, when
// rank i has shards[i] tokens. Everything is by formula and rests on kernels
// that keep what FlashAttention, fused RMSNorm and fused SwiGLU keep; nothing
// is reserved for the context, communicators and fragmentation unless the
// device's capacity leaves it out. A rank without tokens holds nothing.
//
// The job must be valid; r must be a rank of shards.
func (j Job) Memory(shards []units.Tokens, r int, dev op.DeviceType) Memory {
	m := Memory{Capacity: dev.Memory}
	s := shards[r]
	if s == 0 {
		return m
	}
	var ranks int64
	var widest units.Tokens // the largest shard that comes by in the ring
	for i, n := range shards {
		if n > 0 {
			ranks++
		}
		if i != r {
			widest = max(widest, n)
		}
	}
	m.States = j.stateBytes(ranks)
	m.Activations = units.Bytes(s) * j.keptPerToken()
	m.Transient = max(j.forwardTransient(s, widest), j.backwardTransient(s, widest))
	m.Logits = j.logitBytes(min(s, j.LossChunk))
	return m
}

// stateBytes is what parameters, gradients and AdamW take on each of n ranks.
// In two bytes a parameter needs 2 + 2 + 12 (float32 master copy and two
// moments), in float32 4 + 4 + 8 without the copy: 16 either way.
func (j Job) stateBytes(n int64) units.Bytes {
	p, e := j.Model.Params(), int64(j.DType.Size())
	param, grad := e*p, e*p
	optim := (16 - 2*e) * p
	share := func(b int64) int64 { return (b + n - 1) / n }
	switch j.zero() {
	case Zero0:
		return units.Bytes(param + grad + optim)
	case Zero1:
		return units.Bytes(param + grad + share(optim))
	case Zero2:
		return units.Bytes(param + share(grad+optim))
	}
	// Gathered whole: the layer at work and the next; or the output projection.
	window := e * max(2*j.Model.LayerParams(), j.Model.embedParams())
	return units.Bytes(share(param+grad+optim) + window)
}

// LayerActivations is what one layer keeps for its backward pass, a token:
// its input, the residual after attention and both norms' outputs (4h), q and
// attention output, k and v, gate, up and their product (3f), the log-sum-exp
// of every head and two norm statistics in float32.
func (j Job) LayerActivations() units.Bytes {
	m := j.Model
	wide := 4*m.Hidden + 2*m.qWidth() + 2*m.kvWidth() + 3*m.FFN
	return units.Bytes(wide)*j.DType.Size() + units.Bytes(4*m.QHeads+8)
}

// keptPerToken is what all layers keep a token. Under full recomputation that
// is every layer's input, and one layer while it is recomputed.
func (j Job) keptPerToken() units.Bytes {
	layers := units.Bytes(j.Model.Layers)
	if j.Recompute == RecomputeFull {
		return layers*units.Bytes(j.Model.Hidden)*j.DType.Size() + j.LayerActivations()
	}
	return layers * j.LayerActivations()
}

// forwardTransient: buffers of the widest passing shard's keys and values, and
// the float32 accumulators that partial results are merged in. A lone rank
// needs neither.
func (j Job) forwardTransient(s, widest units.Tokens) units.Bytes {
	if widest == 0 {
		return 0
	}
	kv := 2 * units.Bytes(widest) * units.Bytes(j.Model.kvWidth()) * j.DType.Size()
	merge := 4 * units.Bytes(s) * units.Bytes(j.Model.qWidth()+j.Model.QHeads)
	return units.Bytes(j.RingBuffers)*kv + merge
}

// backwardTransient: as many buffers, now with the float32 gradients of keys
// and values; the float32 gradient of the queries; and under GQA the keys' and
// values' gradients of one block expanded to all query heads, which kernels
// sum afterwards.
func (j Job) backwardTransient(s, widest units.Tokens) units.Bytes {
	m := j.Model
	kvRow := units.Bytes(m.kvWidth()) * (2*j.DType.Size() + 8)
	b := units.Bytes(j.RingBuffers)*units.Bytes(widest)*kvRow + 4*units.Bytes(s)*units.Bytes(m.qWidth())
	if m.KVHeads < m.QHeads {
		b += 2 * units.Bytes(max(s, widest)) * units.Bytes(m.qWidth()) * j.DType.Size()
	}
	return b
}

// logitBytes: a chunk's logits, their float32 copy where they are narrower,
// and a float32 gradient.
func (j Job) logitBytes(chunk units.Tokens) units.Bytes {
	e := j.DType.Size()
	if e < 4 {
		e += 4
	}
	return units.Bytes(chunk) * units.Bytes(j.Model.Vocab) * (e + 4)
}

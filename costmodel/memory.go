package costmodel

import (
	"cmp"
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// DeviceMemory is what the memory model knows of a device type.
type DeviceMemory struct {
	Capacity units.Bytes // that plans may count on
	// LayerToken is the measured slope of one layer of the job, in bytes a
	// token; 0 where the formula has to do.
	LayerToken units.Bytes
}

// DeviceMemory looks a job's layers up in what was measured of a device type.
// The type must be one of the profile's.
func (q *Predictor) DeviceMemory(j Job, device string) DeviceMemory {
	d := DeviceMemory{Capacity: q.devices[device].Memory}
	m := j.Model
	layer := op.Layer{Hidden: m.Hidden, FFN: m.FFN, QHeads: m.QHeads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, DType: j.DType}
	for _, l := range q.memory[device].Layers {
		if l.Of(layer) {
			d.LayerToken = units.Bytes(math.Ceil(l.PerToken))
		}
	}
	return d
}

// Memory is MemoryOn a device type of which only the capacity is known, so by
// formula throughout.
func (j Job) Memory(shards []units.Tokens, r int, dev op.DeviceType) Memory {
	return j.MemoryOn(shards, r, DeviceMemory{Capacity: dev.Memory})
}

// MemoryOn predicts the peak memory of rank r, on a device of memory dev, when
// rank i has shards[i] tokens. A measured slope replaces the formula for
// activations, which it bounds from above: a layer's peak also holds what its
// backward pass needs meanwhile. Everything else is by formula and rests on
// kernels that keep what FlashAttention, fused RMSNorm and fused SwiGLU keep;
// nothing is reserved for the context, communicators and fragmentation unless
// the device's capacity leaves it out. A rank without tokens holds nothing.
//
// The job must be valid; r must be a rank of shards.
func (j Job) MemoryOn(shards []units.Tokens, r int, dev DeviceMemory) Memory {
	m := Memory{Capacity: dev.Capacity}
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
	m.LayerToken = dev.LayerToken
	m.Activations = units.Bytes(s) * j.keptPerToken(cmp.Or(dev.LayerToken, j.LayerActivations()))
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
func (j Job) keptPerToken(layer units.Bytes) units.Bytes {
	layers := units.Bytes(j.Model.Layers)
	if j.Recompute == RecomputeFull {
		return layers*units.Bytes(j.Model.Hidden)*j.DType.Size() + layer
	}
	return layers * layer
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

// slopeSlack is how far a measured slope may lie off the formula unremarked.
const slopeSlack = 0.10

// memoryWarnings says where a layer was measured to keep more or less than the
// formula has it; the measured slope counts.
func (q *Predictor) memoryWarnings(j Job, devices []string) []string {
	var out []string
	formula := j.LayerActivations()
	for _, d := range devices {
		slope := q.DeviceMemory(j, d).LayerToken
		ratio := float64(slope) / float64(formula)
		if slope > 0 && math.Abs(math.Log(ratio)) > math.Log1p(slopeSlack) {
			out = append(out, fmt.Sprintf("a layer on %s was measured to take %d bytes a token, %.2f times the formula's %d, and the measured slope counts; 1.67 points to unfused norms and MLP", d, int64(slope), ratio, int64(formula)))
		}
	}
	return out
}

package costmodel

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// DeviceMemory is what the memory model needs to know of a device type.
type DeviceMemory struct {
	Capacity units.Bytes // what plans may use: the device's memory less its reserve and Job.MemoryReserve
	// LayerToken is the measured peak memory of one layer of the job per token, in
	// bytes; 0 where nobody measured it and the formula is used.
	LayerToken units.Bytes
}

// DeviceMemory returns what the profile knows of the memory of a device type, which must
// be one of the profile's, for the layers of a job, less what the job leaves free.
func (q *Predictor) DeviceMemory(j Job, device string) DeviceMemory {
	d := DeviceMemory{Capacity: q.devices[device].Memory}
	if j.MemoryReserve > 0 {
		d.Capacity = units.BytesOf((1 - j.MemoryReserve) * float64(d.Capacity))
	}
	m := j.Model
	layer := op.Layer{Hidden: m.Hidden, FFN: m.FFN, QHeads: m.QHeads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, DType: j.DType}
	for _, l := range q.memory[device].Layers {
		if m.likeLayer() && l.Of(layer) {
			d.LayerToken = units.BytesOf(math.Ceil(l.PerToken))
		}
	}
	return d
}

// MemoryShare is what the peak memory of one rank depends on under a layout.
type MemoryShare struct {
	Tokens      units.Tokens // of the rank
	GroupTokens units.Tokens // of the rank's all-to-all group
	Widest      units.Tokens // of the largest block that another group sends around the ring, at least 1; 0 if there is one group only
	Others      int          // groups besides the rank's own
	Copied      units.Tokens // of the group's own block that are copied into a send buffer; 0 where the whole block is sent in place
	QHeads      int          // query heads that the rank computes
	KVHeads     int          // KV heads that those query heads need
	Cuts        int          // borders of other groups' heads inside one of those KV heads: it is held once for either side
	Ranks       int          // that take part in the step: states are sharded over these
	TwoBatch    bool         // the rank holds two micro-batches at once
	Woven       bool         // and is in the backward rings of both, which take turns
}

// batches is how many micro-batches go through a layer at once. Both go through the MLP
// backward before either does through the attention, and one after the other.
func (s *MemoryShare) batches() float64 {
	if s.TwoBatch {
		return 2
	}
	return 1
}

// heldKVHeads is the KV heads that the rank holds, those that a border cuts counted twice: what
// travels in the ring is in one piece for either side of it.
func (s *MemoryShare) heldKVHeads() int { return s.KVHeads + s.Cuts }

// MemoryIn predicts the peak memory of every rank of the cluster under a valid layout. A
// rank that has no place in the layout holds nothing.
func (q *Predictor) MemoryIn(j Job, l Layout) []Memory {
	ranks := j.Cluster.Ranks()
	known := map[string]DeviceMemory{}
	return j.MemoryWith(l, func(r int) DeviceMemory {
		d, ok := known[ranks[r].Device]
		if !ok {
			d = q.DeviceMemory(j, ranks[r].Device)
			known[ranks[r].Device] = d
		}
		return d
	})
}

// MemoryWith is MemoryIn with the memory of each rank's device given by the caller.
func (j Job) MemoryWith(l Layout, of func(rank int) DeviceMemory) []Memory {
	return NewMemoryModel(j).in(l, of)
}

func (x *MemoryModel) in(l Layout, of func(rank int) DeviceMemory) []Memory {
	out := make([]Memory, len(l.Shards))
	for r, share := range l.memoryShares(x.j.Model) {
		if dev := of(r); share.Ranks > 0 {
			out[r] = x.Of(share, dev)
		} else {
			out[r].Capacity = dev.Capacity
		}
	}
	return out
}

// memoryShares is what each rank's memory depends on; the zero share of ranks
// without a place.
func (l Layout) memoryShares(m Model) []MemoryShare {
	shares := make([]MemoryShare, len(l.Shards))
	ranks, widest, second := 0, units.Tokens(0), units.Tokens(0)
	tokens := make([]units.Tokens, len(l.Groups))
	for g, group := range l.Groups {
		ranks += len(group)
		for _, h := range group {
			tokens[g] += l.Shards[h.Rank].Tokens()
		}
	}
	sent, cuts := l.sent(tokens), l.cutsBefore(m)
	for _, n := range sent {
		widest, second = max(widest, n), max(second, min(widest, n))
	}
	for g, group := range l.Groups {
		other, copied := widest, units.Tokens(0)
		if sent[g] == widest {
			other = second
		}
		if sent[g] < tokens[g] {
			copied = sent[g]
		}
		if len(l.Groups) > 1 {
			other = max(other, 1) // who is not alone merges, even where no block comes by
		}
		first := 0
		for _, h := range group {
			shares[h.Rank] = MemoryShare{
				Tokens: l.Shards[h.Rank].Tokens(), GroupTokens: tokens[g], Widest: other, Others: len(l.Groups) - 1, Copied: copied,
				QHeads: h.QHeads, KVHeads: m.KVHeadsOf(first, h.QHeads), Cuts: cuts.inside(first, h.QHeads),
				Ranks: ranks, TwoBatch: l.TwoBatch, Woven: l.TwoBatch && l.WeaveBackward,
			}
			first += h.QHeads
		}
	}
	return shares
}

// MemoryOf predicts the peak memory of one rank, by component. The job must be valid.
//
// Memory is fullest in the backward pass of the last layer, while all others keep what they
// need: when its MLP is computed, or its attention's ring, or when the ring's gradients are
// put together, by when what the MLP kept is free again. Of these the largest counts, and one
// chunk's logits beside it, although they are gone by then: for what a model has besides its
// layers. It is what the executor holds (package python/evenkeel), with kernels that keep
// what FlashAttention, fused norms and fused SwiGLU keep.
//
// Where a slope of a layer was measured (dev.LayerToken: what its forward pass keeps) it
// replaces the formula for activations. Gradients of parameters while they are added up,
// context, communicators and fragmentation are not counted; the device's capacity has to
// leave room for them.
func (j Job) MemoryOf(s MemoryShare, dev DeviceMemory) Memory { return NewMemoryModel(j).Of(s, dev) }

// MemoryModel is MemoryOf for who asks thousands of times about one job. It is not
// safe for concurrent use.
//
// What follows tokens is counted in float64: a valid job's may exceed 2^63 bytes, which
// do not fit, where an int64 would wrap around to what does.
type MemoryModel struct {
	j            Job
	token, layer float64 // bytes: tokenActivations, LayerActivations
	ranks        int     // states are of
	states       units.Bytes
}

// NewMemoryModel makes the memory model of a valid job.
func NewMemoryModel(j Job) *MemoryModel {
	return &MemoryModel{j: j, token: float64(j.tokenActivations()), layer: float64(j.LayerActivations())}
}

// Of is MemoryOf.
func (x *MemoryModel) Of(s MemoryShare, dev DeviceMemory) Memory {
	if x.ranks != s.Ranks {
		x.ranks, x.states = s.Ranks, x.j.stateBytes(int64(s.Ranks))
	}
	m := Memory{Capacity: dev.Capacity, LayerToken: dev.LayerToken, States: x.states}
	n := s.batches()
	kept := n * x.kept(&s, dev.LayerToken)
	transient := max(x.mlpTransient(&s), x.attentionTransient(&s)-n*x.freedByMLP(&s)) + (n-1)*x.outputGradient(&s)
	m.Activations, m.Transient = units.BytesOf(kept), units.BytesOf(transient)
	m.Logits = x.logitBytes(min(s.Tokens, x.j.LossChunk))
	return m
}

// MostTokens is how many tokens of its own a rank has room for, all else of its share as it
// is: 0 also where it has none for the rest.
func (x *MemoryModel) MostTokens(s MemoryShare, dev DeviceMemory) float64 {
	const many = 1 << 20 // so that rounding up to whole bytes does not count
	none, some := s, s
	none.Tokens, some.Tokens = 0, many
	per := func(bytes func(*MemoryShare) float64) float64 { return (bytes(&some) - bytes(&none)) / many }
	kept := func(s *MemoryShare) float64 { return x.kept(s, dev.LayerToken) }

	n := s.batches()
	left := Usable*float64(dev.Capacity) - float64(x.j.stateBytes(int64(s.Ranks))) - n*kept(&none)
	token := n*per(kept) + (n-1)*per(x.outputGradient)
	return max(0, min(
		x.tokensIn(left, token+per(x.mlpTransient)),
		x.tokensIn(left-x.attentionTransient(&none), token-n*per(x.freedByMLP))))
}

// tokensIn is how many tokens there is room for in so many bytes, each with logits until there
// is a chunk of them.
func (x *MemoryModel) tokensIn(bytes, token float64) float64 {
	chunk, logits := float64(x.j.LossChunk), float64(x.logitBytes(x.j.LossChunk))
	if token > 0 && bytes >= chunk*token+logits {
		return (bytes - logits) / token
	}
	return bytes / max(token+float64(x.logitBytes(1)), 1)
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
	window := e * max(2*j.Model.LayerParams(), j.Model.TableParams())
	return units.Bytes(share(param+grad+optim) + window)
}

// LayerActivations is what one layer keeps for its backward pass, a token, where
// one rank has all heads of its tokens.
func (j Job) LayerActivations() units.Bytes {
	return j.tokenActivations() + j.headActivations(j.Model.QHeads, j.Model.KVHeads)
}

// tokenActivations is the part that follows a rank's tokens: the layer's input,
// the residual after attention and the norms' outputs, queries and keys before
// they are normed, what the MLP keeps, and the norms' statistics in float32.
func (j Job) tokenActivations() units.Bytes {
	m := j.Model
	return units.Bytes(m.keptByNorms()+m.keptByMLP())*j.DType.Size() + m.keptStatistics()
}

// MLPActivations is the part of LayerActivations that the MLP keeps beside its input.
func (j Job) MLPActivations() units.Bytes {
	return units.Bytes(j.Model.keptByMLP()) * j.DType.Size()
}

// keptByMLP is the width of what the MLP keeps: gate, up and their product, or
// without a gate what goes into the activation and what comes out.
func (m Model) keptByMLP() int {
	if m.GatedMLP {
		return 3 * m.FFN
	}
	return 2 * m.FFN
}

// headActivations is the part that follows the tokens of the group and a rank's
// heads: q and attention output, k and v, and every head's log-sum-exp in float32.
func (j Job) headActivations(q, kv int) units.Bytes {
	return units.Bytes(2*(q+kv)*j.Model.HeadDim)*j.DType.Size() + units.Bytes(4*q)
}

// kept is what all layers keep for the backward pass. Where several ranks work the attention
// output exists twice: by heads, kept by the attention, and by tokens, kept as input of the
// output projection. Under full recomputation it is every layer's input, and one layer while
// it is recomputed, with its output in the place of its input. In bytes, as what follows.
func (x *MemoryModel) kept(s *MemoryShare, measured units.Bytes) float64 {
	j := &x.j
	tokens, e := float64(s.Tokens), float64(j.DType.Size())
	layer := tokens*x.token + float64(s.GroupTokens)*float64(j.headActivations(s.QHeads, s.heldKVHeads()))
	if s.Ranks > 1 {
		layer += tokens * float64(j.Model.qWidth()) * e
	}
	if measured > 0 {
		layer = math.Ceil(layer * float64(measured) / x.layer)
	}
	layers := float64(j.Model.Layers)
	if j.Recompute == RecomputeFull {
		return layers*tokens*float64(j.Model.Hidden)*e + layer
	}
	return layers * layer
}

// outputGradient: the gradient of a layer's output. Of two micro-batches that go through a
// layer at once, the second one's waits while the first one's MLP goes backward, and the first
// one's of its input is there when the second one's attention does.
func (x *MemoryModel) outputGradient(s *MemoryShare) float64 {
	return float64(s.Tokens) * float64(x.j.Model.Hidden) * float64(x.j.DType.Size())
}

// mlpTransient: the gradient of the layer's output, and those of what goes into the MLP's
// activation, while the gradient of what comes out of it takes the place of the output itself.
func (x *MemoryModel) mlpTransient(s *MemoryShare) float64 {
	m := x.j.Model
	into := m.FFN
	if m.GatedMLP {
		into = 2 * m.FFN
	}
	return x.outputGradient(s) + float64(s.Tokens)*float64(into)*float64(x.j.DType.Size())
}

// freedByMLP is what the MLP of the layer kept, and no longer does when the attention's
// backward begins. The norm's output after the attention, the residual, and the attention's
// output by tokens are free as well: for the gradients of the same three.
func (x *MemoryModel) freedByMLP(s *MemoryShare) float64 {
	return float64(s.Tokens) * float64(x.j.MLPActivations())
}

// blocks: buffers of the widest passing block's keys and values, and the copy of those of
// the own block that travel where that is a part of it.
func (x *MemoryModel) blocks(s *MemoryShare) float64 {
	return x.buffers(s.Others)*x.keysAndValues(s, s.Widest) + x.keysAndValues(s, s.Copied)
}

// buffers is how many there are of so many blocks that pass by.
func (x *MemoryModel) buffers(blocks int) float64 {
	return float64(max(0, min(x.j.RingBuffers, blocks)))
}

// keysAndValues is the bytes of those of so many tokens, as a rank holds its heads.
func (x *MemoryModel) keysAndValues(s *MemoryShare, tokens units.Tokens) float64 {
	return x.elements(s, tokens) * float64(x.j.DType.Size())
}

// elements is how many they have.
func (x *MemoryModel) elements(s *MemoryShare, tokens units.Tokens) float64 {
	return 2 * float64(tokens) * float64(s.heldKVHeads()) * float64(x.j.Model.HeadDim)
}

// apart is the copy of a block's keys and values that a kernel is given where the rank holds
// some KV head twice: each once.
func (x *MemoryModel) apart(s *MemoryShare) float64 {
	if s.Cuts == 0 {
		return 0
	}
	return 2 * float64(max(s.GroupTokens, s.Widest)) * float64(s.KVHeads) * float64(x.j.Model.HeadDim*int(x.j.DType.Size()))
}

// attentionTransient is what its backward pass takes: in the ring, or after it. Of two rings
// that take turns the first one's buffers are free when the second is over, too. In the
// forward pass even two rings take less.
func (x *MemoryModel) attentionTransient(s *MemoryShare) float64 {
	ring, kernel, gradients := x.ringTransient(s), x.kernelTransient(s), x.gradientsTransient(s)
	if s.Woven {
		return 2*ring + max(kernel, gradients)
	}
	return max(ring+kernel, gradients)
}

// ringTransient: the gradient of the attention's output by heads; in float32 the gradients of
// the queries and of the own block, and where there are other groups their shares of the
// latter, as they come home; the ring's blocks, as many float32 gradients that travel with
// them, and from the second block on the rank's shares that wait for these.
func (x *MemoryModel) ringTransient(s *MemoryShare) float64 {
	b := (float64(x.j.DType.Size())+4)*x.queries(s) + 4*x.elements(s, s.GroupTokens) + x.blocks(s)
	if s.Others > 0 {
		b += 4 * x.elements(s, s.GroupTokens)
	}
	return b + (x.buffers(s.Others)+x.buffers(s.Others-1))*4*x.elements(s, s.Widest)
}

// queries is how many elements those of a rank's group have, as far as they are its heads.
func (x *MemoryModel) queries(s *MemoryShare) float64 {
	return float64(s.GroupTokens) * float64(s.QHeads) * float64(x.j.Model.HeadDim)
}

// kernelTransient is what a kernel is given and makes of one block: keys and values in one
// piece; the gradients of queries, keys and values, and under GQA those of keys and values
// expanded to all query heads, which kernels sum afterwards.
func (x *MemoryModel) kernelTransient(s *MemoryShare) float64 {
	d, e := float64(x.j.Model.HeadDim), float64(x.j.DType.Size())
	block := float64(max(s.GroupTokens, s.Widest))
	b := e*x.queries(s) + x.apart(s) + 2*block*float64(s.KVHeads)*d*e
	if s.KVHeads < s.QHeads {
		b += 2 * block * float64(s.QHeads) * d * e
	}
	return b
}

// gradientsTransient: the float32 gradients of queries, keys and values as the ring leaves
// them, and all of them once more in one piece, of which the group's members get their parts.
// Those of KV heads that are held twice are added up before.
func (x *MemoryModel) gradientsTransient(s *MemoryShare) float64 {
	once := 2 * float64(s.GroupTokens) * float64(s.KVHeads) * float64(x.j.Model.HeadDim)
	b := 4 * (2*x.queries(s) + x.elements(s, s.GroupTokens) + once)
	if s.Cuts > 0 {
		b += 4 * once
	}
	return b
}

// logitBytes: a chunk's logits, their float32 copy where they are narrower,
// and a float32 gradient.
func (x *MemoryModel) logitBytes(chunk units.Tokens) units.Bytes {
	j := &x.j
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

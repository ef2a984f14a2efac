package bound

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// memoryFloor is what a device's memory leaves for tokens and pairs, each at its
// least: bytes follow a rank's own tokens, and the tokens of its group times its
// heads. A rank with p pairs and heads has at least p/S of the latter, for no
// query sees more than the S keys of the sequence. Of the logits there is a chunk
// at most. Of micro-batches in twos all is kept twice. Memory is fullest in the MLP's
// backward pass or in the attention's, when what the MLP kept is free: either is a floor.
type memoryFloor struct {
	left     float64 // bytes beside states
	perToken float64
	perPair  float64
	perLogit float64 // of a token of a chunk
	chunk    float64 // tokens
	also     *memoryFloor
}

// memory is the floor of a device type with its states sharded over n ranks.
func (f *floors) memory(device string, n int) memoryFloor {
	j := f.job
	dev := f.predictor.DeviceMemory(j, device)
	all := j.MemoryOf(costmodel.MemoryShare{Tokens: j.SeqLen, Ranks: n}, dev)
	m := f.besideStates(dev, all)
	kept, heads := f.atOnce()*f.perToken(all.Activations), f.headBytes(dev)
	return f.inEither(m, kept, all.Transient, heads/float64(j.SeqLen), f.ringBytes()/float64(j.SeqLen))
}

// inEither is the floor in the MLP's backward pass, in which all tokens take some bytes more
// than what is kept, and in the attention's, in which every pair does.
func (f *floors) inEither(m memoryFloor, kept float64, ofAll units.Bytes, pair, morePair float64) memoryFloor {
	mlp, ring := m, m
	mlp.perToken, mlp.perPair = kept+f.perToken(ofAll), pair
	ring.perToken, ring.perPair = kept-f.atOnce()*float64(f.job.MLPActivations()), pair+morePair
	mlp.also = &ring
	return mlp
}

// besideStates is what is left beside the states, and what logits take of it.
func (f *floors) besideStates(dev costmodel.DeviceMemory, all costmodel.Memory) memoryFloor {
	chunk := float64(min(f.job.SeqLen, f.job.LossChunk))
	return memoryFloor{left: costmodel.Usable*float64(dev.Capacity) - float64(all.States), perLogit: float64(all.Logits) / chunk, chunk: chunk}
}

// perToken is a token's part of what the layers keep of all tokens. Rounding up
// may have added a byte a layer.
func (f *floors) perToken(kept units.Bytes) float64 {
	return max(0, float64(kept)-float64(f.job.Model.Layers)-1) / float64(f.job.SeqLen)
}

// groupMemory is the floor of a member of a group of several that has no other
// beside it, whose pairs are counted in heads: each takes all tokens' bytes.
func (f *floors) groupMemory(device string, n int) memoryFloor {
	j := f.job
	dev := f.predictor.DeviceMemory(j, device)
	q := j.Model.QHeads
	tokens := j.MemoryOf(costmodel.MemoryShare{Tokens: j.SeqLen, Ranks: n}, dev)
	heads := j.MemoryOf(costmodel.MemoryShare{GroupTokens: j.SeqLen, QHeads: q, KVHeads: j.Model.KVHeads, Ranks: n}, dev)
	kept := f.atOnce() * max(0, float64(heads.Activations)-float64(j.Model.Layers)-1) / float64(q)
	return f.inEither(f.besideStates(dev, tokens), f.atOnce()*f.perToken(tokens.Activations), tokens.Transient, kept, float64(j.SeqLen)*f.ringBytes())
}

// ringBytes is the least that a token of the group takes for each head in the attention's
// backward pass, of which the ring and what follows it (costmodel.MemoryModel) have the same
// floors in any layout.
func (f *floors) ringBytes() float64 {
	j := f.job
	e, share := float64(j.DType.Size()), float64(j.Model.KVHeads)/float64(j.Model.QHeads)
	ring := e + 4 + e + share*(8+2*e) // gradients of the output, queries, the block's queries; keys and values, the block's
	// These expanded to all query heads; who has as many KV heads has no less of the others.
	if share < 1 {
		ring += 2 * e
	}
	after := 4*2 + share*8*2
	return max(ring, after) * float64(j.Model.HeadDim)
}

// headBytes is the least that a token of the group takes for each head: queries
// and outputs, their share of keys and values, and a log-sum-exp, kept in every
// layer (in one, where layers are computed again).
func (f *floors) headBytes(dev costmodel.DeviceMemory) float64 {
	j := f.job
	d, share := float64(j.Model.HeadDim), float64(j.Model.KVHeads)/float64(j.Model.QHeads)
	kept := 2*(1+share)*d*float64(j.DType.Size()) + 4
	if dev.LayerToken > 0 {
		kept *= float64(dev.LayerToken) / float64(j.LayerActivations())
	}
	if j.Recompute != costmodel.RecomputeFull {
		kept *= float64(j.Model.Layers)
	}
	return f.atOnce() * kept
}

// room is the most tokens.
func (m memoryFloor) room() float64 {
	room := math.Inf(1)
	switch logits := m.perLogit * m.chunk; {
	case m.left < m.chunk*m.perToken+logits:
		room = max(0, m.left/(m.perToken+m.perLogit))
	case m.perToken > 0:
		room = (m.left - logits) / m.perToken
	}
	if m.also != nil {
		room = min(room, m.also.room())
	}
	return room
}

// pairs is the most pairs and heads beside so many tokens.
func (m memoryFloor) pairs(tokens float64) float64 {
	pairs := math.Inf(1)
	if m.perPair > 0 {
		pairs = max(0, m.left-tokens*m.perToken-min(tokens, m.chunk)*m.perLogit) / m.perPair
	}
	if m.also != nil {
		pairs = min(pairs, m.also.pairs(tokens))
	}
	return pairs
}

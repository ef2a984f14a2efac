package solver

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
)

// memoryFloor is what a device's memory leaves for tokens and pairs, each at its
// least: bytes follow a rank's own tokens, and the tokens of its group times its
// heads. A rank with p pairs and heads has at least p/S of the latter, for no
// query sees more than the S keys of the sequence.
type memoryFloor struct {
	left     float64 // bytes beside states
	perToken float64
	perPair  float64
}

// memory is the floor of a device type with its states sharded over n ranks.
func (f *floors) memory(device string, n int) memoryFloor {
	j := f.p.Job
	dev := f.p.Predictor.DeviceMemory(j, device)
	all := j.MemoryOf(costmodel.MemoryShare{Tokens: j.SeqLen, Members: 1, Ranks: n}, dev)
	layers, s := float64(j.Model.Layers), float64(j.SeqLen)
	m := memoryFloor{left: costmodel.Usable*float64(dev.Capacity) - float64(all.States)}
	// Rounding up may add a byte a layer.
	m.perToken = max(0, float64(all.Activations)-layers-1) / s
	m.perPair = f.headBytes(dev) / s
	return m
}

// headBytes is the least that a token of the group takes for each head: queries
// and outputs, their share of keys and values, and a log-sum-exp, kept in every
// layer (in one, where layers are computed again), and backward the float32
// gradient of the query.
func (f *floors) headBytes(dev costmodel.DeviceMemory) float64 {
	j := f.p.Job
	d, share := float64(j.Model.HeadDim), float64(j.Model.KVHeads)/float64(j.Model.QHeads)
	kept := 2*(1+share)*d*float64(j.DType.Size()) + 4
	if dev.LayerToken > 0 {
		kept *= float64(dev.LayerToken) / float64(j.LayerActivations())
	}
	if j.Recompute != costmodel.RecomputeFull {
		kept *= float64(j.Model.Layers)
	}
	return kept + 4*d
}

// room is the most tokens.
func (m memoryFloor) room() float64 {
	if m.perToken == 0 {
		return math.Inf(1)
	}
	return max(0, m.left/m.perToken)
}

// pairs is the most pairs and heads beside so many tokens.
func (m memoryFloor) pairs(tokens float64) float64 {
	if m.perPair == 0 {
		return math.Inf(1)
	}
	return max(0, m.left-tokens*m.perToken) / m.perPair
}

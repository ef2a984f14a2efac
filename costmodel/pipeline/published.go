package pipeline

import (
	"errors"
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Published is a cost model of a pipeline on equal devices as InfiniPipe states it (equations
// 1 to 11): on a stage of d devices one of L layers takes, forward and backward together,
//
//	( SquareToken ((C+s)² - C²) + Token s + Σ (SquareToken s² + Token s) ) / (L d) + Each / L
//
// a third of it forward. All bytes are of a device.
//
// No command plans by it: by its hand-made numbers the tests of the planners and the evidence
// that sets them beside the paper's price pipelines. It is here and not among tests since
// those are of several packages, and what prices are made of is this one's own.
type Published struct {
	Devices, PerNode   int
	Layers             int
	SquareToken, Token float64       // seconds per token², per token, of all layers on one device
	Each               units.Seconds // of a chunk, on all stages together
	Hidden, KVWidth    int
	// Bytes: what a token keeps in all layers, and its logits; of an element; of all states of
	// the model on one device; what a device may hold.
	TokenBytes, LogitBytes float64
	ElementBytes           float64
	StateBytes             float64
	Capacity               units.Bytes
}

// Validate says which field is out of range.
func (m Published) Validate() error {
	if m.Devices < 1 || m.Devices > costmodel.MaxRanks || m.PerNode < 1 || m.Layers < 1 || m.Layers > 1<<12 {
		return fmt.Errorf("devices, devices of a node, layers: %d, %d, %d: want 1 to %d, 1 at least, and 1 to %d", m.Devices, m.PerNode, m.Layers, costmodel.MaxRanks, 1<<12)
	}
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"square_token", m.SquareToken},
		{"token", m.Token},
		{"each", float64(m.Each)},
		{"hidden", float64(m.Hidden)},
		{"kv_width", float64(m.KVWidth)},
		{"token_bytes", m.TokenBytes},
		{"logit_bytes", m.LogitBytes},
		{"element_bytes", m.ElementBytes},
		{"state_bytes", m.StateBytes},
		{"capacity", float64(m.Capacity)},
	} {
		if !(f.value >= 0 && f.value < math.MaxFloat32*1e9) {
			return fmt.Errorf("%s: %v: want a number of 0 or more", f.name, f.value)
		}
	}
	if m.SquareToken+m.Token == 0 {
		return fmt.Errorf("square_token, token: 0: tokens take some time")
	}
	return nil
}

// Costs prices a batch.
//
// Errors: a field out of range, a length below one token.
func (m Published) Costs(lengths []units.Tokens) (*Costs, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	ranks := make([]costmodel.Rank, m.Devices)
	for r := range ranks {
		ranks[r] = costmodel.Rank{Device: "device", Node: r / m.PerNode}
	}
	return newCosts(lengths, m.Layers, ranks, published{m})
}

type published struct{ Published }

func (published) like(ranks []int) string { return fmt.Sprint(len(ranks)) }

// seconds of all layers on one device, forward and backward.
func (m Published) seconds(context, tokens units.Tokens) float64 {
	c, s := float64(context), float64(tokens)
	return m.SquareToken*((c+s)*(c+s)-c*c) + m.Token*s
}

func (m published) work(ranks []int, x costmodel.Chunk) (Work, error) {
	t := m.seconds(x.Context, x.Slice)
	for _, d := range x.Whole {
		t += float64(d.Count) * m.seconds(0, d.Tokens)
	}
	layer := units.Seconds(t/float64(m.Layers*len(ranks))) + m.Each/units.Seconds(m.Layers)
	return Work{Forward: layer / 3, Again: layer / 3, Backward: 2 * layer / 3}, nil
}

func (published) send([]int, []int, units.Tokens) (units.Seconds, error) { return 0, nil }

func (published) finish([]int, int, bool, bool) (Finish, error) { return Finish{}, nil }

func (published) tied(first, last []int) (units.Seconds, error) { return 0, nil }

func (m published) held(ranks []int, x costmodel.Chunk) costmodel.ChunkBytes {
	tokens, d := float64(x.Tokens()), float64(len(ranks))
	b := costmodel.ChunkBytes{
		Kept:   m.TokenBytes / float64(m.Layers) / d * tokens,
		Again:  m.ElementBytes * float64(m.Hidden) / d * tokens,
		Logits: m.LogitBytes / d * tokens,
	}
	if x.More {
		kv := 2 * m.ElementBytes * float64(m.KVWidth) / d
		b.Again += kv * tokens
		b.Gradients = kv * tokens
	}
	return b
}

func (m published) states([]int, int, bool, bool) units.Bytes {
	return units.BytesOf(m.StateBytes / float64(m.Devices))
}

func (m published) capacity([]int) units.Bytes { return m.Capacity }

func (published) fits([]int) error { return nil }

func (published) brief([]int, costmodel.Chunk, costmodel.ChunkTimes) (*costmodel.Step, error) {
	return nil, nil
}

func (published) briefTied(first, last []int) (*costmodel.Step, error) { return nil, nil }

func (published) replayed([]int, costmodel.Chunk, costmodel.ChunkReplay) (*costmodel.Replayed, error) {
	return nil, errors.New("a published cost model has no laws, by which parts of a layer are predicted; price the plan by the laws of a profile")
}

func (m published) floor(_ string, n int, lengths []units.Tokens) (layer, loss units.Seconds, err error) {
	t := 0.0
	for _, s := range lengths {
		t += m.seconds(0, s)
	}
	return units.Seconds(t/float64(m.Layers*n)) + m.Each/units.Seconds(m.Layers), 0, nil
}

func (published) moving([]int, units.Tokens, bool) (units.Seconds, error) { return 0, nil }

func (published) warnings() []string { return nil }

func (published) inOrder([]units.Tokens) (*Costs, []int) { return nil, nil } // of one type, in equal nodes

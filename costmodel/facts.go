package costmodel

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// MemoryFacts is what was measured of the memory of a device type.
type MemoryFacts struct {
	Device string `json:"device"`
	// Capacity is the memory that was free before the first tensor. Reserve is the part of
	// the whole memory that context, kernels and workspaces held after a warm step. Both are
	// 0 where nobody measured them.
	Capacity units.Bytes   `json:"capacity_bytes,omitzero"`
	Reserve  units.Bytes   `json:"reserve_bytes,omitzero"`
	Layers   []LayerMemory `json:"layers,omitempty"`
}

// LayerMemory is the line bytes = Base + PerToken tokens, fitted to the peak memory of
// one layer's forward and backward pass at Points different lengths.
type LayerMemory struct {
	Hidden    int          `json:"hidden"`
	FFN       int          `json:"ffn"`
	QHeads    int          `json:"q_heads"`
	KVHeads   int          `json:"kv_heads"`
	HeadDim   int          `json:"head_dim"`
	DType     op.DType     `json:"dtype"`
	PerToken  float64      `json:"per_token_bytes"`
	Base      units.Bytes  `json:"base_bytes"` // value at 0 tokens; negative where the peaks are not on a line
	MinTokens units.Tokens `json:"min_tokens"`
	MaxTokens units.Tokens `json:"max_tokens"`
	Points    int          `json:"points"`
}

// Of says whether the layer has the widths and the precision of s.
func (l LayerMemory) Of(s op.Layer) bool {
	return l.Hidden == s.Hidden && l.FFN == s.FFN && l.QHeads == s.QHeads && l.KVHeads == s.KVHeads && l.HeadDim == s.HeadDim && l.DType == s.DType
}

// OverlapFact is the slow-down of a compute op or of a communication op when both run at
// the same time (op.OverlapPair), over all sizes measured.
//
// The step simulator uses the ratios of attention beside send_recv. It assumes a ratio of
// 1 for all other pairs, measured or not.
type OverlapFact struct {
	On      string    `json:"on"` // device type or group signature
	Compute op.Kind   `json:"compute"`
	Comm    op.Kind   `json:"comm"`
	Slowed  op.Slowed `json:"slowed"`
	Ratio   float64   `json:"ratio"` // time beside the other op over time alone, median over sizes
	Lo      float64   `json:"lo"`    // smallest ratio of any size
	Hi      float64   `json:"hi"`    // largest ratio of any size
	Points  int       `json:"points"`
}

// Outlier is one device, one instance of a group, or one rank in it, whose
// times differ from its peers'.
type Outlier struct {
	On    string  `json:"on"`             // device type or group signature
	Place string  `json:"place"`          // which device or group instance of that type
	Rank  string  `json:"rank,omitempty"` // which rank inside the group instance, when that is what differs
	Op    op.Kind `json:"op,omitempty"`   // the collective; absent for a device, which is judged over all its ops
	// Scale is its time over its peers' (the median over all places, or over all
	// ranks): the factor that turns a law of On into one of this place.
	Scale  float64 `json:"scale"`
	Points int     `json:"points"` // behind Scale
}

// String is the finding in words: "n1/g3: all_gather 22 % slower than its peers
// (7 points)".
func (o Outlier) String() string {
	name := o.Place
	if o.Rank != "" {
		name = o.Rank
		if o.Place != "" {
			name += " in " + o.Place
		}
	}
	what := ""
	if o.Op != "" {
		what = string(o.Op) + " "
	}
	word, by := "slower", o.Scale-1
	if by < 0 {
		word, by = "faster", -by
	}
	return fmt.Sprintf("%s: %s%.0f %% %s than its peers (%s)", name, what, 100*by, word, units.Count(o.Points, "point"))
}

// validateFacts checks what a profile knows beside its laws. `known` are its
// devices and groups.
func (p *Profile) validateFacts(known map[string]bool) error {
	seen := map[string]bool{}
	for i, m := range p.Memory {
		if !known[m.Device] || seen[m.Device] {
			return fmt.Errorf("memory[%d].device: %q: want a device of this profile, once", i, m.Device)
		}
		seen[m.Device] = true
		if err := m.validate(); err != nil {
			return fmt.Errorf("memory[%d].%w", i, err)
		}
	}
	for i, o := range p.Overlaps {
		switch {
		case !known[o.On]:
			return fmt.Errorf("overlaps[%d].on: %q is no device or group of this profile", i, o.On)
		case !(o.Lo > 0 && o.Lo <= o.Ratio && o.Ratio <= o.Hi && o.Hi < 1e6) || o.Points < 1:
			return fmt.Errorf("overlaps[%d]: %v in [%v, %v] of %d points: want 0 < lo <= ratio <= hi", i, o.Ratio, o.Lo, o.Hi, o.Points)
		}
	}
	if err := p.validateTraining(); err != nil {
		return err
	}
	for i, o := range p.Outliers {
		switch {
		case !known[o.On]:
			return fmt.Errorf("outliers[%d].on: %q is no device or group of this profile", i, o.On)
		case !(o.Scale > 0) || math.IsInf(o.Scale, 0):
			return fmt.Errorf("outliers[%d].scale: %v: want a positive factor", i, o.Scale)
		}
	}
	return nil
}

func (m MemoryFacts) validate() error {
	if m.Capacity < 0 || m.Reserve < 0 {
		return fmt.Errorf("capacity_bytes, reserve_bytes: %d, %d: must not be negative", int64(m.Capacity), int64(m.Reserve))
	}
	for i, l := range m.Layers {
		if !(l.PerToken > 0) || math.IsInf(l.PerToken, 0) {
			return fmt.Errorf("layers[%d].per_token_bytes: %v: want a positive number", i, l.PerToken)
		}
		if l.Points < 2 || l.MinTokens < 1 || l.MaxTokens <= l.MinTokens {
			return fmt.Errorf("layers[%d]: %d points from %d to %d tokens: a slope takes two lengths", i, l.Points, int64(l.MinTokens), int64(l.MaxTokens))
		}
	}
	return nil
}

// usable is the capacity of a device type that plans may count on: what was
// measured before the first tensor, and what the whole memory leaves beside the
// measured reserve, whichever is less. Both already leave out the context, so
// one is not taken off the other.
func (m MemoryFacts) usable(whole units.Bytes) units.Bytes {
	left := whole
	if whole > 0 && m.Reserve > 0 {
		left = max(1, whole-m.Reserve)
	}
	switch {
	case m.Capacity == 0:
		return left
	case left == 0:
		return m.Capacity
	}
	return min(left, m.Capacity)
}

package solver

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// MemoryError says that a layout does not fit one of its devices.
type MemoryError struct {
	Rank      int
	Place     string // rank, device type and node in words
	Component string // the largest: states, activations, transient or logits
	Memory    costmodel.Memory
}

// Error names the rank, the component that weighs most and the way out.
func (e *MemoryError) Error() string {
	var parts []string
	for _, c := range components(e.Memory) {
		parts = append(parts, fmt.Sprintf("%s %v", c.name, c.bytes))
	}
	return fmt.Sprintf("%s would need %v of the usable %v (%v x %v): %s; %s is the largest part",
		e.Place, e.Memory.Peak(), usable(e.Memory.Capacity), costmodel.Usable, e.Memory.Capacity, strings.Join(parts, ", "), e.Component)
}

func usable(capacity units.Bytes) units.Bytes {
	return units.Bytes(costmodel.Usable * float64(capacity))
}

type component struct {
	name  string
	bytes units.Bytes
}

func components(m costmodel.Memory) []component {
	return []component{{"states", m.States}, {"activations", m.Activations}, {"transient", m.Transient}, {"logits", m.Logits}}
}

func largest(m costmodel.Memory) string {
	best := component{}
	for _, c := range components(m) {
		if c.bytes > best.bytes {
			best = c
		}
	}
	return best.name
}

// misfit is the rank that exceeds its capacity most, in proportion, or nil.
func (p *Problem) misfit(s *costmodel.Step) *MemoryError {
	worst, at := 0.0, -1
	for r, k := range s.Ranks {
		if over := float64(k.Memory.Peak()) / float64(k.Memory.Capacity); !k.Memory.Fits() && over > worst {
			worst, at = over, r
		}
	}
	if at < 0 {
		return nil
	}
	m := s.Ranks[at].Memory
	return &MemoryError{Rank: at, Place: p.place(at), Component: largest(m), Memory: m}
}

// memoryOf is the peak memory of rank r with s tokens when `active` ranks have
// tokens and the largest of the others' shards has `widest`, in a ring of single
// ranks.
func (p *Problem) memoryOf(r int, s units.Tokens, active int, widest units.Tokens) costmodel.Memory {
	m := p.Job.Model
	return p.Job.MemoryOf(costmodel.MemoryShare{
		Tokens: s, GroupTokens: s, Widest: widest, QHeads: m.QHeads, KVHeads: m.KVHeads, AllKVHeads: m.KVHeads, Members: 1, Ranks: active,
	}, p.memory[r])
}

func sum(n []units.Tokens) units.Tokens {
	var total units.Tokens
	for _, x := range n {
		total += x
	}
	return total
}

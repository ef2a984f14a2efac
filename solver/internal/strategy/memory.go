package strategy

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
	Component string // the largest component: states, activations, transient or logits
	Memory    costmodel.Memory
}

// Error names the rank, the component that weighs most and the way out.
func (e *MemoryError) Error() string {
	var parts []string
	for _, c := range components(e.Memory) {
		parts = append(parts, fmt.Sprintf("%s %v", c.name, c.bytes))
	}
	return fmt.Sprintf("%s would need %s (%v x %v): %s; %s is the largest part",
		e.Place, above(e.Memory.Peak(), Usable(e.Memory.Capacity)), costmodel.Usable, e.Memory.Capacity, strings.Join(parts, ", "), e.Component)
}

// above says how much is needed of what there is. A hair more would print as the same.
func above(need, usable units.Bytes) string {
	text := fmt.Sprintf("%v of the usable %v", need, usable)
	if need > usable && need.String() == usable.String() {
		text = fmt.Sprintf("%v more than the usable %v", need-usable, usable)
	}
	return text
}

// Usable is what a layout may fill of a device.
func Usable(capacity units.Bytes) units.Bytes {
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

// Fill is the part of a device that is used.
func Fill(m costmodel.Memory) float64 { return float64(m.Peak()) / float64(m.Capacity) }

// Overfull is the rank whose memory a layout exceeds most, in proportion, or nil.
func (p *Problem) Overfull(l costmodel.Layout) *MemoryError {
	at, worst := -1, 0.0
	memory := p.Sim.Memory(l)
	for r, m := range memory {
		if over := Fill(m); !m.Fits() && over > worst {
			at, worst = r, over
		}
	}
	if at < 0 {
		return nil
	}
	return &MemoryError{Rank: at, Place: p.Place(at), Component: largest(memory[at]), Memory: memory[at]}
}

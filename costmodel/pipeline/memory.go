package pipeline

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Memory is what each rank of a stage holds at its peak under a plan, in bytes.
type Memory struct {
	States units.Bytes `json:"states_bytes"` // parameters, gradients, optimizer
	// Activations are what chunks keep between their forward and backward passes, the
	// gradients of keys and values that slices wait for, and what the pass at work takes.
	Activations units.Bytes `json:"activations_bytes"`
	// Capacity is what plans may fill; 0 where nobody knows it.
	Capacity units.Bytes `json:"capacity_bytes"`
}

// Peak is all of it.
func (m Memory) Peak() units.Bytes { return m.States.Plus(m.Activations) }

// Memory is what each rank of every stage holds under a plan. A chunk keeps its activations
// from its forward to its backward pass, of layers that are computed again only what goes
// into them and, of a slice, keys and values. The gradients of the keys and values of a
// sequence's slices are held from the last slice's backward pass to each one's own.
func (c *Costs) Memory(p *Plan) []Memory {
	out := make([]Memory, len(p.Stages))
	for s := range p.Stages {
		out[s] = c.StageMemory(p, s)
	}
	return out
}

// StageMemory is Memory of a single stage.
func (c *Costs) StageMemory(p *Plan, s int) Memory {
	before, behind := slicesOf(p.Chunks)
	x := &p.Stages[s]
	bytes := make([]costmodel.ChunkBytes, len(p.Chunks))
	for k := range p.Chunks {
		bytes[k] = c.Held(x.Ranks, p.Chunks[k])
	}
	layers, last := float64(x.Layers), s == len(p.Stages)-1
	held, peak := 0.0, 0.0
	for _, o := range p.Orders[s] {
		b, again := &bytes[o.Chunk], float64(p.Recompute[s][o.Chunk])
		kept := (layers-again)*b.Kept + again*b.Again
		if !o.Backward {
			held += kept
			now := held
			if last {
				now += b.Logits
			}
			peak = max(peak, now)
			continue
		}
		if behind[o.Chunk] < 0 { // of all slices before the last
			for k := before[o.Chunk]; k >= 0; k = before[k] {
				held += layers * bytes[k].Gradients
			}
		}
		now := held + b.Transient
		if again > 0 {
			now += b.Kept
		}
		peak = max(peak, now)
		held -= kept
		if behind[o.Chunk] >= 0 {
			held -= layers * b.Gradients
		}
	}
	return Memory{States: c.States(p, s), Activations: units.BytesOf(peak), Capacity: c.Capacity(x.Ranks)}
}

// NoRoomError says which stage has too little memory for a plan.
type NoRoomError struct {
	Stage  int
	Memory Memory
}

// Error names the stage, what its ranks would hold and what there is room for.
func (e *NoRoomError) Error() string {
	return fmt.Sprintf("each rank of stage %d would hold %v, %v of it states and %v activations, and has room for %v",
		e.Stage, e.Memory.Peak(), e.Memory.States, e.Memory.Activations, e.Memory.Capacity)
}

// Over is by what factor the ranks hold more than they may.
func (e *NoRoomError) Over() float64 {
	return float64(e.Memory.Peak()) / float64(e.Memory.Capacity)
}

// Room says whether every stage has the memory that a plan needs; if not, the error is the
// *NoRoomError of the stage that has least.
func (c *Costs) Room(p *Plan) error {
	var worst *NoRoomError
	for s, m := range c.Memory(p) {
		if m.Capacity == 0 || m.Peak() <= m.Capacity {
			continue
		}
		if e := (&NoRoomError{s, m}); worst == nil || e.Over() > worst.Over() {
			worst = e
		}
	}
	if worst == nil {
		return nil
	}
	return worst
}

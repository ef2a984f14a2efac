package multitask

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Memory is what a rank holds at its peak under a plan, in bytes.
type Memory struct {
	// States are the parameters and gradients of the layers that the rank runs, and its
	// share of their optimizer's state, which the devices of a run divide among them (ZeRO-1).
	States units.Bytes `json:"states_bytes"`
	// Activations are what all its runs keep for their backward passes and, under full
	// recomputation, what the largest layer does once it is computed again.
	Activations units.Bytes `json:"activations_bytes"`
	// Capacity is what plans may fill; 0 where nobody knows it.
	Capacity units.Bytes `json:"capacity_bytes"`
}

// Peak is all of it.
func (m Memory) Peak() units.Bytes { return m.States.Plus(m.Activations) }

// Memory is what every rank holds under a plan: layers stay where they are run, and all
// activations are kept from the first forward pass to the last backward pass.
func (c *Costs) Memory(p *Plan) []Memory {
	out := make([]Memory, c.Devices())
	for r := range out {
		out[r].Capacity = c.Room(c.pool[r])
	}
	again := make([]units.Bytes, len(out)) // by rank: of the largest layer that is computed again
	for i := range p.Runs {
		run := &p.Runs[i]
		for k, r := range run.Ranks {
			m := c.from.memory(run.Module, len(run.Ranks), run.Samples[k])
			out[r].States = out[r].States.Plus(m.states.Times(int64(run.Layers)))
			out[r].Activations = out[r].Activations.Plus(m.kept.Times(int64(run.Layers)))
			again[r] = max(again[r], m.again)
		}
	}
	for r := range out {
		out[r].Activations = out[r].Activations.Plus(again[r])
	}
	return out
}

// Held is what a rank holds of a layer of a module from its forward to its backward pass,
// where it runs on n ranks, of which the rank has so many samples.
func (c *Costs) Held(module, n, samples int) units.Bytes {
	m := c.from.memory(module, n, samples)
	return m.states.Plus(m.kept)
}

// Room is what plans may fill of the memory of a pool's devices; 0 where nobody knows it.
func (c *Costs) Room(pool int) units.Bytes {
	return units.BytesOf(costmodel.Usable * float64(c.from.capacity(pool)))
}

// NoRoomError says which rank has too little memory for a plan.
type NoRoomError struct {
	Rank   int
	Device string
	Memory Memory
}

// Error names the rank, what it would hold and what there is room for.
func (e *NoRoomError) Error() string {
	return fmt.Sprintf("rank %d (%s) would hold %v, %v of it states and %v activations, and plans may fill %v of it",
		e.Rank, e.Device, e.Memory.Peak(), e.Memory.States, e.Memory.Activations, e.Memory.Capacity)
}

// Over is by what factor the rank holds more than it may.
func (e *NoRoomError) Over() float64 {
	return float64(e.Memory.Peak()) / float64(e.Memory.Capacity)
}

// Fits says whether every rank has the memory that a plan needs; if not, the error is the
// *NoRoomError of the rank that has least.
func (c *Costs) Fits(p *Plan) error {
	var worst *NoRoomError
	for r, m := range c.Memory(p) {
		if m.Capacity == 0 || m.Peak() <= m.Capacity {
			continue
		}
		if e := (&NoRoomError{r, c.Pools[c.pool[r]].Device, m}); worst == nil || e.Over() > worst.Over() {
			worst = e
		}
	}
	if worst == nil {
		return nil
	}
	return worst
}

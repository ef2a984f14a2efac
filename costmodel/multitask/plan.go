package multitask

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Run is consecutive layers of a module on one set of devices.
type Run struct {
	Module  int   `json:"module"` // index into the modules
	Layers  int   `json:"layers"`
	Ranks   []int `json:"ranks"`   // rising
	Samples []int `json:"samples"` // of the batch, by rank
	// Wave is the number of the wave that the run is part of, from 0; 0 in a plan without.
	Wave  int           `json:"wave,omitzero"`
	Start units.Seconds `json:"start_s"`
	End   units.Seconds `json:"end_s"`
}

// Plan is what is run where, in which order.
type Plan struct {
	// Waves says that the runs of a wave begin together, when those of the wave before have
	// all ended.
	Waves bool  `json:"waves,omitzero"`
	Runs  []Run `json:"runs"` // every device takes its runs in this order; so does every module
	// Time is the seconds until the last run has ended.
	Time units.Seconds `json:"step_s"`
}

// Clone copies a plan.
func (p *Plan) Clone() *Plan {
	out := *p
	out.Runs = slices.Clone(p.Runs)
	return &out
}

// Simulate says when every run begins and ends, and how long the plan takes. A run begins
// as soon as its devices are free and what it needs is there: the results of the layers
// before it in its module, or of the modules that its own comes after. Moving these takes
// time in which the devices may do something else. Forward and backward pass of a run count
// as one stretch of time: a step is the runs' forward passes in this order and their backward
// passes in the reverse one, which takes as long where one is the same multiple of the other
// in all runs.
//
// Errors: runs that are none, by Runs.
func (c *Costs) Simulate(p *Plan) error {
	if err := c.rules().hold(p); err != nil {
		return err
	}
	free := make([]units.Seconds, c.Devices())
	last := make([]*Run, len(c.Tasks.Modules)) // of the module so far
	begun, all, wave := units.Seconds(0), units.Seconds(0), 0
	for i := range p.Runs {
		r := &p.Runs[i]
		if p.Waves && r.Wave != wave {
			begun, wave = all, r.Wave
		}
		r.Start = begun
		for _, rank := range r.Ranks {
			r.Start = max(r.Start, free[rank])
		}
		if before := last[r.Module]; before != nil {
			r.Start = max(r.Start, before.End+c.Move(r.Module, before, r, false))
		} else {
			for _, need := range c.Needs[r.Module] {
				r.Start = max(r.Start, last[need].End+c.Move(need, last[need], r, true))
			}
		}
		r.End = r.Start + units.Seconds(r.Layers)*c.Layer(r.Module, r.Ranks, r.Samples)
		for _, rank := range r.Ranks {
			free[rank] = r.End
		}
		last[r.Module], all = r, max(all, r.End)
	}
	p.Time = all
	if all == forever && c.err != nil {
		return c.err
	}
	return nil
}

// Validate says what of a plan's runs cannot be on so many devices, whatever they take.
func (p *Plan) Validate(t *Tasks, devices int) error {
	return rules{t.Modules, t.Needs(), devices}.hold(p)
}

// rules are what runs must hold.
type rules struct {
	modules []Module
	needs   [][]int // Tasks.Needs
	devices int
}

func (c *Costs) rules() rules { return rules{c.Tasks.Modules, c.Needs, c.Devices()} }

// hold says where a plan does not hold them.
func (k rules) hold(p *Plan) error {
	left := make([]int, len(k.modules))
	for m, x := range k.modules {
		left[m] = x.Layers
	}
	wave := 0
	for i, r := range p.Runs {
		if err := k.run(p, r, left, wave); err != nil {
			return fmt.Errorf("runs[%d].%w", i, err)
		}
		left[r.Module] -= r.Layers
		wave = r.Wave
	}
	for m, n := range left {
		if n > 0 {
			return fmt.Errorf("runs: %d of the %d layers of %s are in none", n, k.modules[m].Layers, k.modules[m].Name)
		}
	}
	return nil
}

// run says what of a run cannot be; left are the layers of every module that no run before
// it has.
func (k rules) run(p *Plan, r Run, left []int, wave int) error {
	if r.Module < 0 || r.Module >= len(left) {
		return fmt.Errorf("module: %d: want 0 to %d", r.Module, len(left)-1)
	}
	m := k.modules[r.Module]
	if r.Layers < 1 || r.Layers > left[r.Module] {
		return fmt.Errorf("layers: %d of %s: want 1 to %d, which no run before has", r.Layers, m.Name, left[r.Module])
	}
	for _, need := range k.needs[r.Module] {
		if left[need] > 0 {
			return fmt.Errorf("module: %s begins before the last %d layers of %s, which it needs", m.Name, left[need], k.modules[need].Name)
		}
	}
	if r.Wave != wave && (r.Wave != wave+1 || !p.Waves) {
		return fmt.Errorf("wave: %d after %d: want the same or the next, and 0 in a plan without waves", r.Wave, wave)
	}
	return k.shared(m, r)
}

// shared says what of a run's ranks and shares cannot be.
func (k rules) shared(m Module, r Run) error {
	if len(r.Ranks) == 0 || len(r.Ranks) != len(r.Samples) {
		return fmt.Errorf("samples: of %d ranks, and ranks has %d: want as many, and one at least", len(r.Samples), len(r.Ranks))
	}
	total := 0
	for i, rank := range r.Ranks {
		if rank < 0 || rank >= k.devices || i > 0 && rank <= r.Ranks[i-1] {
			return fmt.Errorf("ranks[%d]: %d: want rising ranks of 0 to %d", i, rank, k.devices-1)
		}
		if r.Samples[i] < 1 || r.Samples[i] > m.Batch {
			return fmt.Errorf("samples[%d]: %d: want 1 to batch_samples, %d", i, r.Samples[i], m.Batch)
		}
		total += r.Samples[i]
	}
	if total != m.Batch {
		return fmt.Errorf("samples: %d together: want batch_samples of %s, %d", total, m.Name, m.Batch)
	}
	return nil
}

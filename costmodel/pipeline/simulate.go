package pipeline

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Simulate says when every pass begins and ends, and how long the plan takes. A stage
// computes its passes in their order, each as soon as what it needs is there: forward the
// chunk's from the stage before, backward its gradients from the stage behind. Sending takes
// time in which both stages may compute something else. When a stage is done with its passes
// it adds up its gradients among its ranks and updates its parameters; in between the first and
// the last one, once both are there, add up those of a table that both have.
//
// Errors: a plan that is none; stages whose orders wait for each other; a missing law.
func (c *Costs) Simulate(p *Plan) error {
	if err := p.Validate(c.Lengths, c.Layers, c.Devices()); err != nil {
		return err
	}
	return c.Run(p)
}

// Run is Simulate of a plan that is known to be one, but for stages that may wait for each
// other.
func (c *Costs) Run(p *Plan) error {
	r := c.prices(p)
	return r.run(c, p)
}

// run holds what a plan's passes take: by stage and chunk.
type run struct {
	forward, backward [][]units.Seconds
	send              [][]units.Seconds // to the stage behind, or back from it
	finish            []Finish
	tied              units.Seconds
}

// prices asks for what a plan's passes take.
func (c *Costs) prices(p *Plan) *run {
	r := &run{finish: make([]Finish, len(p.Stages)), tied: c.Tied(p)}
	for s := range p.Stages {
		forward, backward := make([]units.Seconds, len(p.Chunks)), make([]units.Seconds, len(p.Chunks))
		for k := range p.Chunks {
			forward[k], backward[k] = c.Passes(p, s, k)
		}
		r.forward, r.backward, r.send = append(r.forward, forward), append(r.backward, backward), append(r.send, c.messages(p, s))
		r.finish[s] = c.Finish(p, s)
	}
	return r
}

// messages are, by chunk, what its activations take from stage s to the one behind it; nothing from the last one.
func (c *Costs) messages(p *Plan, s int) []units.Seconds {
	all := make([]units.Seconds, len(p.Chunks))
	for k := range p.Chunks {
		if s+1 < len(p.Stages) {
			all[k] = c.Send(p.Stages[s].Ranks, p.Stages[s+1].Ranks, c.tokens(&p.Chunks[k]))
		}
	}
	return all
}

func (r *run) run(c *Costs, p *Plan) error {
	n, last := len(p.Chunks), len(p.Stages)-1
	// When a chunk's forward and backward pass on a stage are over; -1 before.
	ended := make([]units.Seconds, 2*n*len(p.Stages))
	for i := range ended {
		ended[i] = -1
	}
	at := func(s, k int, back bool) *units.Seconds {
		i := 2 * (s*n + k)
		if back {
			i++
		}
		return &ended[i]
	}
	next, free := make([]int, len(p.Stages)), make([]units.Seconds, len(p.Stages))
	for left, moved := 2*n*len(p.Stages), true; left > 0; moved = false {
		for s := range p.Stages {
			for next[s] < 2*n {
				o := &p.Orders[s][next[s]]
				k, ready, took := o.Chunk, units.Seconds(0), r.forward[s][o.Chunk]
				if o.Backward {
					took = r.backward[s][k]
				}
				switch {
				case !o.Backward && s > 0:
					if ready = *at(s-1, k, false); ready >= 0 {
						ready += r.send[s-1][k]
					}
				case o.Backward && s < last:
					if ready = *at(s+1, k, true); ready >= 0 {
						ready += r.send[s][k]
					}
				}
				if ready < 0 {
					break
				}
				o.Start = max(free[s], ready)
				o.End = o.Start + took
				free[s] = o.End
				*at(s, k, o.Backward) = o.End
				next[s]++
				left--
				moved = true
			}
		}
		if !moved && left > 0 {
			s := 0
			for next[s] == 2*n {
				s++
			}
			return fmt.Errorf("orders: stages wait for each other: stage %d for chunk %d", s, p.Orders[s][next[s]].Chunk)
		}
	}
	p.Time = 0
	for s := range p.Stages {
		free[s] += r.finish[s].Gradients
	}
	if r.tied > 0 {
		both := max(free[0], free[last]) + r.tied
		free[0], free[last] = both, both
	}
	for s := range p.Stages {
		p.Time = max(p.Time, free[s]+r.finish[s].Parameters)
	}
	if c.err != nil && !(p.Time < forever) {
		return c.err
	}
	return nil
}

package pipeline

import (
	"fmt"
	"slices"

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
	return c.prices(p).simulate(c, p)
}

// prices are what a plan's passes take, by stage and chunk, and what comes behind them.
type prices struct {
	forward, backward [][]units.Seconds
	send              [][]units.Seconds // to the stage behind, or back from it
	finish            []Finish
	tied              units.Seconds
}

// prices asks for what a plan's passes take.
func (c *Costs) prices(p *Plan) *prices {
	x := &prices{finish: make([]Finish, len(p.Stages)), tied: c.Tied(p)}
	for s := range p.Stages {
		forward, backward := make([]units.Seconds, len(p.Chunks)), make([]units.Seconds, len(p.Chunks))
		for k := range p.Chunks {
			forward[k], backward[k] = c.Passes(p, s, k)
		}
		x.forward, x.backward, x.send = append(x.forward, forward), append(x.backward, backward), append(x.send, c.messages(p, s))
		x.finish[s] = c.Finish(p, s)
	}
	return x
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

// simulate gives a plan and its passes the times that follow from prices.
func (x *prices) simulate(c *Costs, p *Plan) error {
	done, err := x.schedule(p)
	if err != nil {
		return err
	}
	p.Time = x.finished(done)
	if c.err != nil && !(p.Time < forever) {
		return c.err
	}
	return nil
}

// finished is when the step is over of which the stages' passes are done at these times.
func (x *prices) finished(done []units.Seconds) (t units.Seconds) {
	for s := range done {
		done[s] += x.finish[s].Gradients
	}
	if first, last := &done[0], &done[len(done)-1]; x.tied > 0 {
		both := max(*first, *last) + x.tied
		*first, *last = both, both
	}
	for s := range done {
		t = max(t, done[s]+x.finish[s].Parameters)
	}
	return t
}

// schedule says of every pass of a plan when it begins and ends, and returns when each stage is
// done with its own.
func (x *prices) schedule(p *Plan) (done []units.Seconds, err error) {
	stages, chunks := len(p.Stages), len(p.Chunks)
	t := &timing{prices: x, plan: p, next: make([]int, stages), free: make([]units.Seconds, stages)}
	for range stages {
		t.forward = append(t.forward, slices.Repeat([]units.Seconds{-1}, chunks))
		t.backward = append(t.backward, slices.Repeat([]units.Seconds{-1}, chunks))
	}
	for left := 2 * chunks * stages; left > 0; {
		before := left
		for s := range p.Stages {
			left -= t.advance(s)
		}
		if left == before {
			return nil, t.stuck()
		}
	}
	return t.free, nil
}

// timing is a plan of which some passes have their times.
type timing struct {
	prices            *prices
	plan              *Plan
	forward, backward [][]units.Seconds // by stage and chunk, when the pass is over; -1 before
	next              []int             // of every stage, the first pass in its order that has no time
	free              []units.Seconds   // when every stage is done with those before
}

// advance gives the passes of a stage their times until one has to wait for a pass of another
// stage that has none, and says to how many.
func (t *timing) advance(s int) (n int) {
	for order := t.plan.Orders[s]; t.next[s] < len(order); t.next[s]++ {
		o := &order[t.next[s]]
		ready, known := t.ready(s, o)
		if !known {
			break
		}
		over, took := t.forward[s], t.prices.forward[s]
		if o.Backward {
			over, took = t.backward[s], t.prices.backward[s]
		}
		o.Start = max(t.free[s], ready)
		o.End = o.Start + took[o.Chunk]
		t.free[s], over[o.Chunk] = o.End, o.End
		n++
	}
	return n
}

// ready is when what a pass needs is there: forward what the stage before made of the chunk,
// backward the gradients of the stage behind.
func (t *timing) ready(s int, o *Op) (at units.Seconds, known bool) {
	from, over := s-1, t.forward
	if o.Backward {
		from, over = s+1, t.backward
	}
	if from < 0 || from == len(over) {
		return 0, true
	}
	at = over[from][o.Chunk]
	return at + t.prices.send[min(s, from)][o.Chunk], !(at < 0)
}

// stuck names the first stage that waits.
func (t *timing) stuck() error {
	s := 0
	for t.next[s] == len(t.plan.Orders[s]) {
		s++
	}
	return fmt.Errorf("orders: stages wait for each other: stage %d for chunk %d", s, t.plan.Orders[s][t.next[s]].Chunk)
}

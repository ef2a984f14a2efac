package pipeline

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// draft is a plan without orders: these follow from the order in which sequences begin.
type draft struct {
	stages []pipeline.Stage
	items  []*item
	order  [][]int // items by sequence, in the order in which sequences begin
	again  [][]int // by stage and item: layers computed again
}

// item is a chunk with what it takes on the stages. It is not changed.
type item struct {
	pipeline.Chunk
	on   []priced
	send []float64 // to the next stage
}

// priced is what a chunk takes and holds in one layer of a stage, in seconds and bytes.
type priced struct {
	forward, again, backward, loss      float64
	kept, againBytes, gradients, logits float64
	work                                float64 // what a backward pass takes beside
}

func (d *draft) clone() *draft {
	out := &draft{stages: slices.Clone(d.stages), items: slices.Clone(d.items), order: slices.Clone(d.order)}
	for _, a := range d.again {
		out.again = append(out.again, slices.Clone(a))
	}
	return out
}

// dispatcher gives a draft orders: every stage takes, of the passes that it could do, the one
// that can begin first, and backward before forward. A sequence begins on a stage when there is
// room for all its chunks beside those that are under way, so that none is ever stuck.
type dispatcher struct {
	p      *Problem
	finish []pipeline.Finish // by stage, as the next
	room   []float64
	tied   float64
	stages []stageState
	ops    [][]pipeline.Op
}

// stageState is how far a stage is.
type stageState struct {
	free, held      float64
	sequence, slice int       // that is next to go forward
	holds           []float64 // by item: bytes from its forward to its backward pass
	inputs          []float64 // by item: when it is there; below 0 before
	// Gradients that have come, or will: items, when they are there, and how many are taken.
	backs   []int
	arrives []float64
	taken   int
}

func newDispatcher(p *Problem) *dispatcher { return &dispatcher{p: p} }

// priced is a chunk with what it takes on stages.
func (p *Problem) priced(stages []pipeline.Stage, c pipeline.Chunk) *item {
	it := &item{Chunk: c, on: make([]priced, len(stages)), send: make([]float64, len(stages))}
	for s := range stages {
		ranks := stages[s].Ranks
		w, b := p.Work(ranks, c), p.Held(ranks, c)
		it.on[s] = priced{
			float64(w.Forward), float64(w.Again), float64(w.Backward), float64(w.Loss),
			b.Kept, b.Again, b.Gradients, b.Logits, b.Transient,
		}
		if s+1 < len(stages) {
			it.send[s] = float64(p.Send(ranks, stages[s+1].Ranks, p.Tokens(c)))
		}
	}
	return it
}

// settle is what follows from the stages' numbers of layers.
func (x *dispatcher) settle(d *draft) {
	plan := &pipeline.Plan{Stages: d.stages}
	x.finish, x.room, x.tied = x.finish[:0], x.room[:0], float64(x.p.Tied(plan))
	for s := range d.stages {
		x.finish = append(x.finish, x.p.Finish(plan, s))
		room := float64(x.p.Capacity(d.stages[s].Ranks))
		if room == 0 {
			room = noLimit
		}
		x.room = append(x.room, room-float64(x.p.States(plan, s)))
	}
}

const noLimit = 1e30

// holds is what an item holds on a stage, and beside all that is held what its passes take.
func (x *dispatcher) holds(d *draft, s, k int) (held, beside float64) {
	layers, b, again := float64(d.stages[s].Layers), &d.items[k].on[s], float64(d.again[s][k])
	held, beside = (layers-again)*b.kept+again*b.againBytes+layers*b.gradients, b.work
	if again > 0 {
		beside += b.kept
	}
	if s == len(d.stages)-1 {
		beside = max(beside, b.logits)
	}
	return held, beside
}

// hold is what a sequence's items hold together.
func (x *dispatcher) hold(d *draft, s int, items []int) float64 {
	sum := 0.0
	for _, k := range items {
		held, _ := x.holds(d, s, k)
		sum += held
	}
	return sum
}

// run is how long a draft takes, infinite where some stage has no room for some sequence.
// With keep the orders are kept, for plan.
func (x *dispatcher) run(d *draft, keep bool) float64 {
	n := len(d.stages)
	if len(x.stages) < n {
		x.stages = append(x.stages, make([]stageState, n-len(x.stages))...)
	}
	x.ops = x.ops[:0]
	for s := range n {
		st := &x.stages[s]
		*st = stageState{holds: st.holds[:0], inputs: st.inputs[:0], backs: st.backs[:0], arrives: st.arrives[:0]}
		for k := range d.items {
			held, beside := x.holds(d, s, k)
			st.holds, st.inputs = append(st.holds, held), append(st.inputs, -1)
			st.held = max(st.held, beside)
		}
		for _, items := range d.order {
			sum := st.held
			for _, k := range items {
				sum += st.holds[k]
			}
			if sum > x.room[s] {
				return math.Inf(1)
			}
		}
		if keep {
			x.ops = append(x.ops, make([]pipeline.Op, 0, 2*len(d.items)))
		}
	}
	for k := range x.stages[0].inputs {
		x.stages[0].inputs[k] = 0
	}
	end := 0.0
	for left := 2 * n * len(d.items); left > 0; left-- {
		at, begin, back := -1, 0.0, false
		for s := range n {
			t, b, ok := x.next(d, s)
			if ok && (at < 0 || t < begin) {
				at, begin, back = s, t, b
			}
		}
		if at < 0 {
			return math.Inf(1)
		}
		end = max(end, x.step(d, at, begin, back, keep))
	}
	added := func(s int) float64 { return x.stages[s].free + float64(x.finish[s].Gradients) }
	both := max(added(0), added(n-1)) + x.tied
	for s := range n {
		at := added(s)
		if x.tied > 0 && (s == 0 || s == n-1) {
			at = both
		}
		end = max(end, at+float64(x.finish[s].Parameters))
	}
	return end
}

// next is when a stage can begin its next pass, and which it is.
func (x *dispatcher) next(d *draft, s int) (begin float64, back, ok bool) {
	st := &x.stages[s]
	if st.taken < len(st.backs) {
		begin, back, ok = max(st.free, st.arrives[st.taken]), true, true
	}
	if st.sequence == len(d.order) {
		return begin, back, ok
	}
	k := d.order[st.sequence][st.slice]
	if st.inputs[k] < 0 || st.held+st.holds[k] > x.room[s] {
		return begin, back, ok
	}
	if t := max(st.free, st.inputs[k]); !ok || t < begin {
		return t, false, true
	}
	return begin, back, ok
}

// step does a stage's next pass, and returns when it is over.
func (x *dispatcher) step(d *draft, s int, begin float64, back, keep bool) float64 {
	st, layers := &x.stages[s], float64(d.stages[s].Layers)
	var k int
	if back {
		k = st.backs[st.taken]
		st.taken++
		b, again := &d.items[k].on[s], float64(d.again[s][k])
		st.free = begin + layers*b.backward + again*b.again
		st.held -= st.holds[k]
		if s > 0 {
			before := &x.stages[s-1]
			before.backs, before.arrives = append(before.backs, k), append(before.arrives, st.free+d.items[k].send[s-1])
		}
	} else {
		items := d.order[st.sequence]
		k = items[st.slice]
		b := &d.items[k].on[s]
		st.free = begin + layers*b.forward
		st.held += st.holds[k]
		if st.slice++; st.slice == len(items) {
			st.slice = 0
			st.sequence++
		}
		if s+1 < len(d.stages) {
			x.stages[s+1].inputs[k] = st.free + d.items[k].send[s]
		} else {
			st.free += b.loss
			if st.slice == 0 { // the last slice is there: backward they go, the last one first
				for _, k := range slices.Backward(items) {
					st.backs, st.arrives = append(st.backs, k), append(st.arrives, st.free)
				}
			}
		}
	}
	if keep {
		x.ops[s] = append(x.ops[s], pipeline.Op{Chunk: k, Backward: back, Start: units.Seconds(begin), End: units.Seconds(st.free)})
	}
	return st.free
}

// plan is a draft with its orders; nil where there is no room.
func (x *dispatcher) plan(d *draft) *pipeline.Plan {
	x.settle(d)
	if math.IsInf(x.run(d, true), 1) {
		return nil
	}
	d = d.clone()
	p := &pipeline.Plan{Stages: d.stages, Recompute: d.again, Orders: slices.Clone(x.ops)}
	for _, it := range d.items {
		p.Chunks = append(p.Chunks, it.Chunk)
	}
	return p
}

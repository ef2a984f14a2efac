package multitask

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Replayed predicts what replay runs of a plan: the layers of all runs, forward in the plan's
// order and backward in the reverse one, what runs send each other, and the exchange of the
// weights' gradients; none of embeddings, loss and optimizer. Waves are the planner's: no device
// waits for one to end.
//
// The ranks of a run go on by themselves. One begins a pass when it is done with the one before
// and has what it needs of other ranks (see Plan.Messages), which is a stretch stage_wait where
// it takes any time. Of that all is exposed from when the last of those ranks was done; what is
// before is skew.
//
// A device sends one message at a time, in the order in which they are computed and of the runs
// that need them, and takes in one at a time, first all that its next pass needs. With these orders nothing becomes later
// where a device or a link is faster. A message whose receiver is free is there after Send.
//
// The exchange of a layer's gradients among the ranks of a run begins when all of them have done
// its backward pass and the one before it of the same ranks is over. Neither computing nor other
// messages slow it down. At the end a rank waits for those of its runs, for each in a stretch
// grad_wait where that takes any time; until when they would be over if no other rank were later
// than itself it is exposed, and then skew.
//
// took gives computing times as in costmodel.Simulator.Supposing; nil leaves all to the laws.
// Its keys have the run's place in the plan as micro-batch, and layers of the module.
//
// The interval is that of the passes of the rank that is at work for longest. Meeting is the
// time by Simulate, in which the ranks of a run begin and end together.
//
// Errors: a plan that is none, a missing law, prices that come from no laws.
func (c *Costs) Replayed(p *Plan, took func(costmodel.ReplayKey) (units.Seconds, bool)) (*costmodel.Replayed, error) {
	r := &replaying{c: c, plan: p.Clone(), took: took, groups: map[string]*group{}}
	if err := c.Simulate(r.plan); err != nil {
		return nil, err
	}
	if err := r.prepare(); err != nil {
		return nil, err
	}
	for i := range r.runs {
		r.pass(i, false)
	}
	for i := range slices.Backward(r.runs) {
		r.pass(i, true)
		r.exchange(i)
	}
	for i := range slices.Backward(r.runs) {
		r.gather(i)
	}
	slices.SortStableFunc(r.out.Tasks, func(a, b costmodel.ReplayTask) int { return cmp.Compare(a.Rank, b.Rank) })
	r.finish()
	return &r.out, nil
}

// replaying is a replayed plan under way.
type replaying struct {
	c      *Costs
	plan   *Plan
	took   func(costmodel.ReplayKey) (units.Seconds, bool)
	runs   []running
	moves  []move
	at     []clock              // by rank
	laws   []costmodel.Estimate // by rank: of all its passes
	groups map[string]*group    // by ranks
	out    costmodel.Replayed
}

// clock is until when a rank is at work, sends and takes in.
type clock struct{ done, sends, takes units.Seconds }

// group is ranks that exchange gradients: when their last exchange is over, and when it would be
// if all ranks were done when one is, by its place.
type group struct {
	over units.Seconds
	own  []units.Seconds
}

// running is a run under way.
type running struct {
	*Run
	first   int               // of its layers in the module
	of      []layerReplay     // by place among the ranks
	in, out []int             // moves that its forward pass needs, and that come of it
	done    [][]units.Seconds // by layer of the run and place: its backward pass
	group   group             // once its gradients are exchanged
}

// move is a message under way, in one direction and later in the other.
type move struct {
	Message
	takes  units.Seconds
	posted units.Seconds // when it was computed
	leaves units.Seconds // when its sender's port was free
}

// ends are the ranks that send and take it.
func (m *move) ends(back bool) (from, to int) {
	if back {
		return m.To, m.From
	}
	return m.From, m.To
}

// prepare prices all that is run and sent.
func (r *replaying) prepare() error {
	n := r.c.Devices()
	r.at, r.laws, r.out.Ranks = make([]clock, n), make([]costmodel.Estimate, n), make([]costmodel.ReplayedRank, n)
	layers, known := make([]int, len(r.c.Tasks.Modules)), map[passKey]layerReplay{}
	for i := range r.plan.Runs {
		x := running{Run: &r.plan.Runs[i], done: make([][]units.Seconds, r.plan.Runs[i].Layers)}
		x.first = layers[x.Module]
		layers[x.Module] += x.Layers
		for k, rank := range x.Ranks {
			key := passKey{x.Module, r.c.pool[rank], x.Samples[k]}
			of, ok := known[key]
			if !ok {
				var err error
				if of, err = r.c.from.replayed(key.module, key.pool, key.samples); err != nil {
					return fmt.Errorf("runs[%d]: %w", i, err)
				}
				known[key] = of
			}
			x.of = append(x.of, of)
			whole := of.forward.Whole.Plus(of.backward.Whole)
			if of.again {
				whole = whole.Plus(of.forward.Whole)
			}
			r.laws[rank] = r.laws[rank].Plus(whole.Times(float64(x.Layers)))
		}
		r.runs = append(r.runs, x)
	}
	for i, m := range r.plan.Messages(r.c.Tasks) {
		source := r.runs[m.Source].Module
		bytes := r.c.from.result(source, source != r.runs[m.Target].Module).Times(int64(m.Samples))
		takes := r.c.send(m.From, m.To, bytes)
		if takes == forever {
			return r.c.err
		}
		r.moves = append(r.moves, move{Message: m, takes: takes})
		r.runs[m.Source].out, r.runs[m.Target].in = append(r.runs[m.Source].out, i), append(r.runs[m.Target].in, i)
	}
	return nil
}

// pass runs one of a run, on all its ranks.
func (r *replaying) pass(i int, back bool) {
	x := &r.runs[i]
	needs, gives := x.in, x.out
	if back {
		needs, gives = x.out, x.in
	}
	for k, rank := range x.Ranks {
		r.await(i, rank, back, needs)
		if back {
			r.backward(i, k)
		} else {
			for layer := range x.Layers {
				r.layer(r.key(i, rank, layer, false), &x.of[k].forward)
			}
		}
		r.post(rank, back, gives)
	}
}

// backward runs a rank's backward passes of a run's layers.
func (r *replaying) backward(i, k int) {
	x := &r.runs[i]
	rank, of := x.Ranks[k], &x.of[k]
	for layer := x.Layers - 1; layer >= 0; layer-- {
		if of.again {
			key := r.key(i, rank, layer, false)
			key.Again = true
			r.layer(key, &of.forward)
		}
		r.layer(r.key(i, rank, layer, true), &of.backward)
		x.done[layer] = append(x.done[layer], r.at[rank].done)
	}
}

// key is that of a rank's stretches in a pass of a layer of a run.
func (r *replaying) key(i, rank, layer int, back bool) costmodel.ReplayKey {
	key := costmodel.ReplayKey{Rank: rank, Micro: i, Layer: r.runs[i].first + layer, Dir: costmodel.ForwardPass}
	if back {
		key.Dir = costmodel.BackwardPass
	}
	return key
}

// await lets a rank take in what its pass of a run needs. In whatever order they come, a port
// that is never idle while one has left has the last of them at the same time.
func (r *replaying) await(i, rank int, back bool, needs []int) {
	var of []*move
	for _, n := range needs {
		if _, to := r.moves[n].ends(back); to == rank {
			of = append(of, &r.moves[n])
		}
	}
	if len(of) == 0 {
		return
	}
	slices.SortStableFunc(of, func(a, b *move) int { return cmp.Compare(a.leaves, b.leaves) })
	at, posted := &r.at[rank], units.Seconds(0)
	for _, m := range of {
		at.takes, posted = max(at.takes, m.leaves)+m.takes, max(posted, m.posted)
	}
	key := r.key(i, rank, 0, back)
	if back {
		key.Layer += r.runs[i].Layers - 1
	}
	key.Op = costmodel.StageWait
	r.idle(key, at.takes, at.takes-max(at.done, posted))
}

// idle is a rank's waiting until a time, if it has to, so much of it for bytes.
func (r *replaying) idle(key costmodel.ReplayKey, until, bytes units.Seconds) {
	at := &r.at[key.Rank]
	if until <= at.done {
		return
	}
	r.out.Ranks[key.Rank].Exposed += max(0, bytes)
	r.add(key, until-at.done)
}

// add appends a rank's stretch.
func (r *replaying) add(key costmodel.ReplayKey, took units.Seconds) {
	at := &r.at[key.Rank]
	r.out.Tasks = append(r.out.Tasks, costmodel.ReplayTask{ReplayKey: key, Start: at.done, Time: took})
	at.done += took
}

// layer runs one pass of a layer.
func (r *replaying) layer(key costmodel.ReplayKey, by *costmodel.LayerPass) {
	parts := []struct {
		op  costmodel.ReplayOp
		law units.Seconds
	}{{costmodel.LinearIn, by.LinearIn}, {costmodel.AttentionOp, by.Attention}, {costmodel.LinearOut, by.LinearOut}}
	if key.Dir == costmodel.BackwardPass {
		slices.Reverse(parts)
	}
	for _, p := range parts {
		key.Op = p.op
		t := p.law
		if r.took != nil {
			if supposed, ok := r.took(key); ok {
				t = supposed
			}
		}
		r.add(key, t)
		r.out.Ranks[key.Rank].Compute += t
	}
}

// post sends what came of a rank's pass, first to the run that comes first.
func (r *replaying) post(rank int, back bool, gives []int) {
	at := &r.at[rank]
	for k := range gives {
		n := gives[k]
		if back {
			n = gives[len(gives)-1-k]
		}
		m := &r.moves[n]
		if from, _ := m.ends(back); from != rank {
			continue
		}
		m.posted, m.leaves = at.done, max(at.done, at.sends)
		at.sends = m.leaves + m.takes
	}
}

// exchange adds up the gradients of a run's layers among its ranks.
func (r *replaying) exchange(i int) {
	x := &r.runs[i]
	if len(x.Ranks) < 2 {
		return
	}
	key, took := fmt.Sprint(x.Ranks), r.c.Exchange(x.Module, x.Ranks)
	g := r.groups[key]
	if g == nil {
		g = &group{own: make([]units.Seconds, len(x.Ranks))}
		r.groups[key] = g
	}
	for _, done := range slices.Backward(x.done) {
		g.over = max(g.over, slices.Max(done)) + took
		for k := range g.own {
			g.own[k] = max(g.own[k], done[k]) + took
		}
	}
	x.group = group{g.over, slices.Clone(g.own)}
}

// gather lets the ranks of a run wait for its gradients.
func (r *replaying) gather(i int) {
	x := &r.runs[i]
	for k, own := range x.group.own {
		key := r.key(i, x.Ranks[k], 0, true)
		key.Op = costmodel.GradWait
		r.idle(key, x.group.over, own-r.at[key.Rank].done)
	}
}

// finish makes the sums of the ranks, and the interval of the whole.
func (r *replaying) finish() {
	var busiest costmodel.Estimate
	var worst costmodel.Source
	end := units.Seconds(0)
	for rank, of := range r.laws {
		sum := &r.out.Ranks[rank]
		sum.End = r.at[rank].done
		sum.Skew = max(0, sum.End-sum.Compute-sum.Exposed) // rounding may leave a hair less than nothing
		end, worst = max(end, sum.End), worst.Worse(of.Source)
		if of.Mid > busiest.Mid {
			busiest = of
		}
	}
	if busiest.Mid > 0 { // nothing may be supposed to take any time
		r.out.Step = busiest.Times(float64(end / busiest.Mid))
	}
	r.out.Step.Mid, r.out.Step.Source = end, worst
	r.out.Meeting = r.plan.Time
}

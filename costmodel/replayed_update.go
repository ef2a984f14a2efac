package costmodel

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// updating is what a replayed step does about parameters: it brings gradients and parameters
// to where they are needed, by the job's ZeRO stage, and updates them.
//
// Its collectives take place one after the other, in the order in which ranks ask for them,
// each from when the last one has asked. They use the ports that the messages of the layers
// leave idle: beside a pass whose busiest port is at work for a share f of its time they come
// along at 1-f of their speed, so that a layer and its collective take what Simulate takes.
type updating struct {
	layers                  int
	gathers, reduces, atEnd bool // parameters before every pass, gradients behind it, new parameters at the end
	everyMicro              bool // gradients leave in every micro-batch, and not in the last alone
	leaves                  bool // they do in the one at hand
	layerGather, restGather units.Seconds
	layerReduce, restReduce units.Seconds
	queue                   []*collecting
	clock                   units.Seconds // until when the queue is simulated
	waited                  *collecting   // the layer's parameters that a rank asks for next
}

// collecting is a collective on its way.
type collecting struct {
	asked units.Seconds // by the last rank
	left  units.Seconds // with the ports for itself
	end   units.Seconds // once nothing is left
}

// updates prices what a step of the job does about parameters.
func (r *replaying) updates(layers int) (*updating, error) {
	if layers != r.job.Model.Layers {
		return nil, fmt.Errorf("layers: %d: want all %d of the model's in a whole step", layers, r.job.Model.Layers)
	}
	u := &updating{layers: layers, leaves: true}
	if len(r.seats) < 2 {
		return u, nil
	}
	node, members := r.oneNode(), r.membersOf(0, len(r.seats))
	for _, x := range r.exchanges() {
		layer, rest := r.collective(x, node, members, nil)
		switch {
		case x.Kind != op.KindAllGather:
			u.reduces, u.layerReduce, u.restReduce, u.everyMicro = true, layer, rest, x.When.EachMicroBatch()
		case x.When == AtTheEnd:
			u.atEnd, u.layerGather, u.restGather = true, layer, rest
		default:
			u.gathers, u.layerGather, u.restGather = true, layer, rest
		}
	}
	return u, r.err
}

// latest is when the last seat is done with all before.
func (r *replaying) latest() units.Seconds { return slices.Max(r.at) }

// ask puts a collective into the queue, for which all ranks have asked by now.
func (r *replaying) ask(takes units.Seconds) *collecting {
	c := &collecting{asked: r.latest(), left: takes}
	r.update.queue = append(r.update.queue, c)
	return c
}

// advance goes on with the queue until a time; a share of the ports' time is taken.
func (u *updating) advance(until units.Seconds, taken float64) {
	for len(u.queue) > 0 {
		c := u.queue[0]
		begin, speed := max(u.clock, c.asked), units.Seconds(1-taken)
		if begin >= until {
			break
		}
		if can := (until - begin) * speed; can < c.left {
			c.left -= can
			break
		}
		if c.left > 0 {
			begin += c.left / speed
		}
		c.end, u.clock, u.queue = begin, begin, u.queue[1:]
	}
	u.clock = max(u.clock, until)
}

// done is when a collective is, if nothing else uses the ports from now on.
func (u *updating) done(c *collecting) units.Seconds {
	for slices.Contains(u.queue, c) {
		first := u.queue[0]
		first.end = max(u.clock, first.asked) + first.left
		u.clock, u.queue = first.end, u.queue[1:]
	}
	return c.end
}

// beside goes on with the queue beside a pass, which began when the first seat did and keeps
// the busiest port at work for so long.
func (r *replaying) beside(begin, busiest units.Seconds) {
	u, end := r.update, r.latest()
	u.advance(begin, 0)
	taken := 1.0
	if long := end - u.clock; long > 0 {
		taken = min(1, float64(busiest/long))
	}
	u.advance(end, taken)
}

// await has all seats wait for a collective. Of the time at most what passes since the last
// rank asked is waiting for bytes, the rest is for that rank.
func (r *replaying) await(c *collecting, g stageOf, o ReplayOp) {
	end := r.update.done(c)
	for i := range r.seats {
		wait := max(0, end-r.at[i])
		r.out.Tasks = append(r.out.Tasks, ReplayTask{g.key(r.seats[i].rank, 0, o), r.at[i], wait})
		r.spent[i].busy[gradientSync] += min(wait, max(0, end-c.asked))
		r.at[i] += wait
	}
}

// computes has seats with tokens do something by themselves.
func (r *replaying) computes(g stageOf, o ReplayOp, p part, law func(*seat) units.Seconds) {
	for i := range r.seats {
		a := &r.seats[i]
		if a.tokens == 0 && o == EmbedOp {
			continue
		}
		key := g.key(a.rank, 0, o)
		t := r.supposed(key, law(a))
		r.out.Tasks = append(r.out.Tasks, ReplayTask{key, r.at[i], t})
		r.at[i] += t
		r.spent[i].busy[p] += t
	}
}

// embeds is looking tokens up, or the gradient of it, for which there is no law.
func (r *replaying) embeds(g stageOf) {
	r.computes(g, EmbedOp, linearForward, func(*seat) units.Seconds { return 0 })
}

// gathersRest gathers what is in no layer, and asks for the first one: g is the first layer's
// pass.
func (r *replaying) gathersRest(g stageOf) {
	u := r.update
	if !u.gathers {
		return
	}
	rest := r.ask(u.restGather)
	if r.job.OverlapZero {
		u.waited = r.ask(u.layerGather)
	}
	r.await(rest, g, ParamWait)
}

// gathered has the seats wait for the parameters that a pass needs, and ask for the next
// layer's. Forward and backward pass are gathered for once each; recomputation is part of
// the latter.
func (r *replaying) gathered(g stageOf) {
	u := r.update
	if !u.gathers || g.back && r.job.Recompute == RecomputeFull {
		return
	}
	back := g.back || g.again
	if u.waited == nil {
		u.waited = r.ask(u.layerGather)
	}
	r.await(u.waited, stageOf{micro: g.micro, layer: g.layer, back: back}, ParamWait)
	u.waited = nil
	if more := g.layer > 0 && back || g.layer < u.layers-1 && !back; more && r.job.OverlapZero {
		u.waited = r.ask(u.layerGather)
	}
}

// reduced has a layer's gradients leave behind its backward pass.
func (r *replaying) reduced(g stageOf) {
	u := r.update
	if !u.reduces || !u.leaves || !g.back {
		return
	}
	if c := r.ask(u.layerReduce); !r.job.OverlapZero {
		r.await(c, g, GradWait)
	}
}

// reducesRest has the gradients of what is in no layer leave, and waits for all: g is the first
// layer's pass.
func (r *replaying) reducesRest(g stageOf) {
	if u := r.update; u.reduces && u.leaves {
		r.await(r.ask(u.restReduce), g, GradWait)
	}
}

// updated is the optimizer, and what is brought to where it is needed behind it.
func (r *replaying) updated(g stageOf) {
	u := r.update
	r.computes(g, OptimizerOp, optimizerPart, func(a *seat) units.Seconds { return r.optimizerTime(a.device, len(r.seats)) })
	if u.atEnd {
		r.ask(u.restGather)
		r.await(r.ask(units.Seconds(u.layers)*u.layerGather), g, ParamWait)
	}
}

// meetUpdated adds to Meeting what Simulate adds to layers and loss (see sim.addStages), but for
// gathering a second time what is in no layer.
func (r *replaying) meetUpdated() {
	u, x, behind := r.update, r.exchange(), units.Seconds(r.update.layers-1)
	over := func(dir int, collective units.Seconds) units.Seconds {
		if collective == 0 {
			return 0
		}
		return behind * min(collective, max(0, r.busiest[dir]+collective-r.lengths[dir]))
	}
	// No stage reduces both in every micro-batch and in the last.
	r.out.Meeting += over(0, x.forward) + over(1, x.backward+x.last) + x.open
	if u.gathers {
		r.out.Meeting -= u.restGather
	}
	var longest units.Seconds
	for i := range r.seats {
		longest = max(longest, r.optimizerTime(r.seats[i].device, len(r.seats)))
	}
	r.out.Meeting += longest
}

package costmodel

import (
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// inTwos simulates one layer in one direction for two micro-batches A and B under the
// sim's layout. The compute stream of every rank takes, in this order,
//
//	A's linear work, B's linear work, A's ring, B's ring, A's linear work behind the ring, B's
//
// so that B's all-to-all in and A's all-to-all out overlap with the other's attention,
// and A's in and B's out with linear work. Every port takes A's all-to-all in, B's, the
// messages of A's ring, A's all-to-all out, the messages of B's ring, and B's all-to-all
// out. In a backward pass with the own block last, A's first keys and values leave before
// everything else, and B's when A's ring has no more to send. Each ring has buffers of
// its own, so that B's first blocks may arrive while A's last ones are computed.
//
// Where the layout weaves a pass (see weave), the steps of both rings take turns.
//
// The order of tasks does not depend on their times, so that here, too, a faster device
// or link never makes the layer longer (see layerRun).
func (r *layerRun) inTwos(s *sim, back, events bool) {
	r.reset(s, back, events)
	nothing := func(int8) {}
	r.passTwos(r.priceTwos(), nothing, nothing)
}

// passTwos is that with prices, for streams and ports that may be free at times of their
// own; somebody is told before a ring is computed, or goes on, and when it is over.
func (r *layerRun) passTwos(w twos, before, over func(batch int8)) {
	var in, out [2][]joined
	r.batch = batchA
	r.begin()
	in[0], in[1] = make([]joined, r.n), make([]joined, r.n)
	for g := range r.sim.groups {
		for b := range in {
			r.batch = int8(b) + batchA
			r.linear(g, 0, w.before[b])
			in[b][g] = r.toAll(g, 0, w.in[g])
		}
	}
	if r.weaves() {
		out = r.weave(w, in, before, over)
	} else {
		out = r.oneAfterTheOther(w, in, before, over)
	}
	for g := range r.sim.groups {
		for b := range out {
			r.batch = int8(b) + batchA
			r.awaitAll(g, out[b][g])
			r.linear(g, r.n, w.after[b])
		}
	}
	for i := range r.seats {
		r.length = max(r.length, r.seats[i].free)
	}
}

// oneAfterTheOther runs the rings, and says when the all-to-alls behind them are over.
func (r *layerRun) oneAfterTheOther(w twos, in [2][]joined, before, over func(batch int8)) (out [2][]joined) {
	r.batch = batchA
	before(r.batch)
	r.ringOf(in[0])
	over(r.batch)
	r.clearRing()
	r.batch = batchB
	r.begin()
	r.batch = batchA
	out[0] = r.toAlls(w.out)
	r.batch = batchB
	before(r.batch)
	r.ringOf(in[1])
	over(r.batch)
	out[1] = r.toAlls(w.out)
	return out
}

// The micro-batches of two, as events name them; 0 is one that goes alone.
const (
	batchA = int8(1)
	batchB = int8(2)
)

// twos is what two micro-batches take: linear work by micro-batch and seat, of which B's
// before the ring and A's behind it are slowed by all-to-alls, and these by group.
type twos struct {
	before, after [2][]units.Seconds
	in, out       []units.Seconds
}

// priceTwos asks for these, and lets attention be slowed by the all-to-alls as well: of
// the four of a pair two move beside it, in as many steps as both rings have.
func (r *layerRun) priceTwos() twos {
	s := r.sim
	before, after := preForward, postForward
	if r.back {
		before, after = preBackward, postBackward
	}
	var w twos
	r.apart = make([]beside, len(r.seats))
	for g := range s.groups {
		b := &s.groups[g]
		in, out := r.toAllTimes(b)
		w.in, w.out = append(w.in, in), append(w.out, out)
		for i := b.from; i < b.to; i++ {
			if r.alike(i) {
				w.before[0], w.after[1] = append(w.before[0], w.before[0][i-1]), append(w.after[1], w.after[1][i-1])
			} else {
				w.before[0], w.after[1] = append(w.before[0], s.linearTime(&s.seats[i], before)), append(w.after[1], s.linearTime(&s.seats[i], after))
			}
			f := r.beside[i].factor
			slowed := func(t, moving units.Seconds) units.Seconds { return beside{f, moving * (1 - 1/f)}.stretch(t) }
			w.before[1], w.after[0] = append(w.before[1], slowed(w.before[0][i], in)), append(w.after[0], slowed(w.after[1][i], out))
			r.apart[i] = beside{f, (in + out) / units.Seconds(2*r.n) * (1 - 1/f)}
			r.beside[i].most += r.apart[i].most
		}
	}
	return w
}

// toAllTimes is what a group's all-to-alls take before and behind the ring, beside another
// micro-batch.
func (r *layerRun) toAllTimes(b *seatGroup) (in, out units.Seconds) {
	if b.to-b.from < 2 {
		return 0, 0
	}
	x, y := tokensIn, outputOut
	if r.back {
		x, y = outputIn, tokensOut
	}
	return b.slow[r.dir] * r.sim.toAllTime(x, b, nil), b.slow[r.dir] * r.sim.toAllTime(y, b, nil)
}

// slowTwos finds the factors by which the groups' all-to-alls are slower beside computing,
// that of the slowest member.
func (s *sim) slowTwos() {
	for g := range s.groups {
		b := &s.groups[g]
		b.slow = [2]units.Seconds{1, 1}
		for i := b.from; i < b.to; i++ {
			if i > b.from && s.seats[i].device == s.seats[i-1].device {
				continue
			}
			for dir := range b.slow {
				b.slow[dir] = max(b.slow[dir], units.Seconds(s.q.slowed(s.seats[i].device, dir == 1, op.SlowedComm)))
			}
		}
	}
}

// linear is the group's linear work of a micro-batch before the ring, at step 0, or
// behind it.
func (r *layerRun) linear(g, step int, took []units.Seconds) {
	b := &r.sim.groups[g]
	for i := b.from; i < b.to; i++ {
		a, c, w := &r.seats[i], &r.outside[i], took[i]
		r.note(event{kind: linearEvent, seat: i, to: i, step: step, start: a.free, end: a.free + w})
		if a.free += w; step == 0 {
			c.pre += w
		} else {
			c.post += w
		}
	}
}

// joined is an all-to-all: when the last member was ready for it, and when it began, for
// which the ports had to be free, and ended. That of a single rank takes no time.
type joined struct{ ready, start, end units.Seconds }

// toAll is an all-to-all of a group whose members are ready when their streams are free.
func (r *layerRun) toAll(g, step int, took units.Seconds) joined {
	b := &r.sim.groups[g]
	var x joined
	for i := b.from; i < b.to; i++ {
		x.ready = max(x.ready, r.seats[i].free)
	}
	if x.start, x.end = x.ready, x.ready; b.to-b.from < 2 {
		return x
	}
	for i := b.from; i < b.to; i++ {
		x.start = max(x.start, r.seats[i].egress, r.seats[i].ingress)
	}
	x.end = x.start + took
	for i := b.from; i < b.to; i++ {
		a := &r.seats[i]
		a.egress, a.ingress = x.end, x.end
		a.port += took
		r.note(event{kind: allToAllEvent, seat: i, to: i, step: step, start: x.start, end: x.end})
	}
	return x
}

// toAlls are those behind the ring, of all groups.
func (r *layerRun) toAlls(took []units.Seconds) []joined {
	all := make([]joined, r.n)
	for g := range all {
		all[g] = r.toAll(g, r.n, took[g])
	}
	return all
}

// awaitAll lets a group's streams stand still until an all-to-all is over. Of that its
// own time is communication, the ports' time before it exposed as well, and the rest is
// waiting for members.
func (r *layerRun) awaitAll(g int, x joined) {
	for i := r.sim.groups[g].from; i < r.sim.groups[g].to; i++ {
		a := &r.seats[i]
		wait := x.end - a.free
		if wait <= 0 {
			continue
		}
		own := min(wait, x.end-x.start)
		r.outside[i].allToAll += own
		a.exposed += min(wait-own, x.start-x.ready)
		a.free = x.end
	}
}

// ringOf runs the ring of a micro-batch whose all-to-alls are in.
func (r *layerRun) ringOf(in []joined) {
	r.awaitEach(in)
	r.arrive(in)
	r.ring()
}

// awaitEach is awaitAll of all groups.
func (r *layerRun) awaitEach(x []joined) {
	for g := range x {
		r.awaitAll(g, x[g])
	}
}

// arrive says when the own blocks are there whose all-to-alls are these.
func (r *layerRun) arrive(in []joined) {
	for g := range in {
		b := &r.sim.groups[g]
		for i := b.from; i < b.to && !r.ownLast; i++ {
			r.arrived[0][i] = arrival{in[g].end, in[g].end}
		}
	}
}

package costmodel

import "github.com/evenkeel/evenkeel/internal/units"

// weaves says whether the steps of two micro-batches' rings take turns in the pass.
func (r *layerRun) weaves() bool { return r.n > 1 && r.sim.layout.weaves(r.back) }

// weave runs the rings of two micro-batches whose steps take turns: A's step t, B's step t,
// A's step t+1. What A's next block has to hide behind is then a step of either, and ports
// that wait for A's computing move B's blocks. But all-to-alls have less: A's out is behind
// B's last step, and B's in behind A's first.
//
// Every port takes A's all-to-all in, B's, then hop by hop the messages of A's ring and of
// B's, then A's all-to-all out and B's. In a backward pass with the own block last A's first
// keys and values leave before everything else, and B's behind the all-to-alls in; the own
// blocks are computed A's first, and A's gradients are waited for when B's is, too. It says
// when the all-to-alls out are over.
func (r *layerRun) weave(w twos, in [2][]joined, before, over func(batch int8)) (out [2][]joined) {
	out = [2][]joined{make([]joined, r.n), make([]joined, r.n)}
	r.batch = batchA
	r.turn(batchB)
	r.clearRing()
	r.begin()
	each := func(do func(b int)) {
		for b := range out {
			r.turn(int8(b) + batchA)
			before(r.batch)
			do(b)
		}
	}
	each(func(b int) { r.arrive(in[b]) })
	x := r.inTurns(in)
	end := func(b int) {
		x.end(b)
		over(r.batch)
		out[b] = r.toAlls(w.out)
	}
	if r.back && !r.ownLast {
		each(x.first)
	}
	for t := range r.n {
		if r.sim.gaveUp(2 * len(r.seats)) {
			break
		}
		each(func(b int) {
			if x.step(b, t); !r.back && t == r.n-1 {
				end(b)
			}
		})
	}
	if r.back && r.ownLast {
		each(x.own)
	}
	if r.back {
		each(end)
	}
	r.turn(batchA)
	return out
}

// turn goes on with the ring of a micro-batch.
func (r *layerRun) turn(batch int8) {
	if r.batch != batch {
		r.ringState, r.waiting = r.waiting, r.ringState
		r.batch = batch
	}
}

// turns are two rings that take turns; b is 0 or 1, the one whose turn it is.
type turns interface {
	first(b int) // hop 0 of keys and values
	step(b, t int)
	own(b int) // the own block, where it is the last
	end(b int) // leaves the seats as after the ring
}

// inTurns are those whose all-to-alls are in.
func (r *layerRun) inTurns(in [2][]joined) turns {
	if !r.quick() {
		return &bookedTurns{r, in}
	}
	x := &quickTurns{run: r, in: in, last: &r.rings[0]}
	for b := range in {
		r.turn(int8(b) + batchA)
		r.rings[b].prepare(r)
		r.rings[b].start()
	}
	if x.free = r.rings[0].before(0); r.ownLast {
		x.free = r.rings[0].before(1)
	}
	return x
}

// awaitsIn says whether the stream waits for the all-to-all in at a step: it does at the first.
func (r *layerRun) awaitsIn(t int) bool { return t == 0 && !r.ownLast || t == 1 && r.ownLast }

// bookedTurns books what the ranks do.
type bookedTurns struct {
	*layerRun
	in [2][]joined
}

func (x *bookedTurns) first(int) { x.passKV(0) }

func (x *bookedTurns) step(b, t int) {
	if x.awaitsIn(t) {
		x.awaitEach(x.in[b])
	}
	if x.back {
		x.stepBack(t)
		return
	}
	if x.compute(t); t < x.n-1 {
		x.passKV(t)
	}
}

func (x *bookedTurns) own(int) { x.compute(0) }

func (x *bookedTurns) end(int) {
	if x.back {
		x.awaitHome()
	}
}

// quickTurns are rings that say only when their seats are done (see rings).
type quickTurns struct {
	run  *layerRun
	in   [2][]joined
	last *rings          // whose turn it was: it knows when the ports are free
	free []units.Seconds // when the streams are
	both []units.Seconds // the same, and the all-to-alls in are over
}

// of is the ring whose turn it is.
func (x *quickTurns) of(b int) *rings {
	y := &x.run.rings[b]
	y.egress, y.ingress, x.last = x.last.egress, x.last.ingress, y
	return y
}

func (x *quickTurns) first(b int) { x.of(b).passKV(0) }

func (x *quickTurns) step(b, t int) {
	r, y, free := x.run, x.of(b), x.free
	if r.awaitsIn(t) {
		free = x.afterIn(b)
	}
	switch {
	case r.back:
		y.stepBack(t, free)
	case t < r.n-1:
		y.compute(t, free)
		y.passKV(t)
	default:
		y.compute(t, free)
	}
	x.free = rowOf(y.computed, t) // at step 0 without computing, what it was before
}

// afterIn is when the streams are free and the all-to-alls in are over.
func (x *quickTurns) afterIn(b int) []units.Seconds {
	x.both = resized(x.both, len(x.free))
	for g := range x.in[b] {
		s := &x.run.sim.groups[g]
		for i := s.from; i < s.to; i++ {
			x.both[i] = max(x.free[i], x.in[b][g].end)
		}
	}
	return x.both
}

func (x *quickTurns) own(b int) {
	y := x.of(b)
	y.compute(0, x.free)
	x.free = rowOf(y.computed, 0)
}

// end leaves the ports to the seats when the first ring ends: no other message follows.
func (x *quickTurns) end(b int) {
	y := &x.run.rings[b]
	home := y.never
	if x.run.back {
		home = rowOf(y.home, x.run.n)
	}
	for i := range x.run.seats {
		a := &x.run.seats[i]
		if b == 0 {
			a.free, a.egress, a.ingress = max(x.free[i], home[i]), x.last.egress[i], x.last.ingress[i]
		} else {
			a.free = max(a.free, x.free[i], home[i])
		}
	}
}

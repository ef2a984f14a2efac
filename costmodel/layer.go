package costmodel

import "github.com/evenkeel/evenkeel/internal/units"

// layerRun simulates one layer in one direction (forward or backward):
//
//	linear work -> all-to-all in -> ring of KV blocks -> all-to-all out -> linear work
//
// All-to-alls are barriers of their group. At step t of the ring the members of group g
// compute with the block (keys and values) of group g-t. Step 0 is the group's own block.
// It comes first, or in the backward pass last if the layout says so (OwnLast). In that
// case the block of step 1 is sent when the pass begins, since its owner has kept it from
// the forward pass, and the all-to-all in waits for the ports that this takes.
//
// The rules of the ring are:
//
//   - The compute stream takes the steps in order, each as soon as the parts of the block
//     for the rank's heads have arrived. Messages never wait for the stream, only for
//     buffers.
//   - A block is passed on as soon as it has fully arrived, the ports are free, and the
//     next rank has a free buffer. A buffer becomes free when its rank has both computed
//     with the block and sent it on.
//   - A block travels only as far as the last group that needs it: the last one in ring
//     order with a query behind the block's first key. Under a zigzag that is the last
//     group. In a contiguous layout, where no group needs later keys, half of the hops
//     are left out.
//   - In the backward pass the float32 gradient of a block follows it, from the first
//     group that needs the block on. A rank adds its share when it has computed the block
//     and the gradient has arrived, then sends the gradient on. The last group that needs
//     the block sends it straight home to the owner, which has a buffer of its own for it
//     and adds its own share there. (ring-flash-attention also sends the owner's share
//     round, one hop more.) The stream may be up to RingBuffers blocks ahead of the
//     gradients.
//   - The egress and the ingress port of a rank carry one message at a time, in program
//     order: the keys and values of hop t+1 before the gradient of hop t, as
//     communication libraries execute what is queued on a stream.
//
// So every time is a maximum of sums of task times in an order that does not depend on
// those times, and a faster device or link never makes a layer longer. Hops and steps are
// visited in the order of t, which is possible because a task of index t waits for tasks
// of index at most t only. Two buffers suffice to exclude a deadlock.
type layerRun struct {
	sim  *sim
	back bool
	dir  int // 0 forward, 1 backward
	n    int // groups
	// ownLast says that steps are taken from 1 on, and step 0 (the own block) last.
	ownLast bool
	length  units.Seconds
	seats   []seatRun
	outside []outsideRing // by seat
	forms   []form        // by group
	strip   strip         // attention of the steps under way
	// Known times of messages, of keys and values and of gradients, by price row and by the
	// group whose block it is; NaN where not known yet.
	kvTimes, gradTimes [][]units.Seconds
	rings              [2]rings   // a quicker simulation of rings, where only their end is asked for; the second of two in turn
	beside             []beside   // by seat: how messages slow its computing down
	apart              []beside   // the same in the step beside which no messages of the ring are taken to move; nil for nothing
	batch              int8       // at hand, of two: 1 or 2
	folded             *folded    // set while one seat of the ring stands for several
	given              *passTimes // computing times given by the caller; nil: by the laws
	ringState                     // of the ring under way
	waiting            ringState  // of that of the other of two micro-batches whose rings take turns
	events             *[]event   // nil unless a timeline is wanted
}

// ringState is how far a ring is. Of the latest steps, by step modulo the number of rows and
// by seat: when the stream was done with the block, when the block was sent on, when the
// rank's share was added to the block's gradient, and when the gradient was sent on.
type ringState struct {
	computed, sent, gradSent [][]units.Seconds
	added                    [][]arrival
	arrived, gradArrived     [][]arrival // of the last three steps
	home                     []arrival   // of the gradients of the own block, back at their owner
}

// seatRun is the state of a seat (a rank's place in the layout) in the ring, and how it
// spent its time there. A long ring visits all seats at each step, so it is small.
type seatRun struct {
	free               units.Seconds // when the compute stream is free
	egress, ingress    units.Seconds // when the ports are free
	attention, exposed units.Seconds
	port               units.Seconds // total time that the egress port was busy
}

// outsideRing is the time of a seat before and after the ring: linear work before and behind
// it, and all-to-alls.
type outsideRing struct{ pre, post, allToAll units.Seconds }

// passTimes are the computing times of the seats of a layer in one direction. A run is
// either given them or computes them from the laws.
type passTimes struct {
	before, after []units.Seconds   // linear work before and after the ring, by seat
	attention     [][]units.Seconds // by step of the ring (or by chunk of heads), then by seat
}

// arrival says when a block was complete (at), and from when on (since) it was
// continuously on wires or queued for them, over all its hops, without waiting for a
// rank.
type arrival struct{ at, since units.Seconds }

// notBefore delays an arrival until t; the block then has waited for a rank.
func (x *arrival) notBefore(t units.Seconds) {
	if t > x.at {
		x.at, x.since = t, t
	}
}

// run simulates the sim's layout.
func (r *layerRun) run(s *sim, back, events bool) {
	r.reset(s, back, events)
	r.play()
}

// play simulates a layer whose seats have begun.
func (r *layerRun) play() {
	s := r.sim
	if s.layout.chunks() > 1 {
		r.inChunks()
		return
	}
	r.begin()
	for g := range s.groups {
		r.enter(g)
	}
	x := r.folding()
	if x != nil {
		r.fold(x)
	}
	r.ring()
	if x != nil {
		r.unfold()
	}
	for g := range s.groups {
		r.leave(g)
	}
}

// ring runs all steps, once all-to-alls are in.
func (r *layerRun) ring() {
	switch {
	case r.quick():
		r.rings[0].simulate(r)
	case r.back:
		r.backwardRing()
	default:
		r.forwardRing()
	}
}

// quick says whether the ring is simulated quickly.
func (r *layerRun) quick() bool {
	return r.sim.lengthOnly && r.events == nil && r.n > 1 && r.sim.goesRound()
}

func (r *layerRun) reset(s *sim, back, events bool) {
	r.sim, r.back, r.n, r.length = s, back, len(s.groups), 0
	if r.dir = 0; back {
		r.dir = 1
	}
	r.ownLast = back && r.n > 1 && s.layout.OwnLast
	r.seats = append(r.seats[:0], make([]seatRun, len(s.seats))...)
	r.outside = append(r.outside[:0], make([]outsideRing, len(s.seats))...)
	r.forms = r.forms[:0]
	for g := range s.groups {
		r.forms = append(r.forms, s.groups[g].form)
		r.forms[g].out, r.forms[g].home, r.forms[g].near, r.forms[g].reach = s.groups[g].out, s.groups[g].home, s.groups[g].near, s.groups[g].reach
	}
	r.strip.reset(s, r.forms)
	r.beside, r.apart, r.batch, r.given = s.besides(back), nil, 0, nil
	r.listMessages()
	r.clearRing()
	if r.events = nil; events {
		r.events = new([]event)
	}
}

// clearRing forgets the last ring.
func (r *layerRun) clearRing() {
	s := r.sim
	last := min(s.job.RingBuffers, r.n) + 1 // more buffers than groups are never full
	r.computed, r.sent = tableOf(r.computed, last, len(s.seats)), tableOf(r.sent, last, len(s.seats))
	r.arrived = tableOf(r.arrived, 3, len(s.seats))
	if r.back {
		r.added, r.gradSent = tableOf(r.added, last, len(s.seats)), tableOf(r.gradSent, last, len(s.seats))
		r.gradArrived = tableOf(r.gradArrived, 3, len(s.seats))
		r.home = append(r.home[:0], make([]arrival, len(s.seats))...)
	}
}

// tableOf returns a table of zeros, in the place of t if it has the size.
func tableOf[T any](t [][]T, rows, columns int) [][]T {
	if len(t) != rows || len(t[0]) != columns {
		t = make([][]T, rows)
		for i := range t {
			t[i] = make([]T, columns)
		}
		return t
	}
	for i := range t {
		clear(t[i])
	}
	return t
}

// begin sends what leaves before anything is computed; seats may have begun at times of
// their own.
func (r *layerRun) begin() {
	if r.ownLast {
		r.passKV(0)
	}
}

// enter is a group's linear work before the ring and its all-to-all in.
func (r *layerRun) enter(g int) {
	s, b := r.sim, &r.sim.groups[g]
	what, x := preForward, tokensIn
	if r.back {
		what, x = preBackward, outputIn
	}
	var start units.Seconds
	for i := b.from; i < b.to; i++ {
		a, c := &r.seats[i], &r.outside[i]
		if r.alike(i) {
			c.pre = r.outside[i-1].pre
		} else {
			c.pre = r.linearTime(i, what)
		}
		r.note(event{kind: linearEvent, seat: i, to: i, start: a.free, end: a.free + c.pre})
		a.free += c.pre
		start = max(start, a.free)
	}
	took, several, done := units.Seconds(0), b.to-b.from > 1, start
	if several {
		took = s.toAllTime(x, b, nil)
	}
	if several && r.ownLast {
		for i := b.from; i < b.to; i++ {
			start = max(start, r.seats[i].egress, r.seats[i].ingress)
		}
	}
	for i := b.from; i < b.to; i++ {
		a, c := &r.seats[i], &r.outside[i]
		a.free = start + took
		a.exposed += start - done
		c.allToAll += took
		a.port += took
		if several {
			a.egress, a.ingress = a.free, a.free
			r.note(event{kind: allToAllEvent, seat: i, to: i, start: start, end: a.free})
		}
		if !r.ownLast {
			r.arrived[0][i] = arrival{a.free, a.free}
		}
	}
}

// leave is a group's all-to-all out and its linear work after the ring. What its
// members still send on to the next group goes first; waiting for that is exposed.
func (r *layerRun) leave(g int) {
	s, b := r.sim, &r.sim.groups[g]
	what, x := postForward, outputOut
	if r.back {
		what, x = postBackward, tokensOut
	}
	var done, sent, took units.Seconds
	for i := b.from; i < b.to; i++ {
		done, sent = max(done, r.seats[i].free), max(sent, r.seats[i].egress)
	}
	if b.to-b.from > 1 {
		took = s.toAllTime(x, b, nil)
	}
	start := done
	if took > 0 {
		start = max(done, sent)
	}
	for i := b.from; i < b.to; i++ {
		a, c := &r.seats[i], &r.outside[i]
		a.exposed += start - done
		if b.to-b.from > 1 {
			r.note(event{kind: allToAllEvent, seat: i, to: i, step: r.n, start: start, end: start + took})
		}
		c.allToAll += took
		a.port += took
		if r.alike(i) {
			c.post = r.outside[i-1].post
		} else {
			c.post = r.linearTime(i, what)
		}
		a.free = start + took + c.post
		r.note(event{kind: linearEvent, seat: i, to: i, step: r.n, start: start + took, end: a.free})
		r.length = max(r.length, a.free)
	}
}

// alike says whether a seat's linear work is known to take as long as that of the seat
// before it.
func (r *layerRun) alike(i int) bool {
	return i > 0 && r.given == nil && r.sim.seats[i].worksLike(&r.sim.seats[i-1])
}

// linearTime is what a seat takes over a part of its linear work.
func (r *layerRun) linearTime(i int, what linearPart) units.Seconds {
	switch {
	case r.given == nil:
		return r.sim.linearTime(&r.sim.seats[i], what)
	case what == preForward || what == preBackward:
		return r.given.before[i]
	}
	return r.given.after[i]
}

// source is the group whose block is at group g in step t.
func (r *layerRun) source(g, t int) int {
	if g < t {
		g += r.n
	}
	return g - t
}

// forwardRing runs all steps.
func (r *layerRun) forwardRing() {
	for t := range r.n {
		if r.sim.gaveUp(len(r.seats)) {
			return
		}
		r.compute(t)
		if t < r.n-1 {
			r.passKV(t)
		}
	}
}

// backwardRing runs all steps, gradients one hop behind.
func (r *layerRun) backwardRing() {
	if r.n == 1 {
		r.compute(0)
		return
	}
	if !r.ownLast {
		r.passKV(0)
	}
	for t := range r.n {
		if r.sim.gaveUp(len(r.seats)) {
			return
		}
		r.stepBack(t)
	}
	if r.ownLast {
		r.compute(0)
	}
	r.awaitHome()
}

// stepBack is step t of a backward ring of several groups.
func (r *layerRun) stepBack(t int) {
	if t > 0 || !r.ownLast {
		r.compute(t)
		r.add(t)
	}
	if t+1 < r.n-1 {
		r.passKV(t + 1)
	}
	if t > 0 {
		r.passGrad(t)
	}
}

// awaitHome lets all streams stand still until the gradients of their own blocks are back.
func (r *layerRun) awaitHome() {
	for i := range r.seats {
		r.seats[i].await(r.home[i])
	}
}

// await lets the stream stand still until an arrival; what of that the block
// spent on its last wires or queued for their ports is exposed.
func (a *seatRun) await(x arrival) {
	if x.at > a.free {
		a.exposed += x.at - max(a.free, x.since)
		a.free = x.at
	}
}

// compute is step t of every stream.
func (r *layerRun) compute(t int) {
	s, last := r.sim, len(r.computed)
	arrived, done := r.arrived[t%3], r.computed[t%last]
	var added []arrival // to the block that the stream must not be more than the buffers ahead of
	if u := t - s.job.RingBuffers; r.back && u >= 0 && (u > 0 || !r.ownLast) {
		added = r.added[u%last]
	}
	for i, w := range r.step(t) {
		a := &r.seats[i]
		if t > 0 { // the own block is there
			a.await(arrived[i])
		}
		if added != nil {
			a.await(added[i])
		}
		if r.events != nil {
			r.note(event{kind: stepEvent, seat: i, to: i, step: t, of: r.source(s.seats[i].group, t), start: a.free, end: a.free + w})
		}
		a.attention += w
		a.free += w
		done[i] = a.free
	}
}

// add is when every rank has added its share to the gradient of step t's block;
// at steps 0 and 1 there is none to add to.
func (r *layerRun) add(t int) {
	added, done, arrived := r.added[t%len(r.computed)], r.computed[t%len(r.computed)], r.gradArrived[t%3]
	for i := range added {
		added[i] = arrived[i]
		added[i].notBefore(done[i])
	}
}

// busiest is how long the busiest egress port of a layer is in use.
func (r *layerRun) busiest() units.Seconds {
	var most units.Seconds
	for i := range r.seats {
		most = max(most, r.seats[i].port)
	}
	return most
}

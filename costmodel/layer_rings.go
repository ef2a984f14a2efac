package costmodel

import (
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// rings is the ring of a layer where every block goes all the way round with its
// gradients. It says when the seats are done, bit by bit as layerRun does, and not how
// they spend that time: what a search asks for thousands of times.
//
// Then each hop sends every message, in the same order. So the ports' times are all that is
// kept of messages: what is sent on when, by step, is when the sender's egress port was free
// again, what has arrived, when the receiver's ingress port was. With b buffers, hop t begins
// with
//
//	sent_t[i] = max(egress[i], ready_t[i])
//	ready_t+1[j] = max(ingress[j], computed_t+1-b[j], sent_t+1-b[j])
//
// and each message from i to j of a time w, one after the other, makes both of them
// max(sent_t[i], ready_t+1[j]) + w. The gradients' hops go by the same rule.
//
// Where groups are of one size and every member has one neighbour in the next, they are as
// many rings side by side as they have members. Once it has been waited for both ports of the
// first messages (see start), these are free at the same time after every hop, so that
// egress serves for both (passSpan).
type rings struct {
	run  *layerRun
	hops []ringHop // of all groups, in their order
	// By hop the place of its own block's price, which those of later steps precede. The list
	// is read at every hop, so it is short; 32 bits reach for 16 GiB of prices.
	link  []int32
	kv    []units.Seconds // prices by row and group, twice over
	grad  []units.Seconds
	row   map[int]int // of a message's prices, in kv and grad
	apart int         // how many seats after its sender the receiver of every message is; 0 if that differs
	sums  []units.Seconds
	never []units.Seconds
	// By step modulo their number and seat: of keys and values, then of gradients, which
	// are added to.
	ready, computed, sent [][]units.Seconds
	home, added, gradSent [][]units.Seconds
	begun                 [2][]units.Seconds // when the ports were free before
	egress, ingress       []units.Seconds    // when they are: the rows of the last hop
}

// ringHop is a message of every step.
type ringHop struct{ from, to int32 } // seats

// goesRound says whether every block of a layout goes all the way round with its
// gradients.
func (s *sim) goesRound() bool {
	for g := range s.groups {
		if b := &s.groups[g]; b.near != 1 || b.reach != len(s.groups)-1 {
			return false
		}
	}
	return true
}

// simulate runs all steps of a layer whose groups have been entered.
func (x *rings) simulate(r *layerRun) {
	x.prepare(r)
	if r.back {
		x.backward()
	} else {
		x.forward()
	}
}

// prepare asks for all prices.
func (x *rings) prepare(r *layerRun) {
	x.reset(r)
	x.price(&x.kv, false)
	x.book(x.kv, 1, r.ownLast)
	if r.back {
		x.price(&x.grad, true)
		x.book(x.grad, 0, false)
	}
}

func (x *rings) reset(r *layerRun) {
	x.run = r
	kept, width := min(r.sim.job.RingBuffers, r.n)+2, len(r.seats)
	for _, t := range []*[][]units.Seconds{&x.ready, &x.computed, &x.sent, &x.home, &x.added, &x.gradSent} {
		*t = tableOf(*t, kept, width)
	}
	x.never, x.begun = resized(x.never, width), [2][]units.Seconds{resized(x.begun[0], width), resized(x.begun[1], width)}
	x.egress, x.ingress = x.begun[0], x.begun[1]
	x.row, x.hops, x.link = map[int]int{}, x.hops[:0], x.link[:0]
	for g := range r.forms {
		for _, h := range r.forms[g].out {
			if _, ok := x.row[h.price[r.dir]]; !ok {
				x.row[h.price[r.dir]] = len(x.row)
			}
			x.hops = append(x.hops, ringHop{int32(h.from), int32(h.to)})
			x.link = append(x.link, int32(x.row[h.price[r.dir]]*2*r.n+r.n+g))
		}
	}
	x.apart = r.forms[0].to
	for i, h := range x.hops {
		if int(h.from) != i || int(h.to) != (i+x.apart)%width {
			x.apart = 0
			break
		}
	}
}

// price lists what messages take.
func (x *rings) price(list *[]units.Seconds, grad bool) {
	r := x.run
	known := r.kvTimes
	if grad {
		known = r.gradTimes
	}
	*list = resized(*list, len(x.row)*2*r.n)
	for price, row := range x.row {
		at := (*list)[row*2*r.n:][:2*r.n]
		for k := range r.n {
			t := known[price][k]
			if unknown(t) {
				t = r.sim.hopTime(grad, price, k)
			}
			at[k], at[k+r.n] = t, t
		}
	}
}

// book adds up how long the egress ports are in use: for all blocks but that of
// the group which is so many after the sender's and, where that has left already, its own.
func (x *rings) book(list []units.Seconds, after int, ownLeft bool) {
	r := x.run
	before, behind := make([]units.Seconds, r.n+1), make([]units.Seconds, r.n+1)
	x.sums = resized(x.sums, len(list))
	for row := 0; row < len(list); row += 2 * r.n {
		for k := range r.n {
			before[k+1] = before[k] + list[row+k]
		}
		for k := r.n - 1; k >= 0; k-- {
			behind[k] = behind[k+1] + list[row+k]
			x.sums[row+r.n+k] = before[k] + behind[k+1]
		}
	}
	for i, h := range x.hops {
		at := int(x.link[i])
		row := at - at%(2*r.n)
		a := &r.seats[h.from]
		if a.port += x.sums[row+r.n+(at-row+after)%r.n]; ownLeft {
			a.port -= list[at]
		}
	}
}

// rowOf is the row of a step.
func rowOf(t [][]units.Seconds, step int) []units.Seconds { return t[step%len(t)] }

// start fills the rows of the time before the ring. Where own blocks come last, they have
// left already.
func (x *rings) start() {
	r, first := x.run, 0
	if r.ownLast {
		first = 1
	}
	free, ready := rowOf(x.computed, first+len(x.computed)-1), rowOf(x.ready, first)
	for i := range r.seats {
		a := &r.seats[i]
		free[i], ready[i], x.egress[i], x.ingress[i] = a.free, r.arrived[first][i].at, a.egress, a.ingress
	}
	if x.apart > 0 { // the first message waits for both ports, and there is no other one
		for _, h := range x.hops {
			x.egress[h.from] = max(x.egress[h.from], x.ingress[h.to])
		}
	}
}

func (x *rings) forward() {
	n := x.run.n
	x.start()
	for t := range n {
		if x.run.sim.gaveUp(len(x.run.seats)) {
			return
		}
		x.compute(t, x.before(t))
		if t < n-1 {
			x.passKV(t)
		}
	}
	x.finish(rowOf(x.computed, n-1), x.never)
}

func (x *rings) backward() {
	n, ownLast := x.run.n, x.run.ownLast
	x.start()
	if !ownLast {
		x.passKV(0)
	}
	for t := range n {
		if x.run.sim.gaveUp(len(x.run.seats)) {
			return
		}
		x.stepBack(t, x.before(t))
	}
	last := n - 1
	if ownLast {
		x.compute(0, rowOf(x.computed, last)) // what is in its row of ready came before the last step
		last = 0
	}
	x.finish(rowOf(x.computed, last), rowOf(x.home, n))
}

// stepBack is step t of a backward ring, whose streams are free from some time on.
func (x *rings) stepBack(t int, free []units.Seconds) {
	if t > 0 || !x.run.ownLast {
		x.computeBack(t, free)
	}
	if t+1 < x.run.n-1 {
		x.passKV(t + 1)
	}
	if t > 0 {
		x.passGrad(t)
	}
}

// before is when the streams are free for step t, behind the one before it.
func (x *rings) before(t int) []units.Seconds { return rowOf(x.computed, t+len(x.computed)-1) }

// finish leaves the seats as after the last step.
func (x *rings) finish(done, home []units.Seconds) {
	for i := range x.run.seats {
		a := &x.run.seats[i]
		a.free, a.egress, a.ingress = max(done[i], home[i]), x.egress[i], x.ingress[i]
	}
}

// compute is step t of every stream, free from some time on.
func (x *rings) compute(t int, free []units.Seconds) {
	done := rowOf(x.computed, t)
	arrived, took := rowOf(x.ready, t), x.run.step(t)
	arrived, free, took = arrived[:len(done)], free[:len(done)], took[:len(done)]
	for i := range done {
		done[i] = later(free[i], arrived[i]) + took[i]
	}
}

// computeBack is the same and adds to the gradients; the stream is at most so many
// blocks ahead of them as there are buffers.
func (x *rings) computeBack(t int, free []units.Seconds) {
	done, sum := rowOf(x.computed, t), rowOf(x.added, t)
	arrived, took := rowOf(x.ready, t), x.run.step(t)
	home, ahead := rowOf(x.home, t), x.never
	if u := t - x.run.sim.job.RingBuffers; u >= 0 {
		ahead = rowOf(x.added, u)
	}
	sum, arrived, free = sum[:len(done)], arrived[:len(done)], free[:len(done)]
	took, home, ahead = took[:len(done)], home[:len(done)], ahead[:len(done)]
	for i := range done {
		end := later(later(free[i], arrived[i]), ahead[i]) + took[i]
		done[i], sum[i] = end, later(end, home[i])
	}
}

// passKV is hop t of all keys and values.
func (x *rings) passKV(t int) {
	computed, sent := x.never, x.never
	if u := t + 1 - x.run.sim.job.RingBuffers; u >= 1 {
		computed, sent = rowOf(x.computed, u), rowOf(x.sent, u)
	}
	x.pass(rowOf(x.sent, t), rowOf(x.ready, t+1), x.kv, t, rowOf(x.ready, t), computed, sent)
}

// passGrad is hop t of all gradients; the last one needs no buffer.
func (x *rings) passGrad(t int) {
	sent := x.never
	if u := t + 1 - x.run.sim.job.RingBuffers; u >= 1 && t+1 < x.run.n {
		sent = rowOf(x.gradSent, u)
	}
	x.pass(rowOf(x.gradSent, t), rowOf(x.home, t+1), x.grad, t, rowOf(x.added, t), x.never, sent)
}

// pass is one hop: when it is over on the ports of its senders and of its receivers.
func (x *rings) pass(out, in, price []units.Seconds, t int, ready, computed, sent []units.Seconds) {
	if behind := len(out) - x.apart; x.apart > 0 {
		x.passSpan(0, out[:behind], in[x.apart:], price, t, ready, computed[x.apart:], sent[x.apart:])
		x.passSpan(behind, out[behind:], in[:x.apart], price, t, ready[behind:], computed, sent)
	} else {
		x.passEach(out, in, price, t, ready, computed, sent)
	}
	x.egress, x.ingress = out, in
}

// passSpan is that of a row of senders, from one on, to as many receivers, each to its
// own. The slices begin with the first of either.
func (x *rings) passSpan(from int, out, in, price []units.Seconds, t int, ready, computed, sent []units.Seconds) {
	n := len(out)
	egress, link := x.egress[from:][:n], x.link[from:][:n]
	in, ready, computed, sent = in[:n], ready[:n], computed[:n], sent[:n]
	for i := range out {
		end := later(later(ready[i], egress[i]), later(computed[i], sent[i])) + price[int(link[i])-t]
		out[i], in[i] = end, end
	}
}

func (x *rings) passEach(out, in, price []units.Seconds, t int, ready, computed, sent []units.Seconds) {
	egress, ingress := x.egress[:len(out)], x.ingress[:len(out)]
	in, ready, computed, sent = in[:len(out)], ready[:len(out)], computed[:len(out)], sent[:len(out)]
	for i := range out {
		out[i] = later(egress[i], ready[i])
		in[i] = later(ingress[i], later(computed[i], sent[i]))
	}
	link := x.link[:len(x.hops)]
	for i, h := range x.hops {
		end := later(out[h.from], in[h.to]) + price[int(link[i])-t]
		out[h.from], in[h.to] = end, end
	}
}

// later is max for times of zero and more, whose bits are in their order. It
// compiles without a jump, which max of floats and an if do not.
func later(a, b units.Seconds) units.Seconds {
	return units.Seconds(math.Float64frombits(max(math.Float64bits(float64(a)), math.Float64bits(float64(b)))))
}

package costmodel

import (
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// rings is the ring of a layer where every member of a group passes its blocks
// on to the one in its place in the next group: as many rings side by side as a
// group has members. It says when the seats are done, bit by bit as layerRun
// does, and not how they spend that time: what a search asks for thousands of
// times.
//
// Then a message is over at its sender, on both ports and at its receiver at the
// same instant, so that instant alone is kept, by receiver. With E_t[j] when the
// block of step t is at seat j, C_t[j] when j has computed it, b buffers and hop
// t's time w from seat i to j, with k after j in the ring,
//
//	C_t[j]   = max(C_t-1[j], E_t[j]) + attention
//	E_t+1[j] = max(E_t[i], C_t+1-b[j], E_t+2-b[k], port[j]) + w
//
// where port[j] is when the message before on the way from i to j was over. The
// gradients' A_t = max(G_t, C_t), with their arrival G_t+1, go by the same rule.
type rings struct {
	run     *layerRun
	members int
	link    []int           // by receiver: place of its own block's price, which those of later steps precede
	kv      []units.Seconds // prices by row and group, twice over
	grad    []units.Seconds
	row     map[int]int // of a message's prices, in kv and grad
	// By step modulo their number and seat, with the last group once more before
	// the first and the first behind the last.
	ready, computed, added, home [][]units.Seconds
	never                        []units.Seconds
}

// sideBySide says whether a layout is rings of such a kind, and every block goes all
// the way round with its gradients.
func (s *sim) sideBySide() bool {
	m := s.bunches[0].to
	for g := range s.bunches {
		b, next := &s.bunches[g], &s.bunches[(g+1)%len(s.bunches)]
		if b.to-b.from != m || len(b.out) != m || b.near != 1 || b.reach != len(s.bunches)-1 {
			return false
		}
		for i, h := range b.out {
			if h.from != b.from+i || h.to != next.from+i {
				return false
			}
		}
	}
	return true
}

// simulate runs all steps of a layer whose groups have been entered.
func (x *rings) simulate(r *layerRun) {
	x.reset(r)
	x.price(&x.kv, false)
	x.book(x.kv, 1)
	if !r.back {
		x.forward()
		return
	}
	x.price(&x.grad, true)
	x.book(x.grad, 0)
	x.backward()
}

func (x *rings) reset(r *layerRun) {
	x.run, x.members = r, r.forms[0].to
	kept, width := min(r.sim.job.RingBuffers, r.n)+2, len(r.seats)+2*x.members
	for _, t := range []*[][]units.Seconds{&x.ready, &x.computed, &x.added, &x.home} {
		*t = tableOf(*t, kept, width)
	}
	x.never = resized(x.never, width)
	x.row = map[int]int{}
	x.link = x.link[:0]
	for j := range r.seats {
		g := (j/x.members + r.n - 1) % r.n // who sends to it
		h := r.forms[g].out[j%x.members].price
		if _, ok := x.row[h]; !ok {
			x.row[h] = len(x.row)
		}
		x.link = append(x.link, x.row[h]*2*r.n+r.n+g)
	}
}

// price lists what messages take.
func (x *rings) price(list *[]units.Seconds, grad bool) {
	r := x.run
	known := r.messages[0]
	if grad {
		known = r.messages[1]
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
// the group which is so many after the sender's.
func (x *rings) book(list []units.Seconds, after int) {
	r := x.run
	before, behind := make([]units.Seconds, r.n+1), make([]units.Seconds, r.n+1)
	sums := make([]units.Seconds, len(list))
	for row := 0; row < len(list); row += 2 * r.n {
		for k := range r.n {
			before[k+1] = before[k] + list[row+k]
		}
		for k := r.n - 1; k >= 0; k-- {
			behind[k] = behind[k+1] + list[row+k]
			sums[row+r.n+k] = before[k] + behind[k+1]
		}
	}
	for j, at := range x.link {
		from := (j + len(r.seats) - x.members) % len(r.seats)
		row := at - at%(2*r.n)
		r.seats[from].port += sums[row+r.n+(at-row+after)%r.n]
	}
}

// The rows of all seats, of those before them in the ring and of those after.
func (x *rings) own(t []units.Seconds) []units.Seconds   { return t[x.members:][:len(x.run.seats)] }
func (x *rings) left(t []units.Seconds) []units.Seconds  { return t[:len(x.run.seats)] }
func (x *rings) right(t []units.Seconds) []units.Seconds { return t[2*x.members:][:len(x.run.seats)] }

// close repeats both ends of a row.
func (x *rings) close(t []units.Seconds) {
	n := len(x.run.seats)
	copy(t[:x.members], t[n:])
	copy(t[n+x.members:], t[x.members:])
}

// rowOf is the row of a step.
func rowOf(t [][]units.Seconds, step int) []units.Seconds { return t[step%len(t)] }

// start fills the rows of the time before the ring and returns the ports'.
func (x *rings) start() []units.Seconds {
	r := x.run
	port := make([]units.Seconds, len(r.seats)+2*x.members)
	ready, free := x.own(x.ready[0]), x.own(x.computed[len(x.computed)-1])
	for j := range r.seats {
		from := (j + len(r.seats) - x.members) % len(r.seats)
		ready[j], free[j] = r.arrived[0][j].at, r.seats[j].free
		x.own(port)[j] = max(r.seats[from].egress, r.seats[j].ingress)
	}
	x.close(x.ready[0])
	return port
}

func (x *rings) forward() {
	n, port := x.run.n, x.start()
	for t := range n {
		x.compute(t)
		if t < n-1 {
			port = x.passKV(t, port)
		}
	}
	x.finish(port)
}

func (x *rings) backward() {
	n, port := x.run.n, x.passKV(0, x.start())
	for t := range n {
		x.computeBack(t)
		if t+1 < n-1 {
			port = x.passKV(t+1, port)
		}
		if t > 0 {
			port = x.passGrad(t, port)
		}
	}
	x.finish(port)
}

// finish leaves the seats as after the last step.
func (x *rings) finish(port []units.Seconds) {
	r := x.run
	done, home, sent := x.own(rowOf(x.computed, r.n-1)), x.own(rowOf(x.home, r.n)), x.right(port)
	for i := range r.seats {
		a := &r.seats[i]
		a.free, a.egress, a.ingress = done[i], sent[i], x.own(port)[i]
		if r.back {
			a.free = max(a.free, home[i])
		}
	}
}

// compute is step t of every stream.
func (x *rings) compute(t int) {
	done := x.own(rowOf(x.computed, t))
	arrived, free, took := x.own(rowOf(x.ready, t)), x.own(rowOf(x.computed, t+len(x.computed)-1)), x.run.step(t)
	arrived, free, took = arrived[:len(done)], free[:len(done)], took[:len(done)]
	for i := range done {
		done[i] = later(free[i], arrived[i]) + took[i]
	}
}

// computeBack is the same and adds to the gradients; the stream stays so many
// blocks ahead of them as there are buffers.
func (x *rings) computeBack(t int) {
	done, sum := x.own(rowOf(x.computed, t)), x.own(rowOf(x.added, t))
	arrived, free, took := x.own(rowOf(x.ready, t)), x.own(rowOf(x.computed, t+len(x.computed)-1)), x.run.step(t)
	home, ahead := x.own(rowOf(x.home, t)), x.own(x.never)
	if b := x.run.sim.job.RingBuffers; t >= b {
		ahead = x.own(rowOf(x.added, t-b))
	}
	sum, arrived, free = sum[:len(done)], arrived[:len(done)], free[:len(done)]
	took, home, ahead = took[:len(done)], home[:len(done)], ahead[:len(done)]
	for i := range done {
		end := later(later(free[i], arrived[i]), ahead[i]) + took[i]
		done[i], sum[i] = end, later(end, home[i])
	}
	x.close(rowOf(x.added, t))
}

// passKV is hop t of all keys and values; port is when the links are free, and
// will be.
func (x *rings) passKV(t int, port []units.Seconds) []units.Seconds {
	computed, sent := x.own(x.never), x.own(x.never)
	if u := t + 1 - x.run.sim.job.RingBuffers; u >= 1 {
		computed, sent = x.own(rowOf(x.computed, u)), x.right(rowOf(x.ready, u+1))
	}
	next := rowOf(x.ready, t+1)
	x.pass(x.own(next), x.kv, t, x.left(rowOf(x.ready, t)), x.own(port), computed, sent)
	x.close(next)
	return next
}

// passGrad is hop t of all gradients; the last one needs no buffer.
func (x *rings) passGrad(t int, port []units.Seconds) []units.Seconds {
	sent := x.own(x.never)
	if u := t + 1 - x.run.sim.job.RingBuffers; u >= 1 && t+1 < x.run.n {
		sent = x.right(rowOf(x.home, u+1))
	}
	next := rowOf(x.home, t+1)
	x.pass(x.own(next), x.grad, t, x.left(rowOf(x.added, t)), x.own(port), x.own(x.never), sent)
	x.close(next)
	return next
}

// pass is one hop: when it is over at each receiver.
func (x *rings) pass(next, price []units.Seconds, t int, ready, port, computed, sent []units.Seconds) {
	link := x.link[:len(next)]
	ready, port, computed, sent = ready[:len(next)], port[:len(next)], computed[:len(next)], sent[:len(next)]
	for j := range next {
		start := later(later(ready[j], port[j]), later(computed[j], sent[j]))
		next[j] = start + price[link[j]-t]
	}
}

// later is max for times of zero and more, whose bits are in their order. It
// compiles without a jump, which max of floats and an if do not.
func later(a, b units.Seconds) units.Seconds {
	return units.Seconds(math.Float64frombits(max(math.Float64bits(float64(a)), math.Float64bits(float64(b)))))
}

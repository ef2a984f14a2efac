package costmodel

import "github.com/evenkeel/evenkeel/internal/units"

// hopOf is hop t of one kind of message between all groups.
type hopOf struct {
	kind  eventKind
	t     int
	times [][]units.Seconds // of messages, as far as known (see layerRun)
	ready []arrival         // when a sender's block may leave; by sender, as sent is
	sent  []units.Seconds   // filled: when it has left
	// When what was in the buffer before has been computed with and has been sent on; by
	// receiver, nil where the buffer is free for another reason.
	used, sentOn []units.Seconds
}

// passKV is hop t of all keys and values. The block of step t+1 takes, at the
// rank it goes to, the buffer of the one that came `buffers` steps before; the
// rank's own block, step 0, has a place of its own.
func (r *layerRun) passKV(t int) {
	h := hopOf{kind: kvEvent, t: t, times: r.kvTimes, ready: r.arrived[t%3], sent: r.sentAt(r.sent, t)}
	if u := t + 1 - r.sim.job.RingBuffers; u >= 1 {
		h.used, h.sentOn = r.computed[u%len(r.computed)], r.sent[u%len(r.sent)]
	}
	next := r.arrived[(t+1)%3]
	clear(next)
	for g := range r.forms {
		if k := r.source(g, t); t < r.forms[k].reach {
			r.passBlock(&h, k, r.forms[g].out, next)
		}
	}
}

// passGrad is hop t >= 1 of all gradients: first of those that go on to the next group,
// then of those that the last group with need of their block sends home.
func (r *layerRun) passGrad(t int) {
	h := hopOf{kind: gradEvent, t: t, times: r.gradTimes, ready: r.added[t%len(r.added)], sent: r.sentAt(r.gradSent, t)}
	next := r.gradArrived[(t+1)%3]
	clear(next)
	r.passGradOn(h, next)
	r.passGradHome(&h, next)
}

// passGradOn passes gradients on to the next group, once a buffer is free there.
func (r *layerRun) passGradOn(h hopOf, next []arrival) {
	if u := h.t + 1 - r.sim.job.RingBuffers; u >= 1 {
		h.sentOn = r.gradSent[u%len(r.gradSent)]
	}
	for g := range r.forms {
		if k := r.source(g, h.t); h.t >= r.forms[k].near && h.t < r.forms[k].reach {
			r.passBlock(&h, k, r.forms[g].out, next)
		}
	}
}

// passGradHome sends gradients home from the last group with need of their block: on
// messages of their own or, where the owner is the next group, on those to it. The owner
// keeps a buffer for them.
func (r *layerRun) passGradHome(h *hopOf, next []arrival) {
	for g := range r.forms {
		k := r.source(g, h.t)
		switch of := &r.forms[k]; {
		case h.t != of.reach:
		case h.t == r.n-1:
			r.passBlock(h, k, r.forms[g].out, r.home)
		default:
			r.passBlock(h, k, of.home, r.home)
			for i := of.from; i < of.to; i++ { // what comes in the same hop is taken with it
				if next[i].at > 0 {
					next[i].notBefore(r.home[i].at)
				}
			}
		}
	}
}

// sentAt is the row of a step for when blocks were sent on. A seat that has none to
// send then keeps what it had in the same buffer before: what comes there next waits
// for that.
func (r *layerRun) sentAt(table [][]units.Seconds, t int) []units.Seconds {
	row, before := table[t%len(table)], t-r.sim.job.RingBuffers
	if before < 1 { // the own block has a place of its own
		clear(row)
	} else {
		copy(row, table[before%len(table)])
	}
	return row
}

// passBlock sends the block of group k on from where it is: it leaves when it
// is ready at the sender and its buffer freed at the receiver.
func (r *layerRun) passBlock(x *hopOf, k int, hops []hop, next []arrival) {
	for i := range hops {
		h := &hops[i]
		price := h.price[r.dir]
		took := x.times[price][k]
		if unknown(took) {
			took = r.sim.hopTime(x.kind == gradEvent, price, k)
			x.times[price][k] = took
		}
		at := x.ready[h.from]
		if x.used != nil {
			at.notBefore(x.used[h.to])
		}
		if x.sentOn != nil {
			at.notBefore(x.sentOn[h.to])
		}
		start := r.pass(h, took, at, &next[h.to], &x.sent[h.from])
		if r.events != nil {
			r.note(event{kind: x.kind, seat: h.from, to: h.to, step: x.t, of: k, start: start, end: start + took})
		}
	}
}

// pass sends one message that is ready at a time and returns when it begins. Of
// the messages of a hop from or to one rank the last one is over last, for its
// port takes them one by one.
func (r *layerRun) pass(h *hop, took units.Seconds, ready arrival, to *arrival, sent *units.Seconds) units.Seconds {
	from, at := &r.seats[h.from], &r.seats[h.to]
	start := ready.at
	if from.egress > start {
		start = from.egress
	}
	if at.ingress > start {
		start = at.ingress
	}
	end := start + took
	from.egress, at.ingress = end, end
	from.port += took
	*to, *sent = arrival{end, ready.since}, end
	return start
}

// listMessages looks up what is known of the prices of the layout's messages: of
// gradients only where there is a backward pass.
func (r *layerRun) listMessages() {
	r.kvTimes, r.gradTimes = emptied(r.kvTimes, len(r.sim.hops)), emptied(r.gradTimes, len(r.sim.hops))
	r.listPrices(r.kvTimes, &r.sim.kv)
	if r.back {
		r.listPrices(r.gradTimes, &r.sim.grad)
	}
}

// emptied is a table of at least n rows without entries, in the memory of an older one.
func emptied(table [][]units.Seconds, n int) [][]units.Seconds {
	for i := range table {
		table[i] = table[i][:0]
	}
	for len(table) < n {
		table = append(table, nil)
	}
	return table
}

// listPrices fills the row of every price that a hop of the ring has: what each
// group's block takes at it.
func (r *layerRun) listPrices(list [][]units.Seconds, prices *priceTable) {
	for g := range r.forms {
		for _, hops := range [][]hop{r.forms[g].out, r.forms[g].home} {
			for _, h := range hops {
				price := h.price[r.dir]
				if len(list[price]) > 0 {
					continue
				}
				list[price] = resized(list[price], r.n)
				for k := range r.n {
					list[price][k] = prices.get(price, r.forms[k].shape)
				}
			}
		}
	}
}

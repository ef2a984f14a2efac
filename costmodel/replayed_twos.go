package costmodel

import "github.com/evenkeel/evenkeel/internal/units"

// passTwos simulates a pass of two micro-batches, whose seats have begun.
func (r *replaying) passTwos(g stageOf) {
	run := &r.run
	var w twos
	for k := range r.groups {
		in, out := run.toAllTimes(&r.groups[k])
		w.in, w.out = append(w.in, in), append(w.out, out)
	}
	for b := range r.times {
		g.micro = b
		r.times[b] = r.timesIn(g)
		w.before[b], w.after[b] = r.times[b].before, r.times[b].after
	}
	r.ringEnds = [2][]units.Seconds{}
	run.passTwos(w, func(batch int8) {
		run.given = &r.times[batch-batchA]
	}, func(batch int8) {
		for i := range run.seats {
			b := batch - batchA
			r.ringEnds[b] = append(r.ringEnds[b], run.seats[i].free)
		}
	})
}

// ofTwos lists the stretches of two micro-batches, in the order of the seat's stream. What
// is over before the stream comes to it takes no time.
func (x *stretches) ofTwos(events []event) {
	n := len(x.r.groups)
	first, last := x.g.linear()
	for x.g.micro = range 2 {
		for _, e := range x.ofMicro(events, linearEvent, true) {
			x.addLater(first, 0, e.end)
		}
	}
	if x.r.run.weaves() {
		x.wovenRings(events)
	} else {
		for x.g.micro = range 2 {
			x.ringOfTwos(events)
		}
	}
	for x.g.micro = range 2 {
		for _, e := range x.ofMicro(events, allToAllEvent, false) {
			x.addLater(AllToAllOut, n, e.end)
		}
		for _, e := range x.ofMicro(events, linearEvent, false) {
			x.addLater(last, 0, e.end)
		}
	}
}

// ringOfTwos lists the stretches of the micro-batch at hand from its all-to-all in to the
// end of its ring.
func (x *stretches) ringOfTwos(events []event) {
	for _, e := range x.ofMicro(events, allToAllEvent, true) {
		x.addLater(AllToAllIn, 0, e.end)
	}
	for _, e := range x.ofMicro(events, stepEvent, true) {
		x.step(e)
	}
	x.addLater(RingWait, len(x.r.groups), x.r.ringEnds[x.g.micro][x.seat])
}

// wovenRings is ringOfTwos of both, whose steps take turns.
func (x *stretches) wovenRings(events []event) {
	begun := [2]bool{}
	for _, e := range events {
		if e.kind != stepEvent {
			continue
		}
		if x.g.micro = int(e.batch - batchA); !begun[x.g.micro] {
			begun[x.g.micro] = true
			for _, in := range x.ofMicro(events, allToAllEvent, true) {
				x.addLater(AllToAllIn, 0, in.end)
			}
		}
		x.step(e)
	}
	for x.g.micro = range 2 {
		x.addLater(RingWait, len(x.r.groups), x.r.ringEnds[x.g.micro][x.seat])
	}
}

// step lists the stretches of a step of the ring.
func (x *stretches) step(e event) {
	x.addLater(RingWait, e.step, e.start)
	x.addLater(AttentionOp, e.step, e.end-x.merged(e))
	x.addLater(MergeOp, e.step, e.end)
}

// ofMicro lists the events of one kind of the micro-batch at hand; of those that are no
// steps of the ring, either what is before it or what is behind it.
func (x *stretches) ofMicro(events []event, kind eventKind, before bool) (found []event) {
	for _, e := range events {
		if e.batch == int8(x.g.micro)+batchA && e.kind == kind && (kind == stepEvent || before == (e.step == 0)) {
			found = append(found, e)
		}
	}
	return found
}

// addLater appends the stretch until a time; one that is over already takes no time.
func (x *stretches) addLater(o ReplayOp, step int, until units.Seconds) {
	x.add(o, step, max(until, x.end))
}

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
	add := func(o ReplayOp, step int, until units.Seconds) { x.add(o, step, max(until, x.end)) }
	of := func(kind eventKind, before bool) (found []event) {
		for _, e := range events {
			if e.batch == int8(x.g.micro)+batchA && e.kind == kind && (kind == stepEvent || before == (e.step == 0)) {
				found = append(found, e)
			}
		}
		return found
	}
	for x.g.micro = range 2 {
		for _, e := range of(linearEvent, true) {
			add(first, 0, e.end)
		}
	}
	for x.g.micro = range 2 {
		for _, e := range of(allToAllEvent, true) {
			add(AllToAllIn, 0, e.end)
		}
		for _, e := range of(stepEvent, true) {
			add(RingWait, e.step, e.start)
			add(AttentionOp, e.step, e.end-x.merged(e))
			add(MergeOp, e.step, e.end)
		}
		add(RingWait, n, x.r.ringEnds[x.g.micro][x.seat])
	}
	for x.g.micro = range 2 {
		for _, e := range of(allToAllEvent, false) {
			add(AllToAllOut, n, e.end)
		}
		for _, e := range of(linearEvent, false) {
			add(last, 0, e.end)
		}
	}
}

package costmodel

import "github.com/evenkeel/evenkeel/internal/units"

// passTwos simulates a pass of two micro-batches, whose seats have begun.
func (r *replaying) passTwos(g stageOf) {
	run := &r.run
	var w twos
	for k := range r.bunches {
		in, out := run.toAllTimes(&r.bunches[k])
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

// tasksOfTwos is tasks of two micro-batches, in the order of the seat's stream.
func (r *replaying) tasksOfTwos(g stageOf, i int, events []event) {
	rank, n, at := r.seats[i].rank, len(r.bunches), r.at[i]
	add := func(micro int, o ReplayOp, step int, until units.Seconds) {
		if r.attentionOnly && (o == LinearIn || o == LinearOut) && until <= at {
			return
		}
		g.micro = micro
		until = max(until, at)
		r.out.Tasks = append(r.out.Tasks, ReplayTask{g.key(rank, step, o), at, until - at})
		at = until
	}
	first, last := g.linear()
	of := func(micro int, kind eventKind, before bool) (found []event) {
		for _, e := range events {
			if e.batch == int8(micro)+batchA && e.kind == kind && (kind == stepEvent || before == (e.step == 0)) {
				found = append(found, e)
			}
		}
		return found
	}
	for micro := range 2 {
		for _, e := range of(micro, linearEvent, true) {
			add(micro, first, 0, e.end)
		}
	}
	for micro := range 2 {
		for _, e := range of(micro, allToAllEvent, true) {
			add(micro, AllToAllIn, 0, e.end)
		}
		for _, e := range of(micro, stepEvent, true) {
			add(micro, RingWait, e.step, e.start)
			g.micro = micro
			merged := r.merged(g, i, e)
			add(micro, AttentionOp, e.step, e.end-merged)
			add(micro, MergeOp, e.step, e.end)
		}
		add(micro, RingWait, n, r.ringEnds[micro][i])
	}
	for micro := range 2 {
		for _, e := range of(micro, allToAllEvent, false) {
			add(micro, AllToAllOut, n, e.end)
		}
		for _, e := range of(micro, linearEvent, false) {
			add(micro, last, 0, e.end)
		}
	}
}

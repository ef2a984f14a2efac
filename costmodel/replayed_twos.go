package costmodel

import "github.com/evenkeel/evenkeel/internal/units"

// pricedTwos is priced of two micro-batches that go through the layers together.
func (r *replaying) pricedTwos(back bool) (first, second passLaws) {
	s, n, run := r.sim, len(r.bunches), &r.run
	s.slowTwos()
	run.reset(s, back, false)
	w := run.priceTwos()
	p := [2]passLaws{{before: w.before[0], after: w.after[0]}, {before: w.before[1], after: w.after[1]}}
	alone := n - 1
	if run.ownLast {
		alone = 1
	}
	for i := range s.seats {
		a := &s.seats[i]
		attention, merges := make([]units.Seconds, n), make([]units.Seconds, n)
		for t := range n {
			of, by := &s.bunches[(a.group-t+n)%n], run.beside[i]
			if t == alone {
				by = run.apart[i]
			}
			both, slowed := s.attentionCost(back, a, of, nil), units.Seconds(1)
			if both > 0 {
				slowed = by.stretch(both) / both
			}
			merges[t] = slowed * s.mergeCost(back, a, of)
			attention[t] = slowed*both - merges[t]
		}
		for b := range p {
			p[b].attention, p[b].merges = append(p[b].attention, attention), append(p[b].merges, merges)
		}
	}
	return p[0], p[1]
}

// passTwos simulates a pass of two micro-batches, for seats that begin at times of their
// own.
func (r *replaying) passTwos(g stageOf) {
	run := &r.run
	run.reset(r.sim, g.back, true)
	for i := range r.seats {
		for _, what := range []linearPart{preForward, postForward, preBackward, postBackward} {
			r.linear[linearKey{r.seats[i].device, r.seats[i].tokens, what}] = 0 // asked for below
		}
	}
	w := run.priceTwos()
	for b := range w.before {
		g.micro = b
		for i := range r.seats {
			w.before[b][i], w.after[b][i] = r.before(g, i), r.after(g, i)
		}
	}
	for i := range run.seats {
		a := &run.seats[i]
		a.free, a.egress, a.ingress = r.at[i], max(r.at[i], r.ports[i][0]), max(r.at[i], r.ports[i][1])
		run.arrived[0][i] = arrival{r.at[i], r.at[i]} // of what it has from the forward pass
	}
	r.ringEnds = [2][]units.Seconds{}
	run.passTwos(w, func(batch int8) {
		g.micro = int(batch - batchA)
		for i := range r.seats {
			r.setSteps(g, i)
		}
		run.strip.begins = -1 // what it holds is of the other one
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
	first, last := LinearIn, LinearOut
	if g.back {
		first, last = last, first
	}
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

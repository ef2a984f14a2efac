package costmodel

import (
	"cmp"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// book adds a simulated pass to what the ranks did.
func (r *replaying) book(g stageOf) {
	own := make([][]event, len(r.seats))
	for _, e := range *r.run.events {
		if e.kind != kvEvent && e.kind != gradEvent {
			own[e.seat] = append(own[e.seat], e)
		}
	}
	for i := range r.seats {
		if r.layout.TwoBatch {
			r.tasksOfTwos(g, i, own[i])
		} else {
			r.tasks(g, i, own[i])
		}
		r.spend(g, i)
	}
}

// spend adds up what a seat did in a pass.
func (r *replaying) spend(g stageOf, i int) {
	a, sum := &r.run.seats[i], &r.spent[i]
	linear, attention := linearForward, attentionForward
	switch {
	case g.back:
		linear, attention = linearBackward, attentionBackward
	case g.again:
		linear, attention = recompute, recompute
	}
	sum.busy[linear] += r.times[0].before[i] + r.times[0].after[i]
	if r.layout.TwoBatch {
		sum.busy[linear] += r.times[1].before[i] + r.times[1].after[i]
	}
	sum.busy[attention] += a.attention
	sum.allToAll += r.run.around[i].allToAll
	sum.exposed += a.exposed
}

// tasks lists a seat's stretches of a pass from its events: what is between
// them is waiting.
func (r *replaying) tasks(g stageOf, i int, events []event) {
	rank, n := r.seats[i].rank, len(r.bunches)
	at := r.at[i]
	chunk := 0
	add := func(o ReplayOp, step int, until units.Seconds) {
		if r.attentionOnly && (o == LinearIn || o == LinearOut) && until == at {
			return
		}
		key := g.key(rank, step, o)
		key.Chunk = chunk
		r.out.Tasks = append(r.out.Tasks, ReplayTask{key, at, until - at})
		at = until
	}
	first, last := g.linear()
	chunks := r.layout.chunks()
	for _, e := range events {
		switch {
		case chunks > 1 && e.kind != linearEvent:
			chunk = e.chunk
			switch last := e.kind == allToAllEvent && e.step == n && chunk == chunks-1; {
			case e.kind == stepEvent: // its squares are the first of their rows: nothing is merged
				add(AllToAllIn, 0, e.start)
				add(AttentionOp, 0, e.end)
			case last: // others are not waited for
				add(AllToAllOut, n, e.end)
				chunk = 0
			}
		case e.kind == linearEvent && e.step == 0:
			add(first, 0, e.end)
		case e.kind == allToAllEvent && e.step == 0:
			add(AllToAllIn, 0, e.end)
		case e.kind == stepEvent:
			add(RingWait, e.step, e.start)
			merged := r.merged(g, i, e)
			add(AttentionOp, e.step, e.end-merged)
			add(MergeOp, e.step, e.end)
		case e.kind == allToAllEvent:
			add(RingWait, n, min(e.start, r.ringDone(g, i, at)))
			add(AllToAllOut, n, e.end)
		default:
			if r.alone(i) {
				add(RingWait, n, e.start)
			}
			add(last, 0, e.end)
		}
	}
}

func (r *replaying) alone(i int) bool {
	b := &r.bunches[r.seats[i].group]
	return b.to-b.from == 1
}

// merged is what of a step's work is merging. Where only the whole is supposed,
// it has the share of it that the laws give it.
func (r *replaying) merged(g stageOf, i int, e event) units.Seconds {
	p := r.lawsOf(g)
	attention, merges := p.attention[e.step][i], p.merges[e.step][i]
	if merges == 0 {
		return 0
	}
	return (e.end - e.start) * merges / (attention + merges)
}

// ringDone is when a member of a group is done with the ring: with the gradients
// that came home and with what it sends on, before it waits for the others.
func (r *replaying) ringDone(g stageOf, i int, computed units.Seconds) units.Seconds {
	done := max(computed, r.run.seats[i].egress)
	if g.back && len(r.bunches) > 1 {
		done = max(done, r.run.home[i].at)
	}
	return done
}

// finish makes the sums of the ranks and the interval of the whole, which is
// that of the parts along the rank that is done last.
func (r *replaying) finish() {
	last, worst := 0, r.worst
	for i, a := range r.seats {
		k, h := &r.out.Ranks[a.rank], share{busy: r.spent[i].busy}
		k.Compute, k.Exposed, k.End = h.computing(), r.spent[i].exposed+r.spent[i].allToAll, r.at[i]
		k.Skew = max(0, k.End-k.Compute-k.Exposed) // rounding may leave a hair less than nothing
		if r.at[i] > r.at[last] {
			last = i
		}
	}
	slices.SortStableFunc(r.out.Tasks, func(a, b ReplayTask) int { return cmp.Compare(a.Rank, b.Rank) })
	var whole account
	for p, once := range r.partAccounts(last) {
		switch part(p) {
		case lossPart, gradientSync, optimizerPart, idle:
		default:
			whole.merge(once, r.timesOf(part(p), r.spent[last], &once))
		}
	}
	r.out.Step = like(r.at[last], whole.total())
	r.out.Step.Source = worst
}

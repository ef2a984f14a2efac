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
		r.tasks(g, i, own[i])
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
	sum.allToAll += r.run.outside[i].allToAll
	sum.exposed += a.exposed
}

// tasks lists a seat's stretches of a pass from its events.
func (r *replaying) tasks(g stageOf, i int, events []event) {
	x := &stretches{r: r, g: g, seat: i, end: r.at[i]}
	switch {
	case r.layout.TwoBatch:
		x.ofTwos(events)
	case r.layout.chunks() > 1:
		x.ofChunks(events)
	default:
		x.ofRing(events)
	}
}

// stretches are a seat's in a pass, each from the end of the one before it: what is between
// events is waiting.
type stretches struct {
	r     *replaying
	g     stageOf
	seat  int
	end   units.Seconds // of the last one
	chunk int           // of heads, that it is about
}

// add appends the stretch until a time.
func (x *stretches) add(o ReplayOp, step int, until units.Seconds) {
	if x.r.attentionOnly && (o == LinearIn || o == LinearOut) && until == x.end {
		return
	}
	key := x.g.key(x.r.seats[x.seat].rank, step, o)
	key.Chunk = x.chunk
	x.r.out.Tasks = append(x.r.out.Tasks, ReplayTask{key, x.end, until - x.end})
	x.end = until
}

func (x *stretches) ofRing(events []event) {
	n := len(x.r.groups)
	for _, e := range events {
		switch {
		case e.kind == linearEvent:
			x.linear(e)
		case e.kind == stepEvent:
			x.add(RingWait, e.step, e.start)
			x.add(AttentionOp, e.step, e.end-x.merged(e))
			x.add(MergeOp, e.step, e.end)
		case e.step == 0:
			x.add(AllToAllIn, 0, e.end)
		default:
			x.add(RingWait, n, min(e.start, x.ringDone()))
			x.add(AllToAllOut, n, e.end)
		}
	}
}

// ofChunks waits for each chunk's all-to-all in, and for the last one out.
func (x *stretches) ofChunks(events []event) {
	n, last := len(x.r.groups), x.r.layout.chunks()-1
	for _, e := range events {
		switch x.chunk = e.chunk; {
		case e.kind == linearEvent:
			x.linear(e)
		case e.kind == stepEvent: // its squares are the first of their rows: nothing is merged
			x.add(AllToAllIn, 0, e.start)
			x.add(AttentionOp, 0, e.end)
		case e.step == n && e.chunk == last: // others are not waited for
			x.add(AllToAllOut, n, e.end)
		}
	}
}

// linear adds linear work, which behind the ring a seat alone in its group has waited for
// by itself.
func (x *stretches) linear(e event) {
	first, last := x.g.linear()
	if e.step == 0 {
		x.add(first, 0, e.end)
		return
	}
	if b := &x.r.groups[x.r.seats[x.seat].group]; b.to-b.from == 1 {
		x.add(RingWait, len(x.r.groups), e.start)
	}
	x.add(last, 0, e.end)
}

// merged is what of a step's work is merging. Where only the whole is supposed,
// it has the share of it that the laws give it.
func (x *stretches) merged(e event) units.Seconds {
	p := x.r.lawsOf(x.g)
	attention, merges := p.attention[e.step][x.seat], p.merges[e.step][x.seat]
	if merges == 0 {
		return 0
	}
	return (e.end - e.start) * merges / (attention + merges)
}

// ringDone is when a member of a group is done with the ring: with the gradients
// that came home and with what it sends on, before it waits for the others.
func (x *stretches) ringDone() units.Seconds {
	done := max(x.end, x.r.run.seats[x.seat].egress)
	if x.g.back && len(x.r.groups) > 1 {
		done = max(done, x.r.run.home[x.seat].at)
	}
	return done
}

// finish makes the sums of the ranks and the interval of the whole, which is
// that of the parts along the rank that is done last. The error is what laws are missing.
func (r *replaying) finish() (*Replayed, error) {
	if r.err != nil {
		return nil, r.err
	}
	for i := range r.seats {
		r.sums(&r.out.Ranks[r.seats[i].rank], i)
	}
	slices.SortStableFunc(r.out.Tasks, func(a, b ReplayTask) int { return cmp.Compare(a.Rank, b.Rank) })
	worst := r.worst
	whole := r.along(r.last())
	r.out.Step = like(r.latest(), whole.total())
	r.out.Step.Source = worst
	return r.out, nil
}

// last is the seat that is done last; of several, as where all wait for new parameters, the
// one for which the others wait: it computes longest.
func (r *replaying) last() int {
	last, longest := 0, units.Seconds(-1)
	least := r.latest() * (1 - 1e-9)
	for i, at := range r.at {
		h := share{busy: r.spent[i].busy}
		if computes := h.computing() - h.busy[gradientSync]; at >= least && computes > longest {
			last, longest = i, computes
		}
	}
	return last
}

// sums adds what a seat did to its rank's.
func (r *replaying) sums(k *ReplayedRank, i int) {
	h := share{busy: r.spent[i].busy}
	sync := h.busy[gradientSync]
	k.Compute, k.Exposed, k.End = k.Compute+h.computing()-sync, k.Exposed+r.spent[i].exposed+r.spent[i].allToAll+sync, r.at[i]
	k.Skew = max(0, k.End-k.Compute-k.Exposed) // rounding may leave a hair less than nothing
}

// along is what a seat's parts take, law by law.
func (r *replaying) along(last int) account {
	var whole account
	for p, once := range r.partAccounts(last) {
		if times := r.timesOf(part(p), r.spent[last], &once); part(p) != idle && times > 0 {
			whole.merge(once, times)
		}
	}
	return whole
}

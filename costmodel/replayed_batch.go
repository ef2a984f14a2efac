package costmodel

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// ReplayBatch is a whole training step of a batch as replay runs it: micro-batches one after
// the other, in each of which groups of ranks train packed sequences side by side. Gradients
// are added up over all of them, and after each but the last all ranks meet.
type ReplayBatch struct {
	Micro [][]ReplayGroup
	// Members are the ranks of the cluster that hold the model's states and exchange gradients
	// and parameters, those without work in any micro-batch included; they rise.
	Members []int
	// Reduced says how gradients were added up, as far as the library had it otherwise than
	// the job.
	Reduced Reduction
}

// ReplayGroup is what some ranks train in a micro-batch.
type ReplayGroup struct {
	Job    Job    // of the packed sequence, on the whole cluster
	Layout Layout // of that
	Packed []units.Tokens
}

// ReplayedBatch predicts a whole training step of a batch: embedding, layers and loss of every
// micro-batch, the exchange of gradients and parameters among all members by the job's ZeRO
// stage, and the optimizer. The job says the model, with as many layers as were run, cluster,
// precision and stage; it ignores SeqLen, Recompute and Accumulate, which are of groups.
//
// took is as in Simulator.Supposing, by ranks of the cluster and micro-batch; nil supposes
// nothing. Meeting is the step as solver/batch prices it, but from the groups and the last
// backward passes as simulated; where times are supposed it is none.
//
// Errors: no members, groups of others; those of Supposing.
func (q *Predictor) ReplayedBatch(j Job, b ReplayBatch, took func(ReplayKey) (units.Seconds, bool)) (*Replayed, error) {
	x, err := q.together(j, b, took)
	if err != nil {
		return nil, err
	}
	for m, side := range b.Micro {
		groups, err := x.groups(side)
		if err != nil {
			return nil, fmt.Errorf("micro-batch %d: %w", m, err)
		}
		x.trains(m, groups, m == len(b.Micro)-1)
	}
	x.updated(stageOf{micro: len(b.Micro) - 1, back: true})
	return x.whole()
}

// together is a step of a batch under way: of all members when each is done, what they
// exchange, and the update. What groups compute is of replayings of their own.
type together struct {
	*replaying
	q      *Predictor
	seatOf map[int]int   // by rank
	others []int         // ranks of the cluster that are no members
	met    units.Seconds // when all last met
	turns  []*Step       // along the ranks that were done last with every micro-batch
	late   int           // the seat of the last of these
	behind units.Seconds // how long the backward passes of the last micro-batch take, but for a layer
	prices overheads     // outside micro-batches' passes
}

// together begins a step.
func (q *Predictor) together(j Job, b ReplayBatch, took func(ReplayKey) (units.Seconds, bool)) (*together, error) {
	switch {
	case len(b.Members) == 0:
		return nil, errors.New("members: none")
	case len(b.Micro) == 0:
		return nil, errors.New("micro-batches: none")
	}
	n := len(j.Cluster.Ranks())
	ones := make([]units.Tokens, n)
	for i, r := range b.Members {
		if r < 0 || r >= n || i > 0 && r <= b.Members[i-1] {
			return nil, fmt.Errorf("members[%d]: %d: want ranks from 0 to %d that rise", i, r, n-1)
		}
		ones[r] = 1
	}
	j.SeqLen, j.Recompute, j.Accumulate = units.Tokens(len(b.Members)), RecomputeNone, 0
	s, err := newSim(q, j)
	if err != nil {
		return nil, err
	}
	s.layout, s.reduced = ZigZag(ones, Singles(ones, j.Model.QHeads)), b.Reduced
	if err := s.seat(); err != nil {
		return nil, err
	}
	x := &together{replaying: &replaying{sim: s, took: took, out: new(Replayed)}, q: q, seatOf: map[int]int{}}
	x.at, x.spent, x.replaying.out.Ranks = make([]units.Seconds, len(s.seats)), make([]spent, len(s.seats)), make([]ReplayedRank, n)
	for i := range s.seats {
		x.seatOf[s.seats[i].rank] = i
	}
	for r, in := range ones {
		if in == 0 {
			x.others = append(x.others, r)
		}
	}
	if x.update, err = x.updates(j.Model.Layers); err != nil {
		return nil, err
	}
	if len(s.seats) > 1 {
		for _, c := range s.exchanges() {
			x.prices.add(s, c)
		}
	}
	return x, nil
}

// groups are those of a micro-batch, who begin when they are done with all before.
func (x *together) groups(side []ReplayGroup) ([]*replaying, error) {
	var all []*replaying
	taken := map[int]bool{}
	for i, g := range side {
		for _, a := range g.Layout.Groups {
			for _, m := range a {
				if _, member := x.seatOf[m.Rank]; !member || taken[m.Rank] {
					return nil, fmt.Errorf("group %d: rank %d: want members, each in one group", i, m.Rank)
				}
				taken[m.Rank] = true
			}
		}
		r, err := x.group(g)
		if err != nil {
			return nil, fmt.Errorf("group %d: %w", i, err)
		}
		all = append(all, r)
	}
	return all, nil
}

func (x *together) group(g ReplayGroup) (*replaying, error) {
	layers := x.update.layers
	if g.Job.Model.Layers != layers {
		return nil, fmt.Errorf("layers: %d: want the step's %d", g.Job.Model.Layers, layers)
	}
	s, err := newSim(x.q, g.Job)
	if err != nil {
		return nil, err
	}
	w := ReplayWork{Packed: g.Packed}
	if s.packed, err = w.documents(g.Job.SeqLen); err != nil {
		return nil, err
	}
	r := &replaying{sim: s, took: x.took, out: new(Replayed), micro: 1, loss: layers}
	g.Layout.Schedule = g.Layout.OneByOne()
	if err := r.prepare(g.Layout); err != nil {
		return nil, err
	}
	if x.took == nil {
		r.meet(layers)
	}
	return r, r.err
}

// each has every group do something, beginning when its ranks are done with all before. It
// returns when the first of them began, and how long the busiest port was at work.
func (x *together) each(groups []*replaying, do func(*replaying)) (begin, busiest units.Seconds) {
	for n, r := range groups {
		for i := range r.seats {
			r.at[i] = x.at[x.seatOf[r.seats[i].rank]]
		}
		if first := slices.Min(r.at); n == 0 || first < begin {
			begin = first
		}
		do(r)
		for i := range r.seats {
			x.at[x.seatOf[r.seats[i].rank]] = r.at[i]
		}
		busiest = max(busiest, r.run.busiest())
	}
	return begin, busiest
}

// pass has all groups take one, or those that compute again.
func (x *together) pass(groups []*replaying, g stageOf) {
	if g.again {
		groups = slices.DeleteFunc(slices.Clone(groups), func(r *replaying) bool { return r.job.Recompute != RecomputeFull })
	}
	if len(groups) > 0 {
		x.beside(x.each(groups, func(r *replaying) { r.takes(g) }))
	}
}

// trains is a micro-batch. Ranks without work in it take part in what is exchanged.
func (x *together) trains(number int, groups []*replaying, last bool) {
	u := x.update
	u.leaves = u.everyMicro || last
	first, end := stageOf{micro: number}, stageOf{micro: number, back: true}
	x.gathersRest(first)
	x.each(groups, func(r *replaying) { r.embeds(first) })
	for i := range u.layers {
		g := stageOf{micro: number, layer: i}
		x.gathered(g)
		x.pass(groups, g)
	}
	x.each(groups, func(r *replaying) { r.lose(stageOf{micro: number, layer: u.layers - 1}) })
	for i := u.layers - 1; i >= 0; i-- {
		g := stageOf{micro: number, layer: i, back: true}
		x.gathered(g)
		x.pass(groups, stageOf{micro: number, layer: i, again: true})
		x.pass(groups, g)
		x.reduced(g)
	}
	x.each(groups, func(r *replaying) { r.embeds(end) })
	x.account(groups)
	x.reducesRest(end)
	if !last {
		x.meets(end)
	}
}

// account keeps what groups did, and adds the micro-batch to Meeting.
func (x *together) account(groups []*replaying) {
	var longest, forward units.Seconds
	late, behind := -1, units.Seconds(x.update.layers-1)
	x.behind = 0
	for n, r := range groups {
		longest = max(longest, r.out.Meeting)
		forward, x.behind = max(forward, behind*r.lengths[0]), max(x.behind, behind*r.lengths[1])
		x.out.Tasks = append(x.out.Tasks, r.out.Tasks...)
		for i := range r.seats {
			r.sums(&x.out.Ranks[r.seats[i].rank], i)
		}
		if late < 0 || r.at[r.last()] > groups[late].at[groups[late].last()] {
			late = n
		}
	}
	if late >= 0 {
		r := groups[late]
		x.worst = x.worst.Worse(r.worst)
		x.turns, x.late = append(x.turns, r.timeOf(r.along(r.last()))), x.seatOf[r.seats[r.last()].rank]
	}
	if x.took != nil {
		return
	}
	hides := x.behind
	if x.prices.BothPasses {
		hides += forward
	}
	x.out.Meeting += longest + max(0, x.prices.Hidden-hides) + x.prices.MicroBatch
	if u := x.update; u.gathers { // once in a micro-batch, and not in either pass
		x.out.Meeting -= u.restGather
	}
}

// meets has all ranks wait for the last one, those that are no members too.
func (x *together) meets(g stageOf) {
	end := x.latest()
	for i := range x.seats {
		x.out.Tasks = append(x.out.Tasks, ReplayTask{g.key(x.seats[i].rank, 0, MeetOp), x.at[i], end - x.at[i]})
		x.at[i] = end
	}
	for _, r := range x.others {
		x.out.Tasks = append(x.out.Tasks, ReplayTask{g.key(r, 0, MeetOp), x.met, end - x.met})
		x.out.Ranks[r] = ReplayedRank{Skew: end, End: end}
	}
	x.met = end
}

// whole makes the sums of the ranks and the interval of the step.
func (x *together) whole() (*Replayed, error) {
	if x.err != nil {
		return nil, x.err
	}
	worst := x.worst
	for i := range x.seats {
		x.sums(&x.out.Ranks[x.seats[i].rank], i)
	}
	slices.SortStableFunc(x.out.Tasks, func(a, b ReplayTask) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Start, b.Start), cmp.Compare(a.Time, b.Time))
	})
	var end account
	x.optimizer(x.seats[x.late].device, len(x.seats), &end)
	if len(x.seats) > 1 {
		sync := account{}
		for _, c := range x.exchanges() {
			x.collective(c, x.oneNode(), x.membersOf(0, len(x.seats)), &sync)
		}
		if once := sync.mid(); once > 0 {
			end.merge(sync, float64(x.spent[x.late].busy[gradientSync]/once))
		}
	}
	all := InTurn(append(x.turns, x.timeOf(end))...)
	x.out.Step = like(x.latest(), all.Time)
	x.out.Step.Source = worst
	if x.took == nil {
		x.meetsAtEnd()
	}
	return x.out, nil
}

// meetsAtEnd adds to Meeting what is behind the last micro-batch.
func (x *together) meetsAtEnd() {
	var slowest units.Seconds
	for i := range x.seats {
		slowest = max(slowest, x.optimizerTime(x.seats[i].device, len(x.seats)))
	}
	x.out.Meeting += x.prices.Step + slowest + max(0, x.prices.Behind-x.behind)
}

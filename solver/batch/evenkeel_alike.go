package batch

import (
	"context"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// tryAlike plans batches of few sequences that are all as long, on devices of few kinds,
// which filling one sequence after the other packs badly: eight of them leave it few moves.
// Under a time a group of a class trains so many, and what all devices train is a knapsack
// of groups, with the pools' devices for room: exact by dynamic programming, so that the
// least time of a micro-batch of so many sequences is found by halving, and the best
// numbers for micro-batches by trying all. Only the nodes' room is not in it: groups that
// find no place are taken for too many. It says whether the batch is one of these.
func (pl *Planner) tryAlike(ctx context.Context) bool {
	k := newKnapsack(pl.t.p)
	if k == nil || pl.options.Effort == Quick || pl.best.total <= pl.bound*exactly {
		return k != nil
	}
	if plan := k.plan(ctx, pl.best.total); plan != nil {
		// Groups in another order may find no place.
		if pl.t.take(plan, &pl.found); pl.t.anywhere || pl.found.placed(&pl.t) {
			pl.keep(&pl.found)
		}
	}
	return true
}

const (
	// alikeSequences is how many leave room for better plans: of dozens any filling is good.
	alikeSequences = 32
	// alikeRooms bounds the table of a knapsack: beyond it halving takes longer than all else.
	alikeRooms = 20_000
	// alikeHalvings find a time to within a thousandth of a step's.
	alikeHalvings = 10
)

// knapsack is a batch of equal sequences on devices of few kinds.
type knapsack struct {
	p      *Problem
	base   []units.Seconds // by class
	each   []units.Seconds
	most   []int // sequences that a group holds
	stride []int // of a pool's devices, in the table
	rooms  int
	items  []groupKind
	counts []int32 // sequences that so many devices train
	taken  []int32 // with which group among them; -1 for none
}

// groupKind is a kind of group under the time at hand.
type groupKind struct {
	class, count int
	uses         []int
	offset       int
}

// newKnapsack is nil where sequences differ, or the table would be too large.
func newKnapsack(p *Problem) *knapsack {
	s := p.Lengths[0]
	if len(p.Lengths) > alikeSequences || slices.ContainsFunc(p.Lengths, func(x units.Tokens) bool { return x != s }) {
		return nil
	}
	k := &knapsack{p: p, rooms: 1}
	for _, f := range p.Fleet {
		k.stride = append(k.stride, k.rooms)
		if k.rooms *= f.Count() + 1; k.rooms > alikeRooms {
			return nil
		}
	}
	for c, class := range p.Classes {
		k.base, k.each = append(k.base, class.Base), append(k.each, p.Costs.Time(c, s))
		k.most = append(k.most, int(min(class.Cap/s, units.Tokens(len(p.Lengths)))))
	}
	k.counts, k.taken = make([]int32, k.rooms), make([]int32, k.rooms)
	return k
}

// fill is how many sequences all devices train in a micro-batch of at most such a time.
func (k *knapsack) fill(time float64) int {
	k.list(time)
	at := make([]int, len(k.stride)) // devices, by pool
	for room := range k.rooms {
		k.counts[room], k.taken[room] = 0, -1
		for i := range k.items {
			x := &k.items[i]
			if !fitsIn(x.uses, at) {
				continue
			}
			if n := k.counts[room-x.offset] + int32(x.count); n > k.counts[room] {
				k.counts[room], k.taken[room] = n, int32(i)
			}
		}
		for pool := range at {
			if at[pool]++; at[pool] <= k.p.Fleet[pool].Count() {
				break
			}
			at[pool] = 0
		}
	}
	return int(k.counts[k.rooms-1])
}

// list makes the items: of every class what it trains within a time, without those that
// train no more than others with no more devices.
func (k *knapsack) list(time float64) {
	k.items = k.items[:0]
	for c, class := range k.p.Classes {
		n := k.most[c]
		if fit := (time - float64(k.base[c])) / float64(k.each[c]); fit < float64(n) {
			n = int(fit * (1 + 1e-12))
		}
		if n < 1 {
			continue
		}
		x := groupKind{class: c, count: n, uses: class.Uses}
		for pool, u := range class.Uses {
			x.offset += u * k.stride[pool]
		}
		beaten := func(by groupKind) bool { return by.count >= x.count && fitsIn(by.uses, x.uses) }
		if slices.ContainsFunc(k.items, beaten) {
			continue
		}
		k.items = slices.DeleteFunc(k.items, func(y groupKind) bool { return x.count >= y.count && fitsIn(x.uses, y.uses) })
		k.items = append(k.items, x)
	}
}

func fitsIn(uses, room []int) bool {
	for i, u := range uses {
		if u > room[i] {
			return false
		}
	}
	return true
}

// plan is the fastest that is found, nil if none takes less than the step does now.
func (k *knapsack) plan(ctx context.Context, now float64) *Plan {
	n := len(k.p.Lengths)
	micro, least := []*MicroBatch{nil}, 0.0 // by number of sequences
	for len(micro) <= n {
		m := k.shortest(ctx, len(micro), least, now-float64(k.p.Fixed+k.p.MicroBase))
		if m == nil {
			break
		}
		micro, least = append(micro, m), float64(m.Time)
	}
	// The least time of so many sequences, and how many of them the last micro-batch has.
	time, last := make([]float64, n+1), make([]int, n+1)
	for of := 1; of <= n; of++ {
		time[of] = math.Inf(1)
		for q := 1; q <= of && q < len(micro); q++ {
			t := time[of-q] + float64(k.p.cost(micro[q].Time))
			if of == q { // one of a plan's is the last, whichever: Evaluate takes the best
				t += float64(k.p.open(micro[q].Time))
			}
			if t < time[of] {
				time[of], last[of] = t, q
			}
		}
	}
	if !(time[n]+float64(k.p.Fixed) < now) {
		return nil
	}
	plan, next := &Plan{}, 0
	for left := n; left > 0; left -= last[left] {
		m := MicroBatch{}
		for _, g := range micro[last[left]].Groups {
			of := Group{Class: g.Class}
			for range g.Sequences {
				of.Sequences = append(of.Sequences, next)
				next++
			}
			m.Groups = append(m.Groups, of)
		}
		plan.Micro = append(plan.Micro, m)
	}
	Evaluate(k.p, plan)
	return plan
}

// shortest is the shortest micro-batch of so many sequences that is found, nil if none
// takes less than hi; none takes less than lo. Its time is that of its slowest group.
func (k *knapsack) shortest(ctx context.Context, sequences int, lo, hi float64) *MicroBatch {
	best := k.within(sequences, hi)
	for range alikeHalvings {
		if best == nil || ctx.Err() != nil {
			break
		}
		hi = float64(best.Time)
		mid := (lo + hi) / 2
		if m := k.within(sequences, mid); m != nil {
			best = m
		} else {
			lo = mid
		}
	}
	return best
}

// within is a micro-batch of so many sequences that takes at most such a time; nil where
// devices train too few, or groups find no place.
func (k *knapsack) within(sequences int, time float64) *MicroBatch {
	if k.fill(time) < sequences {
		return nil
	}
	var kinds []groupKind
	for room := k.rooms - 1; k.taken[room] >= 0; {
		x := k.items[k.taken[room]]
		kinds = append(kinds, x)
		room -= x.offset
	}
	m := &MicroBatch{}
	for i, count := range k.spread(kinds, sequences) {
		if count > 0 {
			m.Groups = append(m.Groups, Group{Class: kinds[i].class, Sequences: make([]int, count)})
			m.Time = max(m.Time, k.timeOf(kinds[i].class, count))
		}
	}
	if Place(k.p, m.Groups) != nil {
		return nil
	}
	return m
}

func (k *knapsack) timeOf(class, sequences int) units.Seconds {
	return k.base[class] + units.Seconds(sequences)*k.each[class]
}

// spread gives groups as many sequences as there are, fewer than they could train to
// those that take longest.
func (k *knapsack) spread(kinds []groupKind, sequences int) []int {
	counts, sum := make([]int, len(kinds)), 0
	for i, x := range kinds {
		counts[i] = x.count
		sum += x.count
	}
	for ; sum > sequences; sum-- {
		slowest, longest := -1, units.Seconds(-1)
		for i, x := range kinds {
			if t := k.timeOf(x.class, counts[i]); counts[i] > 0 && t > longest {
				slowest, longest = i, t
			}
		}
		counts[slowest]--
	}
	return counts
}

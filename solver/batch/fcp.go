package batch

import (
	"cmp"
	"context"
	"math/bits"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// FCP plans as the paper of that name does (arXiv 2602.21788, first called DHP):
// the sequences of a micro-batch are packed by best fit decreasing into groups of
// the least degree that holds them, then a dynamic programme over groups and ranks
// gives every group a degree, any whole number, for the least makespan.
//
// What the paper and code that follows it get wrong is mended:
//   - The ranks left over went round all groups, and a group may be slower on more
//     ranks. Here they go round those that they make faster; what none can use stays
//     idle.
//   - Algorithm 1 begins to walk back from (K'+1, N+1), and leaves DP[0][N] infinite.
//   - Degrees were not restricted to those that heads can be shared by; here only
//     the degrees of the problem's classes are formed.
//   - Lengths were counted one too long, so that a sequence of just what the largest
//     group holds had no degree; longer ones were cut to the largest degree without
//     a word. Here lengths are exact, and longer ones are *TooLongError.
//   - Memory was not checked beyond the packing; here every group is within the
//     memory of its class.
//   - A micro-batch whose least degrees add up to more than there are ranks raised
//     an error; here the batch is cut into more micro-batches.
//
// How a batch is cut into micro-batches is not in the paper. Here they are
// consecutive sequences, of like numbers of tokens, both in the order of the batch
// and sorted by length, for the least number of micro-batches that the ranks hold
// and some more; the best is taken.
type FCP struct {
	// Programme uses the dynamic programme itself for the degrees, not the faster
	// way that gives the same makespan (see allot).
	Programme bool
}

// Name is "fcp".
func (FCP) Name() string { return "fcp" }

// Claims says whose algorithm it is.
func (FCP) Claims() Claims {
	return Claims{Published: true, Doc: "FCP/DHP (2026): best-fit-decreasing packing and a dynamic programme over groups and ranks of any degree, its known defects mended; devices are taken as alike"}
}

// fcpTries is how many numbers of micro-batches are tried, as FlexSP does.
const fcpTries = 5

// Solve plans the batch. Groups of any degree may not find place in the nodes, or only in
// more micro-batches: powers of two, which do in nodes of like size, are tried as well.
func (f FCP) Solve(ctx context.Context, p *Problem) (*Plan, error) {
	return f.shorter(ctx, p, never, nil)
}

// shorter is the plan if it takes less than so long, and may be nil if not. work is the
// share of the devices' time that each sequence takes at least: what is sure to take
// longer is not planned to its end. Without it all numbers of micro-batches are tried
// that Solve tries.
func (f FCP) shorter(ctx context.Context, p *Problem, than units.Seconds, work []units.Seconds) (*Plan, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := p.Feasible(); err != nil {
		return nil, err
	}
	var failure error
	var best *Plan
	found := false
	for _, any := range []bool{true, false} {
		if !any && found && !p.nodesBind() {
			break
		}
		a, err := newAlike(p, func(d int) bool { return any || bits.OnesCount(uint(d)) == 1 })
		if err != nil {
			failure = cmp.Or(failure, err)
			continue
		}
		t := newFCPTable(a)
		most := len(p.Lengths)
		if any || found {
			most = 2*t.fewest() + fcpTries
		}
		plan, tried, err := f.cut(ctx, t, most, than, work)
		if plan != nil && plan.Time < than {
			best, than = plan, plan.Time
		}
		found = found || tried
		if err != nil && best == nil {
			return nil, err
		}
	}
	if found {
		return best, nil
	}
	if failure == nil {
		failure = &IllegalError{Why: "no micro-batches whose groups of one degree each find place"}
	}
	return nil, failure
}

// nodesBind says whether groups of any degrees that the devices do for may find no place in nodes.
func (p *Problem) nodesBind() bool {
	return slices.ContainsFunc(p.Classes, func(c Class) bool { return c.One && bits.OnesCount(uint(c.Degree())) > 1 })
}

// cut tries numbers of micro-batches up to the most in both orders, for a plan that
// takes less than so long, and says whether there were any.
func (f FCP) cut(ctx context.Context, t *fcpTable, most int, than units.Seconds, work []units.Seconds) (best *Plan, tried bool, err error) {
	p := t.a.p
	given := make([]int, len(p.Lengths))
	for i := range given {
		given[i] = i
	}
	for _, order := range [][]int{descending(p.Lengths), given} {
		left := 2 * fcpTries
		for m := t.fewest(); m <= min(most, len(order)) && left > 0; m++ {
			if err := ctx.Err(); err != nil {
				if best == nil {
					return nil, tried, err
				}
				return best, tried, nil
			}
			parts := chunks(p.Lengths, order, m)
			least := t.atLeast(parts, work)
			if p.Fixed+together(least) >= than {
				left, tried = left-1, true // half a try: the ranks might not hold it
				continue
			}
			plan, held := f.plan(t, parts, least, than)
			if !held {
				continue
			}
			left, tried = left-2, true
			if plan != nil && plan.Time < than {
				best, than = plan, plan.Time
			}
		}
	}
	return best, tried, nil
}

// plan plans the micro-batches, which take at least so long each, as far as they may
// take less than so long together; false if the ranks do not hold one of them.
func (f FCP) plan(t *fcpTable, parts [][]int, least []units.Seconds, than units.Seconds) (*Plan, bool) {
	p := t.a.p
	t.used = 0
	sum, packed := p.Fixed+together(least), make([][]*atomic, len(parts))
	for i, part := range parts {
		groups := t.pack(part)
		if !t.admit(groups) {
			return nil, false
		}
		packed[i] = groups
		if sum >= than && len(p.Fleet) == 1 { // of unlike devices times are not known yet
			continue
		}
		if f.Programme {
			t.programme(groups)
		} else {
			t.allot(groups)
		}
		sum += p.cost(t.slowest(groups)) - least[i]
	}
	if sum >= than && len(p.Fleet) == 1 {
		return nil, true
	}
	plan := &Plan{}
	for _, groups := range packed {
		t.conserve(groups)
		shares := make([]share, len(groups))
		for i, g := range groups {
			shares[i] = share{g.at, slices.Clone(g.sequences)}
		}
		micro, ok := t.a.realise(shares)
		if !ok {
			return nil, false
		}
		plan.Micro = append(plan.Micro, micro)
	}
	Evaluate(p, plan)
	return plan, true
}

// atomic is a packed group of sequences that gets a degree as a whole.
type atomic struct {
	sequences []int
	least     int             // level of the least degree that holds them
	used      units.Tokens    // of that level's memory
	times     []units.Seconds // from the least level on, as far as asked
	at        int             // level given
}

// fcpTable prices sequences of the batch in groups of each level, by what is asked.
type fcpTable struct {
	a     *alike
	atoms []*atomic       // of the plan at hand and those before
	used  int             // of them
	least []units.Seconds // by micro-batch
	price []units.Seconds // by sequence and level; negative if not asked yet
}

func newFCPTable(a *alike) *fcpTable {
	t := &fcpTable{a: a, price: make([]units.Seconds, len(a.p.Lengths)*len(a.levels))}
	for i := range t.price {
		t.price[i] = -1
	}
	return t
}

// fewest is a number of micro-batches below which memory does not do.
func (t *fcpTable) fewest() int {
	tokens := units.Tokens(0)
	for _, s := range t.a.p.Lengths {
		tokens += s
	}
	capacity := t.a.capacity()
	return max(1, int((tokens+capacity-1)/capacity))
}

// time of a group on the ranks of a level.
func (t *fcpTable) time(g *atomic, level int) units.Seconds {
	for len(g.times) <= level-g.least {
		i := g.least + len(g.times)
		sum := t.a.levels[i].base
		for _, k := range g.sequences {
			sum += t.sequence(k, i)
		}
		g.times = append(g.times, sum)
	}
	return g.times[level-g.least]
}

func (t *fcpTable) sequence(k, level int) units.Seconds {
	v := &t.price[k*len(t.a.levels)+level]
	if *v < 0 {
		*v = t.a.time(level, t.a.p.Lengths[k])
	}
	return *v
}

// pack is stage 1, best fit decreasing: each sequence goes to the group with the
// least room left afterwards that holds it, or opens one of the least degree that
// does.
func (t *fcpTable) pack(sequences []int) []*atomic {
	order := sequences
	byLength := func(x, y int) int {
		return cmp.Or(cmp.Compare(t.a.p.Lengths[y], t.a.p.Lengths[x]), cmp.Compare(x, y))
	}
	if !slices.IsSortedFunc(order, byLength) {
		order = slices.Clone(sequences)
		slices.SortFunc(order, byLength)
	}
	var groups []*atomic
	for _, k := range order {
		s := t.a.p.Lengths[k]
		var best *atomic
		room := units.Tokens(0)
		for _, g := range groups {
			left := t.a.levels[g.least].cap - g.used - s
			if left >= 0 && (best == nil || left < room) {
				best, room = g, left
			}
		}
		if best == nil {
			best = t.atom(t.a.holds(s))
			groups = append(groups, best)
		}
		best.sequences = append(best.sequences, k)
		best.used += s
	}
	return groups
}

// atom is an empty group.
func (t *fcpTable) atom(least int) *atomic {
	if t.used == len(t.atoms) {
		t.atoms = append(t.atoms, &atomic{})
	}
	g := t.atoms[t.used]
	t.used++
	*g = atomic{sequences: g.sequences[:0], least: least, times: g.times[:0]}
	return g
}

// slowest is the time of the slowest group at the level given.
func (t *fcpTable) slowest(groups []*atomic) units.Seconds {
	most := units.Seconds(0)
	for _, g := range groups {
		most = max(most, t.time(g, g.at))
	}
	return most
}

// atLeast is what each of the micro-batches takes: as long as its sequences' work or its
// longest one where that is quickest. Without the work, nothing.
func (t *fcpTable) atLeast(parts [][]int, work []units.Seconds) []units.Seconds {
	p := t.a.p
	t.least = resize(t.least, len(parts))
	clear(t.least)
	for i, part := range parts {
		if work == nil {
			break
		}
		time, longest := units.Seconds(0), part[0]
		for _, k := range part {
			time += work[k]
			if p.Lengths[k] > p.Lengths[longest] {
				longest = k
			}
		}
		alone := never
		for i := range t.a.levels {
			alone = min(alone, t.a.levels[i].base+t.sequence(longest, i))
		}
		t.least[i] = p.cost(max(time, alone))
	}
	return t.least
}

func together(times []units.Seconds) units.Seconds {
	total := units.Seconds(0)
	for _, t := range times {
		total += t
	}
	return total
}

// admit reports whether the ranks do for the least degrees.
func (t *fcpTable) admit(groups []*atomic) bool {
	ranks := 0
	for _, g := range groups {
		ranks += t.a.levels[g.least].degree
	}
	return ranks <= t.a.devices
}

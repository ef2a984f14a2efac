package evenkeel

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// chains looks for layouts in which every group holds one stretch of the sequence: a
// group needs no keys of what comes behind it, so that keys and values go one way
// only, about half as many as round a ring, and none over the link that would close it.
// The groups share the sequence so that each is done at the same time, the first ones
// with more tokens and less attention.
//
// points are what the search has found; their groups are tried, and those that are
// the nodes of every pool, in orders that keep devices of a class together. What it
// costs is on top of the budget where little is left of that.
func (s *search) chains(points []point) (found []point) {
	if !s.unequal() {
		return nil // equal devices get equal shares
	}
	part := s.budget * chainPart
	s.budget = max(s.budget, s.work+part)
	end := s.work + part
	sortPoints(points)
	found = s.findChains(s.chainDrafts(points), s.work+part/2)
	for _, stage := range []struct {
		points int
		part   float64 // of what is left
		walk   func(x point, until float64) point
	}{
		{chainStarts, 0.5, s.stretch}, {chainStarts / 2, 0.5, s.stretch}, {chainStarts / 4, 1, s.descend},
	} {
		sortPoints(found)
		found = slices.CompactFunc(found, func(a, b point) bool { return a.t == b.t })
		found = found[:min(len(found), stage.points)]
		share := (end - s.work) * stage.part / float64(max(1, len(found)))
		for i, x := range found {
			found[i] = stage.walk(x, s.work+share)
		}
	}
	sortPoints(found)
	return found
}

// findChains is the best chain of each grouping that comes near the best layout. All are
// dealt in one way, those that promise most in the others and in other orders.
func (s *search) findChains(drafts []*draft, until float64) (found []point) {
	all := make([]chained, len(drafts))
	best := func(n int) []chained {
		slices.SortStableFunc(all, func(a, b chained) int { return cmp.Compare(a.best.t, b.best.t) })
		return all[:min(len(all), n)]
	}
	views := chainViews()
	for i, d := range drafts {
		all[i] = chained{d, s.est.chainOrders(d), point{t: math.Inf(1)}}
		s.judgeChain(&all[i], until, all[i].orders[0], views[0])
	}
	some := best(2 * chainStarts)
	for i := range some {
		s.judgeChain(&some[i], until, some[i].orders[0], views[1])
	}
	some = best(chainStarts / 2)
	for i := range some {
		s.judgeChain(&some[i], until, some[i].orders[0], views[2:]...)
		for _, order := range some[i].orders[1:] {
			s.judgeChain(&some[i], until, order, views[:2]...)
		}
	}
	for _, x := range all {
		if x.best.t <= s.fastest()*(1+chainGap) {
			found = append(found, x.best)
		}
	}
	return found
}

// judgeChain deals a chain out in an order, in each of the ways, until the work is done.
func (s *search) judgeChain(x *chained, until float64, order []int, views ...chainView) {
	for _, how := range views {
		if s.over() || s.work >= until {
			return
		}
		s.work += chainWork * float64(len(order))
		if d := s.est.chain(x.d, order, how); d != nil {
			if y := s.judgeDraft(d); y.t < x.best.t {
				x.best = y
			}
		}
	}
}

// chained is a grouping for chains, the orders to try and the best of them so far.
type chained struct {
	d      *draft
	orders [][]int
	best   point
}

// stretch moves tokens between the groups of a chain, first many: what a stretch should
// have jumps with what hides behind what. Then the own blocks may come first.
func (s *search) stretch(x point, until float64) point {
	w := &walk{search: s, at: x, until: until, gain: minGain}
	w.shifts(w.largestShift()*8, 4)
	if y := s.turned(w.at.d); y.t < w.at.t {
		return y
	}
	return w.at
}

// chainPart is the part of the budget for chains, at most half of it to find some and
// the rest to improve the best chainStarts, in the end a quarter of these. They are not
// slower than the best layout by more than chainGap. mostChained bounds the groups of a
// chain: one of many small groups sends as much as a ring inside the nodes that it crosses.
const (
	chainPart   = 1.0 / 4
	chainStarts = 8
	chainGap    = 1.0
	mostChained = 32
)

// chainDrafts lists groupings for chains, every group a kind of its own.
func (s *search) chainDrafts(points []point) []*draft {
	var all []*draft
	seen := map[string]bool{}
	add := func(groups [][]int) {
		if len(groups) < 2 || len(groups) > mostChained || !s.p.AllExchangeable(groups) {
			return
		}
		d, keys := s.est.sorted(groups)
		if key := draftKey(d, keys); !seen[key] {
			seen[key] = true
			s.est.setShares(d, len(groups), 1, false)
			all = append(all, d.apart())
		}
	}
	for _, x := range points[:min(len(points), lateStarts)] {
		var groups [][]int
		for _, at := range x.d.ring {
			groups = append(groups, x.d.members(at))
		}
		add(groups)
	}
	sets := s.est.fastestNodes()
	for _, pool := range s.est.pools() {
		sets = append(sets, pool.ranks)
	}
	sets = slices.DeleteFunc(sets, func(ranks []int) bool { return s.est.leastTime(ranks) > s.fastest() })
	for _, parts := range chainParts() {
		for _, ranks := range sets {
			add(s.est.nodeGroups(ranks, parts))
		}
	}
	return all
}

// fastestNodes lists the ranks of the fastest two nodes, the fastest three and so on.
func (e *estimator) fastestNodes() [][]int {
	nodes := make([][]int, len(e.p.Job.Cluster.Nodes))
	for r, k := range e.p.Ranks {
		nodes[k.Node] = append(nodes[k.Node], r)
	}
	s := max(1, e.p.Job.SeqLen/2)
	speed := func(ranks []int) float64 {
		sum := 0.0
		for _, r := range ranks {
			sum += 1 / e.m.LinearTime(e.m.TypeOf[r], s)
		}
		return sum
	}
	slices.SortStableFunc(nodes, func(a, b []int) int { return cmp.Compare(speed(b), speed(a)) })
	var sets [][]int
	for n := 2; n <= min(len(nodes), mostChained); n++ {
		ranks := slices.Concat(nodes[:n]...)
		slices.Sort(ranks)
		sets = append(sets, ranks)
	}
	return sets
}

// chainParts are how many groups the ranks of a node make: one of the fastest ones,
// and one of the others. More groups have smaller blocks, of which more hides behind
// computing; the last group of a chain gains nothing by that.
func chainParts() [][2]int { return [][2]int{{1, 1}, {1, 2}, {1, 4}, {2, 2}, {2, 1}} }

// nodeGroups makes the ranks of each node one group or several.
func (e *estimator) nodeGroups(ranks []int, parts [2]int) [][]int {
	s := max(1, e.p.Job.SeqLen/2)
	fastest := math.Inf(1)
	for _, r := range ranks {
		fastest = min(fastest, e.m.LinearTime(e.m.TypeOf[r], s))
	}
	var groups [][]int
	for i := 0; i < len(ranks); {
		k := i + 1
		for k < len(ranks) && e.together(ranks[i], ranks[k]) {
			k++
		}
		n := parts[0]
		if e.m.LinearTime(e.m.TypeOf[ranks[i]], s) > fastest {
			n = parts[1]
		}
		groups = append(groups, stripes([][]int{ranks[i:k]}, n)...)
		i = k
	}
	return groups
}

// apart makes every group of a draft a kind of its own. Whether rings gain by taking turns
// is another question then.
func (d *draft) apart() *draft {
	x := &draft{Schedule: costmodel.Schedule{OwnLast: d.OwnLast}, lead: d.lead}
	for _, k := range d.kinds {
		for _, g := range k.groups {
			x.ring = append(x.ring, slot{len(x.kinds), 0})
			one := k
			one.groups, one.total = [][]int{g}, k.total/units.Tokens(len(k.groups))
			x.kinds = append(x.kinds, one)
		}
	}
	return x
}

// chainOrders lists orders of a draft's kinds, by their places in it, that keep kinds
// of the same classes together, the fastest last in the first: of few sets of classes
// all orders, else that and its reverse.
func (e *estimator) chainOrders(d *draft) [][]int {
	sets, kind := d.classSets()
	orders := e.byPace(sets)
	if len(sets) <= fewChained {
		orders = append(orders, ordersOf(len(sets))...)
	}
	var all, seen [][]int
	for _, p := range orders {
		if slices.ContainsFunc(seen, func(o []int) bool { return slices.Equal(o, p) }) {
			continue
		}
		seen = append(seen, p)
		place := make([]int, len(sets))
		for i, x := range p {
			place[x] = i
		}
		order := countTo(len(kind))
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(place[kind[a]], place[kind[b]]) })
		all = append(all, order)
	}
	return all
}

// classSets lists the sets of classes that kinds consist of, and which of them each does.
func (d *draft) classSets() (sets [][]int, of []int) {
	of = make([]int, len(d.kinds))
	for i, k := range d.kinds {
		set := slices.Compact(slices.Sorted(slices.Values(k.class)))
		if of[i] = slices.IndexFunc(sets, func(s []int) bool { return slices.Equal(s, set) }); of[i] < 0 {
			of[i] = len(sets)
			sets = append(sets, set)
		}
	}
	return sets, of
}

// byPace orders sets of classes by their slowest one, the fastest last, and the other way
// round.
func (e *estimator) byPace(sets [][]int) [][]int {
	s := max(1, e.p.Job.SeqLen/2)
	slowest := func(set int) float64 {
		most := 0.0
		for _, c := range sets[set] {
			most = max(most, e.m.LinearTime(e.dev[c], s))
		}
		return most
	}
	rising := countTo(len(sets))
	slices.SortStableFunc(rising, func(a, b int) int { return cmp.Compare(slowest(b), slowest(a)) })
	falling := slices.Clone(rising)
	slices.Reverse(falling)
	return [][]int{rising, falling}
}

// fewChained is up to how many sets of classes all orders are tried.
const fewChained = 4

// ordersOf lists all orders of 0 to n-1, the rising one first.
func ordersOf(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, p := range ordersOf(n - 1) {
		for at := n - 1; at >= 0; at-- {
			all = append(all, slices.Insert(slices.Clone(p), at, n-1))
		}
	}
	return all
}

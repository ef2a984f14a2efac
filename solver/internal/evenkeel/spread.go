package evenkeel

import (
	"cmp"
	"math"
	"slices"
)

// further looks at layouts that the search has passed over, on top of it, so that what it
// came to only gets better: with shares that are even at the borders of nodes
// (spreadShares), and of further pools of ranks. Equal devices keep the layout that is
// known.
func (s *search) further(inTwos bool, effort float64) {
	if s.Done() || s.fastest() == 0 || !s.unequal() {
		return
	}
	options := s.furtherOptions()
	for _, twos := range []bool{false, true} {
		if !twos || inTwos {
			s.furtherOf(options, twos, budgetOf(len(s.p.Ranks))*furtherPart*effort)
		}
	}
}

// furtherOf simulates further options, their micro-batches in twos or not, and improves
// the best, with a budget of its own.
func (s *search) furtherOf(options []option, twos bool, budget float64) {
	s.est.twoBatch = twos
	s.work, s.budget = 0, budget
	if twos {
		options = s.inTwosOf(options)
	}
	points := s.simulateBest(newBestFirst(options))
	sortPoints(points)
	points = slices.DeleteFunc(points, func(x point) bool { return math.IsInf(x.t, 1) })
	if len(points) > 0 {
		s.polish(s.improve(points))
	}
}

// furtherPart is what is added to the budget for further layouts, and mostSpread how many
// groupings, of those that promise most, are looked at with spread shares.
const (
	furtherPart = 0.1
	mostSpread  = 300
)

// furtherOptions lists them by rising estimate.
func (s *search) furtherOptions() []option {
	best := s.fastest()
	pools := s.est.furtherPools(s.pools)
	var all []option
	for i := range pools {
		all, _ = s.optionsOf(&pools[i], groupingsOfPart, all, best)
	}
	s.tryOtherHeads(all, best)
	for _, x := range append(slices.Clone(all), s.options[:min(len(s.options), mostSpread)]...) {
		if s.Late() {
			break
		}
		if y, t := s.spread(x.d, tooLong*best-x.pool.tax); y != nil {
			all = append(all, s.option(y, t, x.pool))
		}
	}
	slices.SortStableFunc(all, func(a, b option) int { return cmp.Compare(a.rank, b.rank) })
	return all
}

// spreads are how much the paces of nodes count in their shares of a group: not at all,
// so that what crosses their borders is as even as it can be, in part, or in full.
func spreads() []float64 { return []float64{0, 0.5, 1} }

// spread is a draft with the best of these shares and what it is estimated to take; nil if
// no groups reach over nodes or all take longer than a limit.
func (s *search) spread(d *draft, limit float64) (best *draft, least float64) {
	if !slices.ContainsFunc(d.kinds, s.est.overNodes) {
		return nil, 0
	}
	least = math.Inf(1)
	for _, power := range spreads() {
		x := d.clone()
		s.est.spreadShares(x, len(d.ring), power)
		if t := s.est.solveWithin(x, nil, limit); t < least {
			best, least = x, t
		}
	}
	return best, least
}

// overNodes says whether the groups of a kind reach beyond a node.
func (e *estimator) overNodes(k groupKind) bool {
	first := k.groups[0][0]
	return slices.ContainsFunc(k.groups[0], func(r int) bool { return !e.together(first, r) })
}

// spreadShares gives the groups of a draft that reach over several nodes heads and tokens
// node by node, of both the same share. Of the rows of queries, keys and values a node with
// a share x of tokens and y of heads sends x (1 - y) to others and gets y (1 - x): where
// ports or network cards are what a group waits for, shares by the paces of linear work
// and of attention, which differ, let it wait longer than even ones. A node's share is as
// its pace of attention to a power; heads that share keys and values stay on one node
// where there are enough of these.
func (e *estimator) spreadShares(d *draft, n int, power float64) {
	s, q := float64(e.p.Job.SeqLen)/float64(n), e.p.Job.Model.QHeads
	for i := range d.kinds {
		k := &d.kinds[i]
		if !e.overNodes(*k) {
			continue
		}
		own := e.pacesOf(k, n, s)
		at, slow := e.nodesOf(k), make([]float64, 0, len(k.class))
		for m, node := range at {
			if node == len(slow) {
				slow = append(slow, 0)
			}
			slow[node] += 1 / own.perHead[m]
		}
		for node := range slow {
			slow[node] = math.Pow(slow[node], -power)
		}
		k.heads, k.weight = make([]int, len(k.class)), make([]float64, len(k.class))
		unit := 1
		if m := e.p.Job.Model; m.KVHeads >= len(slow) {
			unit = q / m.KVHeads
		}
		for node, h := range dealHeads(q, unit, slow) {
			e.dealInNode(k, at, node, h, own)
		}
	}
}

// nodesOf numbers the nodes of a kind's members by their first ones.
func (e *estimator) nodesOf(k *groupKind) []int {
	var seen []int
	at := make([]int, len(k.class))
	for m, r := range k.groups[0] {
		node := e.p.Ranks[r].Node
		if at[m] = slices.Index(seen, node); at[m] < 0 {
			at[m] = len(seen)
			seen = append(seen, node)
		}
	}
	return at
}

// dealInNode gives the members of a kind on a node so many heads and as large a share of
// the tokens.
func (e *estimator) dealInNode(k *groupKind, at []int, node, heads int, own memberPaces) {
	var slow []float64
	var members []int
	all := 0.0
	for m := range at {
		if at[m] == node {
			members, slow, all = append(members, m), append(slow, own.perHead[m]), all+own.rate[m]
		}
	}
	for i, h := range dealHeads(heads, 1, slow) {
		m := members[i]
		k.heads[m], k.weight[m] = h, float64(heads)/float64(e.p.Job.Model.QHeads)*own.rate[m]/all
	}
}

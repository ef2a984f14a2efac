package solver

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
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
	all := s.budget * chainPart
	s.budget = max(s.budget, s.work+all)
	end := s.work + all
	until := s.work + all/2
	judge := func(x *chained, order []int, views ...chainView) {
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
	sortPoints(points)
	var tried []chained
	for _, d := range s.chainDrafts(points) {
		x := chained{d, s.est.chainOrders(d), point{t: math.Inf(1)}}
		judge(&x, x.orders[0], chainViews()[0])
		tried = append(tried, x)
	}
	slices.SortStableFunc(tried, func(a, b chained) int { return cmp.Compare(a.best.t, b.best.t) })
	// Those that promise most are looked at in other ways.
	views := chainViews()
	best := func(n int) []chained {
		slices.SortStableFunc(tried, func(a, b chained) int { return cmp.Compare(a.best.t, b.best.t) })
		return tried[:min(len(tried), n)]
	}
	some := best(2 * chainStarts)
	for i := range some {
		judge(&some[i], some[i].orders[0], views[1])
	}
	some = best(chainStarts / 2)
	for i := range some {
		judge(&some[i], some[i].orders[0], views[2:]...)
		for _, order := range some[i].orders[1:] {
			judge(&some[i], order, views[:2]...)
		}
	}
	for _, x := range tried {
		found = append(found, x.best)
	}
	found = slices.DeleteFunc(found, func(x point) bool { return x.t > float64(s.time)*(1+chainGap) })
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

// chainView is a way to deal tokens to the groups of a chain.
type chainView struct {
	wires float64 // how many times as long as they are wires are taken to be
	part  float64 // of what they have time for the groups before the last get; 0: what those behind them have no room for
}

// chainViews are those that are tried. None is right everywhere: in a chain of few long
// stretches some of what wires carry hides behind nothing, and the less the first groups
// have the less the others wait for.
func chainViews() []chainView { return []chainView{{0, 1}, {1, 0.5}, {1, 1}, {0, 0}} }

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
		if len(groups) < 2 || len(groups) > mostChained || !s.p.allExchangeable(groups) {
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
	sets = slices.DeleteFunc(sets, func(ranks []int) bool { return s.est.leastTime(ranks) > float64(s.time) })
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
	for r, k := range e.p.ranks {
		nodes[k.Node] = append(nodes[k.Node], r)
	}
	s := max(1, e.p.Job.SeqLen/2)
	speed := func(ranks []int) float64 {
		sum := 0.0
		for _, r := range ranks {
			sum += 1 / e.m.linearTime(e.m.dev[r], s)
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
		fastest = min(fastest, e.m.linearTime(e.m.dev[r], s))
	}
	var groups [][]int
	for i := 0; i < len(ranks); {
		k := i + 1
		for k < len(ranks) && e.together(ranks[i], ranks[k]) {
			k++
		}
		n := parts[0]
		if e.m.linearTime(e.m.dev[ranks[i]], s) > fastest {
			n = parts[1]
		}
		groups = append(groups, stripes([][]int{ranks[i:k]}, n)...)
		i = k
	}
	return groups
}

// apart makes every group of a draft a kind of its own.
func (d *draft) apart() *draft {
	x := &draft{ownLast: d.ownLast}
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
	n := len(d.kinds)
	kind := make([]int, n) // which set of classes
	var sets [][]int
	for i, k := range d.kinds {
		of := slices.Compact(slices.Sorted(slices.Values(k.class)))
		at := slices.IndexFunc(sets, func(o []int) bool { return slices.Equal(o, of) })
		if at < 0 {
			at = len(sets)
			sets = append(sets, of)
		}
		kind[i] = at
	}
	s := max(1, e.p.Job.SeqLen/2)
	slowest := func(set int) float64 {
		most := 0.0
		for _, c := range sets[set] {
			most = max(most, e.m.linearTime(e.dev[c], s))
		}
		return most
	}
	rising := countTo(len(sets))
	slices.SortStableFunc(rising, func(a, b int) int { return cmp.Compare(slowest(b), slowest(a)) })
	falling := slices.Clone(rising)
	slices.Reverse(falling)
	orders := [][]int{rising, falling}
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
		order := countTo(n)
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(place[kind[a]], place[kind[b]]) })
		all = append(all, order)
	}
	return all
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

// chain gives a draft of single groups one stretch each, in an order, so that all
// have about as much to compute or wires that are as busy, in a view of these; nil if
// they cannot hold the sequence, or some of them can by themselves. Own blocks come last: what gradients take to come home is longer than
// what the first block takes.
func (e *estimator) chain(d *draft, order []int, how chainView) *draft {
	x := d.clone()
	x.ownLast, x.ring = true, nil
	n, total := len(order), float64(e.p.Job.SeqLen)
	cards := e.cardsOf(x)
	times, caps := make([]stretchTime, n), make([]float64, n)
	for i, k := range order {
		x.kinds[k].tier = i
		x.ring = append(x.ring, slot{k, 0})
		in, out := e.chainWire(x, order, i-1, how.wires), e.chainWire(x, order, i, how.wires)
		times[i], caps[i] = e.stretchTime(&x.kinds[k], e.exchanged(&x.kinds[k], k, cards), in, out), total
	}
	each := levelChain(total, times, caps, how.part)
	if each == nil {
		return nil
	}
	longest := slices.Max(each)
	for i, k := range order {
		caps[i] = e.room(&x.kinds[k], total, longest, n, x.ranks())
	}
	if each = levelChain(total, times, caps, how.part); each == nil {
		return nil
	}
	left := e.p.Job.SeqLen
	for i, k := range order {
		s := min(left, units.Tokens(math.Round(each[i]/float64(e.p.Block)))*e.p.Block)
		if i == n-1 {
			s = left
		}
		if s == 0 {
			return nil
		}
		x.kinds[k].total = s
		left -= s
	}
	return x
}

// chainWire is what keys and values of a token take from the i-th group of a chain to
// the next, and its gradients; nothing where there is none.
func (e *estimator) chainWire(d *draft, order []int, i int, weight float64) blockTime {
	if i < 0 || i+1 == len(order) {
		return blockTime{}
	}
	from, to := &d.kinds[order[i]], &d.kinds[order[i+1]]
	m, block := e.p.Job.Model, float64(e.p.Job.SeqLen)/float64(len(order))
	most := 0
	for _, h := range slices.Concat(from.heads, to.heads) {
		most = max(most, m.KVHeadsOf(0, h))
	}
	elements, link := block*2*float64(m.HeadDim)*float64(most), e.m.network
	if a, b := from.groups[0][0], to.groups[0][0]; e.together(a, b) {
		link = e.m.inside[e.p.ranks[a].Node]
	} else {
		elements *= max(e.crowd(from), e.crowd(to))
	}
	return blockTime{
		weight * link.seconds(op.KindSendRecv, elements*float64(e.p.Job.DType.Size())) / block,
		weight * link.seconds(op.KindSendRecv, 4*elements) / block,
	}
}

// stretchTime is what a layer takes a group of a chain with s tokens behind so many
// others, of which the group before it has the last ones.
type stretchTime func(s, before, last float64) float64

// stretchTime is that of a kind whose all-to-alls carry v. Its attention is that of s
// tokens alone, and of the rectangle before them at the same rate, or as long as the
// busier of its ports takes: with keys and values of all before it and, unless it is
// the last, of these and its own on their way out; backward the gradients of all before
// it go out, and its own come home. While it waits for the first block it has nothing
// to compute but, forward, its own.
func (e *estimator) stretchTime(k *groupKind, v volume, in, out blockTime) stretchTime {
	lots := k.lots()
	var law linkLaw
	if len(k.class) > 1 {
		law = e.toAllLaw(k)
	}
	return func(s, before, last float64) float64 {
		linear, att := 0.0, blockTime{}
		on := e.spanOf(s, 1)
		for i := range lots {
			l := &lots[i]
			linear = max(linear, e.m.linearTime(e.dev[l.class], tokensUp(s*l.weight)))
			a := e.attentionOn(e.dev[l.class], l.heads, 1, on)
			att.forward, att.backward = max(att.forward, a.forward), max(att.backward, a.backward)
		}
		all := before + s
		compute := blockTime{att.forward * (1 + 2*before/s), att.backward * (1 + 2*before/s)}
		late := in.forward * last
		compute.forward += max(0, late-att.forward)
		compute.backward += late
		forward := max(compute.forward, in.forward*before, out.forward*all)
		backward := max(compute.backward, in.forward*before+out.backward*s, out.forward*all+in.backward*before)
		t := linear + e.m.forward*forward + backward
		if len(k.class) > 1 {
			t += e.exchange(len(k.class), law, v, s)
		}
		return t
	}
}

// levelChain splits tokens over groups, the stretch of each behind those of the ones
// before, so that all are done at the same time but for those that are full; nil if
// there is too little room. All but the last get a part of what they have time for,
// where that is 0 what those behind them have no room for.
func levelChain(total float64, times []stretchTime, caps []float64, part float64) []float64 {
	each := make([]float64, len(times))
	if part == 0 {
		left := total
		for i := range slices.Backward(each) {
			each[i] = min(left, caps[i])
			left -= each[i]
		}
		if left > 0 {
			return nil
		}
		return each
	}
	deal := func(theta float64) float64 {
		before, last := 0.0, 0.0
		for i, t := range times {
			each[i] = longestWithin(theta, min(caps[i], total-before), func(s float64) float64 { return t(s, before, last) })
			if i < len(times)-1 {
				each[i] *= part
			}
			last = each[i]
			before += last
		}
		return before
	}
	room, hi := 0.0, 0.0
	for i, t := range times {
		room += min(caps[i], total)
		even := total / float64(len(times))
		hi = max(hi, t(even, even*float64(i), even*float64(min(1, i))))
	}
	if room < total {
		return nil
	}
	lo := 0.0
	for deal(hi) < total*(1-1e-9) && !math.IsInf(hi, 1) {
		lo, hi = hi, 2*hi
	}
	for range chainSteps {
		if mid := (lo + hi) / 2; deal(mid) < total*(1-1e-9) {
			lo = mid
		} else {
			hi = mid
		}
	}
	deal(hi)
	return each
}

// longestWithin is about the most tokens, up to some, that take no longer than theta.
// Times mostly rise faster than tokens, so that as many as theta is of the time of the
// most take no longer.
func longestWithin(theta, most float64, t func(s float64) float64) float64 {
	if most < 1 {
		return max(0, most)
	}
	all := t(most)
	if all <= theta {
		return most
	}
	lo, hi := most*theta/all, most
	for t(lo) > theta { // or so few that launches count
		if lo, hi = lo/2, lo; lo < 1 {
			return 0
		}
	}
	for range chainSteps {
		if mid := math.Sqrt(lo * hi); t(mid) <= theta {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// chainSteps of bisection leave an error of about a hundredth: less than what the
// estimate of times is off by, and what is left a descent finds.
const chainSteps = 8

// chainWork is what a group of a chain costs, in units of search.work.
const chainWork = 600

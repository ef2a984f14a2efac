package evenkeel

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
)

// chainView is a way to deal tokens to the groups of a chain.
type chainView struct {
	wires bool    // count
	part  float64 // of what they have time for the groups before the last get; 0: what those behind them have no room for
}

// chainViews are those that are tried. None is right everywhere: in a chain of few long
// stretches some of what wires carry hides behind nothing, and the less the first groups
// have the less the others wait for.
func chainViews() []chainView { return []chainView{{false, 1}, {true, 0.5}, {true, 1}, {false, 0}} }

// chain gives a draft of single groups one stretch each, in an order, so that all
// have about as much to compute or wires that are as busy, in a view of these; nil if
// they cannot hold the sequence, or some of them can by themselves. Own blocks come
// last, which hides how gradients come home.
func (e *estimator) chain(d *draft, order []int, how chainView) *draft {
	x := d.clone()
	x.OwnLast, x.ring = true, nil
	n, total := len(order), float64(e.p.Job.SeqLen)
	cards := e.cardsOf(x)
	times, caps := make([]stretchTime, n), make([]float64, n)
	for i, k := range order {
		x.kinds[k].tier = i
		x.ring = append(x.ring, slot{k, 0})
		var in, out analytic.Times
		if how.wires {
			in, out = e.chainWire(x, order, i-1), e.chainWire(x, order, i)
		}
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
func (e *estimator) chainWire(d *draft, order []int, i int) analytic.Times {
	if i < 0 || i+1 == len(order) {
		return analytic.Times{}
	}
	from, to := &d.kinds[order[i]], &d.kinds[order[i+1]]
	m, block := e.p.Job.Model, float64(e.p.Job.SeqLen)/float64(len(order))
	most := 0
	for _, h := range slices.Concat(from.heads, to.heads) {
		most = max(most, m.KVHeadsOf(0, h))
	}
	elements, link := block*2*float64(m.HeadDim)*float64(most), e.m.Network
	if a, b := from.groups[0][0], to.groups[0][0]; e.together(a, b) {
		link = e.m.Inside[e.p.Ranks[a].Node]
	} else {
		elements *= max(e.crowd(from), e.crowd(to))
	}
	return analytic.Times{
		Forward:  link.Seconds(op.KindSendRecv, elements*float64(e.p.Job.DType.Size())) / block,
		Backward: link.Seconds(op.KindSendRecv, 4*elements) / block,
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
// to compute but its own; backward that block is there when it has nothing else to do.
func (e *estimator) stretchTime(k *groupKind, v volume, in, out analytic.Times) stretchTime {
	lots := k.lots()
	var law analytic.Link
	if len(k.class) > 1 {
		law = e.toAllLaw(k)
	}
	return func(s, before, last float64) float64 {
		linear, att := 0.0, analytic.Times{}
		on := e.spanOf(s, 1)
		for i := range lots {
			l := &lots[i]
			linear = max(linear, e.m.LinearTime(e.dev[l.class], tokensUp(s*l.weight)))
			a := e.attentionOn(e.dev[l.class], l.heads, 1, on)
			att.Forward, att.Backward = max(att.Forward, a.Forward), max(att.Backward, a.Backward)
		}
		all := before + s
		compute := analytic.Times{Forward: att.Forward * (1 + 2*before/s), Backward: att.Backward * (1 + 2*before/s)}
		compute.Forward += max(0, in.Forward*last-att.Forward)
		forward := max(compute.Forward, in.Forward*before, out.Forward*all)
		backward := max(compute.Backward, in.Forward*before+out.Backward*s, out.Forward*all+in.Backward*before)
		t := linear + e.m.Forwards*forward + backward
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
	if part == 0 {
		return lastFirst(total, caps)
	}
	room, hi := 0.0, 0.0 // hi is what even stretches take
	for i, t := range times {
		room += min(caps[i], total)
		even := total / float64(len(times))
		hi = max(hi, t(even, even*float64(i), even*float64(min(1, i))))
	}
	if room < total {
		return nil
	}
	each, deal := make([]float64, len(times)), chainDeal{total, times, caps, part}
	enough := func(theta float64) bool { return !(deal.within(theta, each) < total*(1-1e-9)) }
	lo := 0.0
	for !enough(hi) && !math.IsInf(hi, 1) {
		lo, hi = hi, 2*hi
	}
	for range chainSteps {
		if mid := (lo + hi) / 2; enough(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	deal.within(hi, each)
	return each
}

// lastFirst gives the groups from the last one on as many tokens as they have room for;
// nil if there is too little.
func lastFirst(total float64, caps []float64) []float64 {
	each, left := make([]float64, len(caps)), total
	for i := range slices.Backward(each) {
		each[i] = min(left, caps[i])
		left -= each[i]
	}
	if left > 0 {
		return nil
	}
	return each
}

// chainDeal is what levelChain deals: tokens, to groups that take so long and have so much
// room, where all but the last get a part of what they have time for.
type chainDeal struct {
	total float64
	times []stretchTime
	caps  []float64
	part  float64
}

// within gives each group, from the first one on, the tokens that take it theta. It returns
// how many they are in all.
func (d *chainDeal) within(theta float64, each []float64) float64 {
	before, last := 0.0, 0.0
	for i, t := range d.times {
		each[i] = longestWithin(theta, min(d.caps[i], d.total-before), func(s float64) float64 { return t(s, before, last) })
		if i < len(d.times)-1 {
			each[i] *= d.part
		}
		last = each[i]
		before += last
	}
	return before
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

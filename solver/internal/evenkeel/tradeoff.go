package evenkeel

import (
	"math"
	"slices"
	"sort"
)

// tradeoff exchanges heads for tokens inside the groups of a kind. A rank's
// memory holds both, so that where memory binds, heads that balance attention
// leave a device too little room for the tokens that balance the linear work, and
// no single move of either leads from one balance to the other: the slowest
// members of a class must all lose a head at once, and who takes it must lose
// tokens with it.
//
// For a limit theta on attention, member d computes at most H_d(theta) heads; for
// a limit on linear work it takes as many tokens as its pace allows and as it has
// room for beside h heads. What it has room for is concave in h, for memory is a
// maximum of planes in tokens and heads. So dealing heads one by one to whoever
// loses the least room leaves most room of all ways to deal them, and the least
// limit on linear work for theta follows by bisection. Of theta there are few:
// what some member takes over some number of heads.
type tradeoff struct {
	e             *estimator
	kind          *groupKind
	s, other      float64 // tokens of a group, and of every other on average
	widest        float64 // tokens of the longest other
	groups, ranks int
	heads         int
	classes       []tradeoffClass
	of            []int // of each member
}

// tradeoffClass is a class of members: what so many heads take, how many tokens
// fit beside them, both from 0 heads on as far as somebody asked, and tokens a
// second of linear work.
type tradeoffClass struct {
	class, count int
	took, room   []float64
	rate         float64
	limit, dealt int // by deal: most heads of a member, and those of all
}

// newTradeoff prepares a kind for groups of s tokens among n, with blocks of
// `widest` tokens passing by.
func (e *estimator) newTradeoff(k *groupKind, n int, s, widest float64, ranks int) *tradeoff {
	m := e.p.Job.Model
	t := &tradeoff{
		e: e, kind: k, s: s, other: max(1, (float64(e.p.Job.SeqLen)-s)/float64(max(1, n-1))), widest: widest, groups: n, ranks: ranks,
		heads: m.QHeads,
	}
	own := max(1, tokensUp(s/float64(len(k.class))))
	for _, c := range k.class {
		at := slices.IndexFunc(t.classes, func(x tradeoffClass) bool { return x.class == c })
		if at < 0 {
			at = len(t.classes)
			t.classes = append(t.classes, tradeoffClass{class: c, rate: float64(own) / e.m.LinearTime(e.dev[c], own)})
		}
		t.classes[at].count++
		t.of = append(t.of, at)
	}
	return t
}

// attention is the seconds that h heads take a member of a class.
func (t *tradeoff) attention(c, h int) float64 {
	x := &t.classes[c]
	for len(x.took) <= t.heads {
		x.took = append(x.took, -1)
	}
	if x.took[h] < 0 {
		a := t.e.attention(t.e.dev[x.class], h, t.groups, t.s, t.other)
		x.took[h] = t.e.m.Forwards*a.Forward + a.Backward
	}
	return x.took[h]
}

// rooms is how many tokens a member of a class has room for, by the heads it has
// them beside. Where the middle lies on the line between both
// ends, all between does.
func (t *tradeoff) rooms(c int) []float64 {
	x := &t.classes[c]
	if x.room != nil {
		return x.room
	}
	x.room = make([]float64, t.heads+1)
	at := func(h int, upTo float64) float64 {
		return t.e.roomOf(lot{class: x.class, heads: h}, min(t.s, upTo), setting{len(t.of), t.s, t.widest, t.groups - 1, t.ranks})
	}
	var between func(lo, hi int)
	between = func(lo, hi int) {
		if hi-lo < 2 {
			return
		}
		mid := (lo + hi) / 2
		line := func(h int) float64 {
			return x.room[lo] + (x.room[hi]-x.room[lo])*float64(h-lo)/float64(hi-lo)
		}
		x.room[mid] = at(mid, x.room[lo]+2*float64(t.e.p.Block))
		if x.room[hi] > 0 && math.Abs(x.room[mid]-line(mid)) <= 4*float64(t.e.p.Block) || x.room[lo] == 0 {
			for h := lo + 1; h < hi; h++ {
				x.room[h] = line(h)
			}
			return
		}
		between(lo, mid)
		between(mid, hi)
	}
	x.room[0] = at(0, t.s)
	x.room[t.heads] = at(t.heads, x.room[0]+2*float64(t.e.p.Block))
	between(0, t.heads)
	return x.room
}

// most is how many heads a class computes within theta: more take longer.
func (t *tradeoff) most(c int, theta float64) int {
	if math.IsInf(theta, 1) {
		return t.heads
	}
	return sort.Search(t.heads, func(h int) bool { return t.attention(c, h+1) > theta })
}

// next is the least time over theta that some heads take some member; +Inf if
// there is none.
func (t *tradeoff) next(theta float64) float64 {
	least := math.Inf(1)
	for c := range t.classes {
		if h := t.most(c, theta); h < t.heads {
			least = min(least, t.attention(c, h+1))
		}
	}
	return least
}

// first is the least theta within which all heads can be computed.
func (t *tradeoff) first() float64 {
	perHead, even := make([]float64, len(t.of)), (t.heads+len(t.of)-1)/len(t.of)
	for m, c := range t.of {
		perHead[m] = t.attention(c, even)
	}
	return t.slowest(dealHeads(t.heads, 1, perHead))
}

// deal gives out all heads within theta and says how many tokens the members
// hold beside them within `linear` seconds; less than 0 if there are heads left.
// Members of a class get equal heads, but for one.
func (t *tradeoff) deal(theta, linear float64) float64 {
	for c := range t.classes {
		t.classes[c].limit, t.classes[c].dealt = t.most(c, theta), 0
		t.rooms(c)
	}
	for range t.heads {
		best, loss, busy := -1, math.Inf(1), math.Inf(1)
		for c := range t.classes {
			x := &t.classes[c]
			h := x.dealt / x.count
			if h == x.limit || x.room[h] == 0 {
				continue
			}
			full := linear * x.rate
			l, b := min(full, x.room[h])-min(full, x.room[h+1]), float64(h+1)/x.rate
			if l < loss*(1-1e-9)-1e-9 || l <= loss && b < busy {
				best, loss, busy = c, l, b
			}
		}
		if best < 0 {
			return -1
		}
		t.classes[best].dealt++
	}
	held := 0.0
	for c := range t.classes {
		x := &t.classes[c]
		h, more := x.dealt/x.count, x.dealt%x.count
		held += float64(x.count-more) * min(linear*x.rate, x.room[h])
		if more > 0 {
			held += float64(more) * min(linear*x.rate, x.room[h+1])
		}
	}
	t.e.spend(float64(t.heads) / 4)
	return held
}

// dealt is the heads of each member, as deal left them.
func (t *tradeoff) dealt() []int {
	heads, nth := make([]int, len(t.of)), make([]int, len(t.classes))
	for m, c := range t.of {
		x := &t.classes[c]
		heads[m] = x.dealt / x.count
		if nth[c] < x.dealt%x.count {
			heads[m]++
		}
		nth[c]++
	}
	return heads
}

// capacity is how many tokens the members hold at most beside all heads.
func (t *tradeoff) capacity() float64 {
	return t.deal(math.Inf(1), math.Inf(1))
}

// memberShares are heads and tokens of the members and what they take.
type memberShares struct {
	heads  []int
	weight []float64
	linear float64 // seconds of linear work, the slowest member
}

// front is the Pareto front of the limits of attention and of linear work: the shares of
// heads and tokens by rising limit of attention, until more of it does not shorten linear
// work.
func (t *tradeoff) front() []memberShares {
	pace := 0.0
	for _, c := range t.of {
		pace += t.classes[c].rate
	}
	free := t.s / pace // seconds of linear work where memory does not bind
	var all []memberShares
	for theta := t.first(); !math.IsInf(theta, 1); theta = t.next(theta) {
		if t.deal(theta, math.Inf(1)) < t.s {
			continue
		}
		linear := free
		if t.deal(theta, free) < t.s*(1-tradeoffSlack) {
			linear = t.linear(theta, free)
		}
		if n := len(all); n == 0 || linear < all[n-1].linear*(1-tradeoffSlack) {
			all = append(all, t.sharesWithin(linear, t.dealt()))
		}
		if linear <= free || len(all) == longestFront {
			break
		}
	}
	return all
}

// tradeoffSlack is the relative error of a limit on linear work, and longestFront is
// how many shares a front lists.
const (
	tradeoffSlack = 2e-3
	longestFront  = 12
)

// linear is the least limit on linear work beside theta, from `free` on, for
// which there are heads that leave room; they are dealt.
func (t *tradeoff) linear(theta, free float64) float64 {
	lo, hi := free, 2*free
	for t.deal(theta, hi) < t.s*(1-tradeoffSlack) {
		lo, hi = hi, 2*hi
		if hi > 1e4*free {
			break
		}
	}
	for hi > lo*(1+tradeoffSlack) {
		if mid := (lo + hi) / 2; t.deal(theta, mid) < t.s {
			lo = mid
		} else {
			hi = mid
		}
	}
	t.deal(theta, hi)
	return hi
}

func (t *tradeoff) sharesWithin(linear float64, heads []int) memberShares {
	x := memberShares{heads: heads, linear: linear}
	for m, c := range t.of {
		x.weight = append(x.weight, max(1e-9, min(linear*t.classes[c].rate, t.rooms(c)[heads[m]])))
	}
	return x
}

// slowest is the attention of the slowest member.
func (t *tradeoff) slowest(heads []int) float64 {
	most := 0.0
	for m, c := range t.of {
		most = max(most, t.attention(c, heads[m]))
	}
	return most
}

// roomiest is room with the heads dealt as memory wants, in a ring of n groups.
func (e *estimator) roomiest(k *groupKind, longest, widest float64, n, ranks int) float64 {
	if len(k.class) == 1 {
		return e.room(k, longest, widest, n, ranks)
	}
	return most(longest, float64(e.p.Block), func(s float64) float64 {
		return e.newTradeoff(k, n, s, widest, ranks).capacity()
	})
}

// fitBoth gives a draft tokens and heads that fit, and returns the layers'
// estimated seconds; nil if there are none.
func (e *estimator) fitBoth(d *draft) (best *draft, least float64) {
	least = math.Inf(1)
	e.withCaps(d, e.roomiest, func(caps []float64, _ float64) {
		x := d.clone()
		if math.IsInf(e.solve(x, caps), 1) {
			return
		}
		if t := e.fitHeads(x); t < least {
			best, least = x, t
		}
	})
	return best, least
}

// fitHeads gives every kind of a draft the trade of heads for tokens that is done
// first, and returns the layers' estimated seconds.
func (e *estimator) fitHeads(d *draft) float64 {
	n, worst := len(d.ring), 0.0
	wires, cards := e.wires(d, n), e.cardsOf(d)
	each, widest := d.lengths()
	for i := range d.kinds {
		k := &d.kinds[i]
		if k.total == 0 {
			continue
		}
		least := math.Inf(1)
		if len(k.class) == 1 {
			least = e.timeOf(k, n, wires, volume{})(each[i])
		} else {
			x := *k
			for _, m := range e.newTradeoff(k, n, each[i], widest[i], d.ranks()).front() {
				x.heads, x.weight = m.heads, m.weight
				if t := e.timeOf(&x, n, wires, e.exchanged(&x, i, cards))(each[i]); t < least {
					k.heads, k.weight, least = x.heads, x.weight, t
				}
			}
		}
		worst = max(worst, least)
	}
	return worst * float64(e.p.Job.Model.Layers) * float64(max(1, e.p.Job.Accumulate))
}

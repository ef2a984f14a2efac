package batch

import (
	"cmp"
	"context"
	"math"
	"slices"
)

const (
	proveRounds = 6    // of learning the weights at the best prices
	pressTimes  = 4    // of learning longer where too much is collected
	quickCalls  = 5    // that a new roof pretends to have behind it, so as to learn fast but not wildly
	finest      = 5e-4 // of a roof's cost, between two that are not parted further
	proveSlack  = 2e-4 // of a roof's cost, that parting roofs may be spared for
	hopeful     = 1.1  // what longer learning may prove at most, of what is found without
	rounding    = 1e-9 // of the bound, given up for what floating point may have lost
)

// prove checks the best prices at roofs so close that little hides between them,
// and gives what they prove, without the problem's Fixed. The last time, prices that
// are far from proving more than the quick bound are let be.
func (b *bounder) prove(ctx context.Context, last bool) float64 {
	copy(b.price, b.center)
	for i := range b.roofs {
		if ctx.Err() != nil {
			return 0 // without all of them nothing is proved
		}
		b.settle(&b.roofs[i], proveRounds)
	}
	b.leaves = b.leaves[:0]
	for i := range b.roofs {
		b.leaves = append(b.leaves, leaf{b.t.cost(b.roofs[i].roof), b.roofs[i].profit, b.roofs[i].roof})
	}
	v, _, over := b.gain(b.leaves)
	if last && v*hopeful < b.quick {
		return 0 // nor would roofs in between make it more
	}
	n := len(b.fleets)
	b.leaves = b.leaves[:0]
	for i := range b.roofs {
		r := &b.roofs[i]
		if i < n { // the least roof there is
			b.leaves = append(b.leaves, leaf{b.t.cost(r.roof), r.profit, r.roof})
			continue
		}
		b.part(ctx, &b.roofs[i-n], r, over, 0)
	}
	// Higher roofs than the last collect what there is at most.
	sum := 0.0
	for i, k := range b.kinds {
		sum += k.n * b.price[i]
	}
	b.leaves = append(b.leaves, leaf{b.t.cost(b.roofs[len(b.roofs)-1].roof), sum, math.Inf(1)})
	v, _, _ = b.gain(b.leaves)
	return v * (1 - rounding)
}

// settle finds the least profit bound at a roof for the prices, in some rounds.
func (b *bounder) settle(r *roofDual, rounds int) {
	least := math.Inf(1)
	for range rounds {
		b.value(r)
		least = min(least, r.profit)
	}
	r.profit = least
}

// press tries to bring the profit down to a goal by learning longer, as long as
// that helps.
func (b *bounder) press(r *roofDual, goal float64) {
	for range pressTimes {
		if r.profit <= goal {
			return
		}
		before := r.profit
		r.calls = quickCalls
		b.settle(r, 2*proveRounds)
		if r.profit = min(before, r.profit); r.profit > before*(1-proveSlack) {
			return
		}
	}
}

// part covers the roofs above that of low up to that of r: by r, if what it
// collects is little enough for low, else in two parts.
func (b *bounder) part(ctx context.Context, low, r *roofDual, over float64, depth int) {
	cost := b.t.cost(low.roof)
	enough := cost + over + proveSlack*cost
	if r.profit > enough {
		b.press(r, b.t.cost(r.roof)+over)
	}
	if r.profit <= enough || r.roof-low.roof < finest*cost || b.over(ctx) {
		b.leaves = append(b.leaves, leaf{cost, r.profit, r.roof})
		return
	}
	if depth == len(b.parts) {
		fresh := b.newRoof(r.fleet, 0)
		b.parts = append(b.parts, &fresh)
	}
	mid := b.parts[depth]
	b.between(mid, low, r)
	b.part(ctx, mid, r, over, depth+1)
	b.part(ctx, low, mid, over, depth+1)
}

// between values the roof in the middle of two, with the weights of either and
// with what is learnt from their mean.
func (b *bounder) between(mid, low, high *roofDual) {
	mid.fleet, mid.roof, mid.n = high.fleet, (low.roof+high.roof)/2, high.n
	least := math.Inf(1)
	for _, from := range []*roofDual{low, high} {
		copy(mid.odds, from.odds)
		copy(mid.worth, from.worth)
		b.value(mid)
		least = min(least, mid.profit)
	}
	for i := range mid.odds {
		mid.odds[i] = (low.odds[i] + high.odds[i]) / 2
	}
	for i := range mid.worth {
		mid.worth[i] = (low.worth[i] + high.worth[i]) / 2
	}
	mid.calls = quickCalls
	b.settle(mid, proveRounds)
	mid.profit = min(mid.profit, least)
}

const (
	moreRoofs = 12    // that are looked at in the second search
	spacing   = 0.004 // from one another at least, as a part of the roof
)

// addRoofs adds roofs where the prices collected most between those there were.
func (b *bounder) addRoofs() {
	slices.SortFunc(b.leaves, func(x, y leaf) int {
		return cmp.Or(cmp.Compare(y.profit-y.cost, x.profit-x.cost), cmp.Compare(x.roof, y.roof))
	})
	added := 0
	for _, l := range b.leaves {
		if added == moreRoofs {
			return
		}
		near := func(r roofDual) bool { return math.Abs(r.roof-l.roof) < spacing*l.roof }
		if !math.IsInf(l.roof, 1) && !slices.ContainsFunc(b.roofs, near) {
			b.insert(l.roof)
			added++
		}
	}
}

// insert adds a roof for every fleet, with the weights of the next higher one.
func (b *bounder) insert(roof float64) {
	n := len(b.fleets)
	at := 0
	for at < len(b.roofs) && b.roofs[at].roof < roof {
		at += n
	}
	fresh := make([]roofDual, n)
	for i := range fresh {
		fresh[i] = b.newRoof(&b.fleets[i], roof)
		if at < len(b.roofs) {
			copy(fresh[i].odds, b.roofs[at+i].odds)
			copy(fresh[i].worth, b.roofs[at+i].worth)
		}
	}
	b.roofs = slices.Insert(b.roofs, at, fresh...)
}

package batch

import (
	"context"
	"math"
)

const (
	firstRounds  = 100  // of the master programme, at most
	secondRounds = 60   // once roofs are added
	warmRounds   = 10   // of learning weights before it
	stepsToBest  = 0.35 // of the way from the best prices to the programme's
	nearEnough   = 1e-3 // between the programme's value and the best proved ends the search
	farFromTight = 0.1  // roofs where prices collect so much less than they cost
	farRounds    = 8    // are looked at only once in so many rounds
)

// begin takes the prices of the shape and a programme without micro-batches, in which
// to leave out a sequence costs three times its price, and to leave out a micro-batch
// what the shortest takes.
func (b *bounder) begin() {
	b.center = append(b.center[:0], b.shape...)
	b.price = append(b.price[:0], b.shape...)
	dummies := make([]float64, len(b.need))
	for i := range dummies {
		dummies[i] = 3
	}
	dummies[len(dummies)-1] = b.t.cost(b.t.leastRoof())
	b.master.start(b.need, dummies)
}

// search looks for prices by column generation: the programme over the
// micro-batches seen so far has prices, those are tried beside the best, and the
// micro-batches that would collect too much are added.
func (b *bounder) search(ctx context.Context, rounds int) {
	b.best = 0
	for round := range warmRounds {
		if ctx.Err() != nil {
			return
		}
		b.try(-round * farRounds)
	}
	b.addColumns(math.Inf(-1))
	for round := range rounds {
		if b.over(ctx) {
			return
		}
		b.master.solve(200)
		for i, row := range b.rows {
			goal := b.master.price[row] * b.shape[i]
			b.price[i] = b.center[i] + stepsToBest*(goal-b.center[i])
		}
		b.try(round)
		if b.master.value() < b.best*(1+nearEnough) {
			return
		}
		b.addColumns(1e-7)
	}
}

// try values the prices at every roof that is not far from tight, and keeps them
// if they are the best.
func (b *bounder) try(round int) {
	b.leaves = b.leaves[:0]
	for i := range b.roofs {
		r := &b.roofs[i]
		if r.margin < farFromTight || (round+i)%farRounds == 0 || round <= 0 {
			b.value(r)
		}
		b.leaves = append(b.leaves, leaf{b.t.cost(r.roof), r.profit, r.roof})
	}
	v, scale, over := b.gain(b.leaves)
	for i := range b.roofs {
		r := &b.roofs[i]
		r.margin = 1 - (r.profit*scale-over)/b.t.cost(r.roof)
	}
	if v > b.best {
		b.best = v
		for i, p := range b.price {
			b.center[i] = p * scale
		}
	}
}

// leaf is a range of roofs: what a micro-batch takes there at least, and what it
// collects at most.
type leaf struct{ cost, profit, roof float64 }

// gain is the most that the prices prove when all are scaled alike, the scale and
// the excess β: max of a Σ p - β M over a >= 0, where β = max (a P - cost) <= 0.
// It is concave in a.
func (b *bounder) gain(leaves []leaf) (best, scale, over float64) {
	sum, most := 0.0, math.Inf(1)
	for i, k := range b.kinds {
		sum += k.n * b.price[i]
	}
	for _, l := range leaves {
		if l.profit > 0 {
			most = min(most, l.cost/l.profit)
		}
	}
	at := func(a float64) (value, over float64) {
		over = math.Inf(-1)
		for _, l := range leaves {
			over = max(over, a*l.profit-l.cost)
		}
		over = min(over, 0)
		return a*sum - over*float64(b.least), over
	}
	low, high := 0.0, most
	for range 60 {
		x, y := low+(high-low)/3, high-(high-low)/3
		vx, _ := at(x)
		vy, _ := at(y)
		if vx < vy {
			low = x
		} else {
			high = y
		}
	}
	best, over = at(low)
	return best, low, over
}

// addColumns adds the micro-batches at the roofs where they collect more than
// they take, by the programme's prices.
func (b *bounder) addColumns(least float64) {
	for i := range b.roofs {
		r := &b.roofs[i]
		b.column = resize(b.column, len(b.need))
		clear(b.column)
		room := r.room()
		for k, x := range r.cover {
			if x > 0 {
				b.column[b.rows[k]] += x * b.shape[k] * room
			}
		}
		b.column[len(b.need)-1] = 1
		excess := -b.t.cost(r.roof)
		for j, a := range b.column {
			excess += a * b.master.price[j]
		}
		if excess > least {
			b.master.add(b.column, b.t.cost(r.roof))
		}
	}
}

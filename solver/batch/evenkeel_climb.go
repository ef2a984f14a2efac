package batch

import (
	"context"
	"math"
	"math/rand/v2"
)

// climber is a stochastic hill climbing over the roofs of all micro-batches and the
// weights of pools and classes: it changes a few of these numbers at once, by random
// factors whose spread shrinks, has the filler construct a plan, and keeps the change if
// the plan is shorter. Its random numbers have a fixed seed, so that the same problem takes
// the same path. A roof that the filler had to exceed moves part of the way to the time
// that its micro-batch took, since plans that exceed many roofs are long. The sum of the
// roofs is kept near the time of the best plan (see table.level).
type climber struct {
	t      *table
	fill   filler
	micro  int
	point  []float64 // roofs, then factors on what each pool and each class are worth
	prefer []float64 // by class, the factors together
	next   []float64
	at     float64 // time at the point
	open   float64 // of that, see table.open
	tried  int
	random *rand.Rand
	try    state
	best   state
}

const (
	climbSpread = 0.15 // of a change, at first
	climbHalf   = 50   // changes after which the spread is half
	climbMoves  = 5    // numbers changed at once
	climbSettle = 0.2  // of the way to where a filling ended
	seed        = 7    // any
)

// begin starts from roofs, with one of several streams of changes.
func (c *climber) begin(t *table, roofs []float64, stream uint64) {
	c.t, c.micro, c.tried = t, len(roofs), 0
	c.at, c.open, c.best.total = math.Inf(1), 0, math.Inf(1)
	c.point = append(c.point[:0], roofs...)
	for range len(t.size) + len(t.base) {
		c.point = append(c.point, 1)
	}
	c.random = rand.New(rand.NewPCG(seed+stream, uint64(len(roofs))))
}

// lead is where a climber stood.
type lead struct {
	micro, tried int
	point        []float64
	worth        []float64 // of the pools' devices
	best         state
}

func (l *lead) copyFrom(c *climber) {
	l.micro, l.tried = c.micro, c.tried
	l.point = append(l.point[:0], c.point...)
	l.worth = append(l.worth[:0], c.t.worth...)
	l.best.copyFrom(&c.best)
}

// resume goes on from a lead, with other changes than led there.
func (c *climber) resume(t *table, l *lead) {
	c.begin(t, l.point[:l.micro], uint64(l.tried))
	c.tried = l.tried
	copy(c.point, l.point)
	c.best.copyFrom(&l.best)
	c.at, c.open = l.best.total, l.best.open
}

// run makes so many tries, or until a plan takes no more than enough.
func (c *climber) run(ctx context.Context, tries int, enough float64) {
	for ; tries > 0 && c.at > enough; tries-- {
		if ctx.Err() != nil && !math.IsInf(c.best.total, 1) {
			return
		}
		c.step()
	}
}

func (c *climber) step() {
	c.next = append(c.next[:0], c.point...)
	if c.tried > 0 {
		spread := climbSpread / (1 + float64(c.tried)/climbHalf)
		for range climbMoves {
			c.next[c.pick()] *= math.Exp(spread * c.random.NormFloat64())
		}
		if !math.IsInf(c.at, 1) {
			c.t.level(c.next[:c.micro], (c.at-c.open-c.t.fixed)*(1+c.t.levelSpread()*c.random.NormFloat64()))
		}
	}
	c.tried++
	c.prefer = c.t.preferences(c.prefer, c.next[c.micro:])
	if !c.fill.fill(c.t, c.t.all, c.next[:c.micro], c.prefer, &c.try, c.at) || c.try.total >= c.at {
		if math.IsInf(c.at, 1) {
			copy(c.point, c.next) // nowhere yet: wander
		}
		return
	}
	c.at, c.open = c.try.total, c.try.open
	copy(c.point, c.next)
	c.best.copyFrom(&c.try)
	for m, roof := range c.try.roofs {
		if roof > 0 {
			c.point[m] += climbSettle * (roof - c.point[m])
		}
	}
}

// pick is a roof twice as often as another number, and of those a pool, where
// there are several, as often as a class.
func (c *climber) pick() int {
	pools := len(c.t.size)
	switch {
	case c.random.IntN(3) > 0:
		return c.random.IntN(c.micro)
	case pools > 1 && c.random.IntN(2) > 0:
		return c.micro + c.random.IntN(pools)
	default:
		return c.micro + pools + c.t.useful[c.random.IntN(len(c.t.useful))]
	}
}

// preferences are the factors on the classes' prices that factors on pools and
// classes make.
func (t *table) preferences(into, factors []float64) []float64 {
	pools := len(t.size)
	into = resize(into, len(t.base))
	for c, uses := range t.uses {
		value := 0.0
		for i, u := range uses {
			value += float64(u) * t.worth[i] * factors[i]
		}
		into[c] = factors[pools+c] * value / t.value[c]
	}
	return into
}

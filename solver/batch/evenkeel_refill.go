package batch

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
)

// refiller is a large neighbourhood search: it empties two or three micro-batches of a plan
// and constructs them anew under other roofs, while the rest of the plan stays. The sum of
// the roofs stays about the same, since few plans under much lower or higher ones were any
// better.
type refiller struct {
	t       *table
	s       *state
	fill    filler
	try     state
	next    state
	random  *rand.Rand
	base    float64
	chosen  []int // micro-batches
	items   []item
	taken   []bool // by item
	roofs   []float64
	prefer  []float64 // by class
	factors []float64 // by pool, then by class
}

const (
	refillSpread = 0.05 // of roofs
	preferSpread = 0.1  // of the preference for classes, of which one in preferOdds is changed
	preferOdds   = 3
	wideOdds     = 4     // of a try that goes farther, to other kinds of groups:
	wideSpread   = 0.15  // of roofs
	widePrefer   = 0.4   // of the preference for classes
	numberOdds   = 12    // of one micro-batch fewer, and of one more
	sumMean      = 0.99  // of what the roofs take together, times what they took
	refillSlack  = 1.002 // a part that takes no more than this many times what it took is worth polishing
)

// run makes so many tries, or until the plan takes no more than enough or so many in
// turn were in vain.
func (r *refiller) run(ctx context.Context, t *table, s *state, polish *polisher, tries, patience int, enough float64) {
	r.t, r.s, r.base = t, s, slices.Min(t.base)
	r.random = rand.New(rand.NewPCG(seed, 0))
	made, last := 0, 0
	for ; made < tries && made-last < patience && s.total > enough && ctx.Err() == nil; made++ {
		if !r.choose() {
			break
		}
		before := r.draw(made%2 == 0)
		if !r.fill.fill(t, r.items, r.roofs, r.prefer, &r.try, t.fixed+before*refillSlack+s.open) {
			continue
		}
		polish.run(t, &r.try, polishSteps/100)
		open := t.open(max(r.highestOther(), slices.Max(r.try.roofs)))
		if r.try.total-r.try.open+open < t.fixed+before*(1-1e-9)+s.open {
			r.accept()
			last = made
		}
	}
}

// choose picks the micro-batches; false where there are none.
func (r *refiller) choose() bool {
	r.chosen = r.chosen[:0]
	busy := 0
	for _, roof := range r.s.roofs {
		if roof > 0 {
			busy++
		}
	}
	want := min(busy, 2+r.random.IntN(2))
	for len(r.chosen) < want {
		m := r.random.IntN(len(r.s.roofs))
		if r.s.roofs[m] > 0 && !slices.Contains(r.chosen, m) {
			r.chosen = append(r.chosen, m)
		}
	}
	return want > 0
}

// highestOther is the highest roof of the micro-batches that stay.
func (r *refiller) highestOther() float64 {
	highest := 0.0
	for m, roof := range r.s.roofs {
		if roof > highest && !slices.Contains(r.chosen, m) {
			highest = roof
		}
	}
	return highest
}

// draw sets new roofs and preferences and collects the sequences; it gives what
// the chosen take now.
func (r *refiller) draw(near bool) float64 {
	r.taken = resize(r.taken, r.t.items())
	clear(r.taken)
	for i := range r.s.bins {
		if b := &r.s.bins[i]; slices.Contains(r.chosen, b.micro) {
			for _, k := range b.items {
				r.taken[k] = true
			}
		}
	}
	r.items = r.items[:0]
	for k, taken := range r.taken {
		if taken {
			r.items = append(r.items, item(k))
		}
	}
	spread := refillSpread
	if near {
		spread /= 3
	}
	prefer := preferSpread
	if r.random.IntN(wideOdds) == 0 {
		spread, prefer = wideSpread, widePrefer
	}
	before := 0.0
	r.roofs = r.roofs[:0]
	for _, m := range r.chosen {
		before += r.t.cost(r.s.roofs[m])
		r.roofs = append(r.roofs, r.s.roofs[m]*math.Exp(spread*(r.random.NormFloat64()-0.5)))
	}
	switch r.random.IntN(numberOdds) {
	case 0:
		r.oneFewer()
	case 1:
		r.oneMore()
	}
	r.t.level(r.roofs, before*(sumMean+r.t.levelSpread()*r.random.NormFloat64()))
	r.factors = r.factors[:0]
	for i := range len(r.t.size) + len(r.t.base) {
		factor := 1.0
		if (i >= len(r.t.size) || len(r.t.size) > 1) && r.random.IntN(preferOdds) == 0 {
			factor = math.Exp(prefer * r.random.NormFloat64())
		}
		r.factors = append(r.factors, factor)
	}
	r.prefer = r.t.preferences(r.prefer, r.factors)
	return before
}

// oneFewer leaves out the last of the roofs, and raises the others.
func (r *refiller) oneFewer() {
	n := len(r.roofs) - 1
	if n == 0 {
		return
	}
	rest := r.roofs[n] * (0.4 + 0.6*r.random.Float64()) / float64(n)
	r.roofs = r.roofs[:n]
	for i := range r.roofs {
		r.roofs[i] += rest
	}
}

// oneMore parts the last of the roofs in two.
func (r *refiller) oneMore() {
	n := len(r.roofs) - 1
	part := 0.2 + 0.6*r.random.Float64()
	r.roofs = append(r.roofs, r.roofs[n]*(1-part)+r.base)
	r.roofs[n] = r.roofs[n]*part + r.base
}

// vacant is a number that no micro-batch has.
func (r *refiller) vacant() int {
	for m, roof := range r.s.roofs {
		if roof == 0 && !slices.Contains(r.chosen, m) {
			return m
		}
	}
	return len(r.s.roofs)
}

// accept puts the tried micro-batches in the place of the chosen.
func (r *refiller) accept() {
	if len(r.try.free) > len(r.chosen) {
		r.chosen = append(r.chosen, r.vacant())
	}
	s, n := &r.next, 0
	s.bins = resize(s.bins, len(r.s.bins)+len(r.try.bins))
	copyBin := func(b *bin, micro int) {
		items := append(s.bins[n].items[:0], b.items...)
		s.bins[n] = *b
		s.bins[n].items, s.bins[n].micro = items, micro
		n++
	}
	for i := range r.s.bins {
		if b := &r.s.bins[i]; !slices.Contains(r.chosen, b.micro) {
			copyBin(b, b.micro)
		}
	}
	for i := range r.try.bins {
		b := &r.try.bins[i]
		copyBin(b, r.chosen[b.micro])
	}
	s.bins = s.bins[:n]
	s.free = resize(s.free, max(len(r.s.free), slices.Max(r.chosen)+1))
	for m := range r.s.free {
		s.free[m] = append(s.free[m][:0], r.s.free[m]...)
	}
	for i, m := range r.chosen {
		if i < len(r.try.free) {
			s.free[m] = append(s.free[m][:0], r.try.free[i]...)
		} else {
			s.free[m] = append(s.free[m][:0], r.t.size...)
		}
	}
	s.settle(r.t)
	*r.s, r.next = r.next, *r.s
}

package costmodel

import (
	"github.com/evenkeel/evenkeel/internal/units"
)

// stripSteps is how many steps of a ring are priced at a time. A step takes one
// price of every seat's row, so a ring of unlike shards would wait for memory at
// each; successive steps take neighbouring prices, eight to a cache line. More
// steps than this are no faster, and the strip fills the second-level cache.
const stripSteps = 32

// strip holds what the seats take over their attention in the steps at hand.
type strip struct {
	begins int             // first step, a multiple of stripSteps
	width  int             // of a step: seats, and a cache line to keep steps apart in the cache
	times  []units.Seconds // by step and seat, slowing included
	shape  []int           // of the groups' shards
	// By group, the relation to all groups before it and to all behind it, or
	// mixed.
	before, behind []int
}

// mixed is where groups on one side lie to a group in more ways than one.
const mixed = -1

func (x *strip) reset(s *sim, forms []form) {
	x.begins, x.width = -1, len(s.seats)+8
	x.times = resized(x.times, min(stripSteps, len(forms))*x.width)
	x.shape, x.before, x.behind = resized(x.shape, len(forms)), resized(x.before, len(forms)), resized(x.behind, len(forms))
	least, most := form{first: none - 1, second: none - 1}, form{}
	for g := range forms {
		x.shape[g] = forms[g].shape
		x.before[g] = s.relationToAll(&forms[g], &least, &most)
		spread(&least, &most, &forms[g])
	}
	least, most = form{first: none - 1, second: none - 1}, form{}
	for g := len(forms) - 1; g >= 0; g-- {
		x.behind[g] = s.relationToAll(&forms[g], &least, &most)
		spread(&least, &most, &forms[g])
	}
}

// spread widens the range in which segments begin.
func spread(least, most, f *form) {
	least.first, least.second = min(least.first, f.first), min(least.second, f.last())
	most.first, most.second = max(most.first, f.first), max(most.second, f.last())
}

// relationToAll is the relation of a group's queries to the keys of any of the
// groups whose segments begin within a range. Each of the four comparisons that a
// relation counts can only turn from true to false from the low end of the range
// to the high one, so a relation that is the same at both ends is so between.
func (s *sim) relationToAll(q, least, most *form) int {
	how := s.relationOf(q, least)
	if how != s.relationOf(q, most) {
		return mixed
	}
	return how
}

// resized returns n values of any kind, in the place of a if they fit.
func resized[T any](a []T, n int) []T {
	if cap(a) < n {
		return make([]T, n)
	}
	return a[:n]
}

// step is the attention of step t, by seat.
func (r *layerRun) step(t int) []units.Seconds {
	if r.given != nil {
		return r.given.attention[t]
	}
	x := &r.strip
	if begins := t - t%stripSteps; begins != x.begins {
		x.begins = begins
		to := min(begins+stripSteps, r.n)
		for g := range r.forms {
			r.priceGroup(g, begins, to)
		}
	}
	at := (t - x.begins) * x.width
	return x.times[at : at+len(r.seats)]
}

// priceGroup prices some steps of a group's seats: its own block, then those of
// the groups before it, then of those behind it.
func (r *layerRun) priceGroup(g, from, to int) {
	if from == 0 {
		r.priceSteps(g, itself, 0, 1)
	}
	r.priceSide(g, r.strip.before[g], max(from, 1), min(to, g+1))
	r.priceSide(g, r.strip.behind[g], max(from, g+1), to)
}

func (r *layerRun) priceSide(g, how, from, to int) {
	if how != mixed {
		r.priceSteps(g, how, from, to)
		return
	}
	for t := from; t < to; t++ {
		r.priceSteps(g, r.sim.relationOf(&r.forms[g], &r.forms[r.source(g, t)]), t, t+1)
	}
}

// priceSteps prices steps whose blocks all lie alike. Messages are taken to move in
// all steps but one: the last of all or, where that is the own block, whose time is
// that of gradients on their way, the first; of two groups it is exactly that one.
func (r *layerRun) priceSteps(g, how, from, to int) {
	if from >= to {
		return
	}
	for i := r.forms[g].from; i < r.forms[g].to; i++ {
		switch {
		case r.ownLast && from == 1:
			r.priceSeat(i, how, 1, 2, r.apartOf(i))
			r.priceSeat(i, how, 2, to, r.beside[i])
		case !r.ownLast && to == r.n:
			r.priceSeat(i, how, to-1, to, r.apartOf(i))
			r.priceSeat(i, how, from, to-1, r.beside[i])
		default:
			r.priceSeat(i, how, from, to, r.beside[i])
		}
	}
}

func (r *layerRun) apartOf(i int) beside {
	if r.apart == nil {
		return beside{}
	}
	return r.apart[i]
}

// seatOf is the seat that the run has at a place.
func (r *layerRun) seatOf(i int) *seat {
	if r.folded != nil {
		i = r.folded.of[i]
	}
	return &r.sim.seats[i]
}

func (r *layerRun) priceSeat(i, how, from, to int, by beside) {
	if from >= to {
		return
	}
	x, s := &r.strip, r.sim
	seat, table := r.seatOf(i), &s.work[r.dir][how]
	k, column := r.source(seat.group, from), -1
	times, width, shape := x.times[(from-x.begins)*x.width+i:], x.width, x.shape[k+1-(to-from):k+1]
	var line *[tileColumns]kept
	for d := range shape {
		n := shape[len(shape)-1-d]
		if n/tileColumns != column {
			column = n / tileColumns
			line = table.line(seat.work, column)
		}
		w := line[uint(n)%tileColumns].price()
		if unknown(w) {
			w = s.attentionTime(r.dir, how, seat, k-d)
		}
		times[d*width] = by.stretch(w)
	}
}

package bound

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// look is what a leastWork keeps of a class from one theta to the next: its cells
// with all that neither theta nor the price changes, and the last best of them.
type look struct {
	cells []pricedCell
	last  int
}

// pricedCell is a cell under the weights of a leastWork.
type pricedCell struct {
	cost   float64 // weighted, of linear work
	least  float64 // the least cost of this cell and all behind it
	lo, hi units.Tokens
	tokens float64 // the most of a rank in it
	pairs  float64 // the most that memory leaves room for
}

// look prices the cells of a class anew where some were cut since.
func (w *leastWork) look(c int) *look {
	k, l := &w.classes[c], &w.looks[c]
	if len(l.cells) == len(k.linear.cells) {
		return l
	}
	room, least := k.memory.room(), math.Inf(1)
	l.cells = slices.Grow(l.cells[:0], len(k.linear.cells))[:len(k.linear.cells)]
	for i := len(l.cells) - 1; i >= 0; i-- {
		of := &k.linear.cells[i]
		cost := w.linear(of)
		least = min(least, cost)
		l.cells[i] = pricedCell{
			cost: cost, least: least, lo: of.lo, hi: of.hi, tokens: min(float64(of.hi), room), pairs: k.memory.pairs(float64(of.lo)),
		}
	}
	l.last = min(l.last, len(l.cells)-1)
	return l
}

// linear is the weighted cost of a cell.
func (w *leastWork) linear(c *cell) float64 {
	t := 0.0
	for s, weight := range w.weights {
		t += weight * c.cost[s]
	}
	return t
}

// best is the most that a device of class c adds to the left side, and the cell
// it takes, the first of equals.
func (w *leastWork) best(c int, theta, price float64) (value float64, at int) {
	s := choice{w: w, k: &w.classes[c], c: c, cells: w.look(c).cells, theta: theta, price: price, value: math.Inf(-1), at: -1}
	if w.attention != nil {
		s.attention = w.attention[c]
	}
	s.room = s.k.memory.room()
	// The best is rarely far from the last one, and a good one to begin with
	// leaves little to look at.
	s.try(w.looks[c].last)
	s.search(0, len(s.cells))
	if s.at >= 0 {
		w.looks[c].last = s.at
	}
	return s.value, s.at
}

// choice is a search for the best cell by branch and bound.
type choice struct {
	w            *leastWork
	k            *class
	c            int             // its number
	attention    *attentionFloor // nil for none
	cells        []pricedCell
	theta, price float64
	room         float64 // tokens that memory holds
	value        float64 // of the best so far
	at           int
}

// beats says whether a value at cell i, or one behind it, is the best so far.
func (s *choice) beats(value float64, i int) bool {
	return value > s.value || value == s.value && i < s.at
}

// search looks at cells from..to-1, unless none of them can be the best.
func (s *choice) search(from, to int) {
	switch mid := (from + to) / 2; {
	case mid == from:
		s.try(from)
	case s.promises(from, to):
		s.search(from, mid)
		s.search(mid, to)
	}
}

// promises says whether one of the cells from..to-1 may be the best. None has
// more tokens than the last, takes less linear work than the least from the first
// on, leaves more memory than the first or reaches more pairs without all-to-alls than
// the last; and attention's floor never falls. Rounding keeps these orders, so that no
// cell is passed over that is the best.
func (s *choice) promises(from, to int) bool {
	first, last := &s.cells[from], &s.cells[to-1]
	slack := s.theta - first.least
	if slack < 0 || float64(first.lo) > s.room {
		return false
	}
	v := s.price * last.tokens
	if s.attention == nil {
		return s.beats(v, from)
	}
	pairs := min(s.attention.within(slack), first.pairs)
	if s.k.rank != nil && to-from >= fewCells && s.beats(v+pairs, from) {
		x := s.k.rank.reach(s.w, float64(last.hi), s.theta, s.w.beside)
		pairs = min(pairs, x.pairs(slack, s.attention.within)*(1+1e-12)) // more than rounding can do
	}
	return s.beats(v+pairs, from)
}

// fewCells are looked at faster than a ceiling of what their ranks send.
const fewCells = 6

// try takes cell i if it is better than the best so far.
func (s *choice) try(i int) {
	c := &s.cells[i]
	slack := s.theta - c.cost
	if slack < 0 || float64(c.lo) > s.room {
		return
	}
	v := s.price * c.tokens
	if s.attention != nil {
		pairs := min(s.attention.within(slack), c.pairs)
		if s.beats(v+pairs, i) && s.k.rank != nil {
			pairs = min(pairs, s.k.rank.reach(s.w, float64(c.hi), s.theta, s.w.beside).pairs(slack, s.attention.within))
		}
		if s.k.rank != nil && s.beats(v+pairs, i) {
			pairs = min(pairs, s.w.inGroups(stretch{s.c, float64(c.lo), float64(c.hi)}, s.theta, slack, pairs))
		}
		v += pairs
	}
	if s.beats(v, i) {
		s.value, s.at = v, i
	}
}

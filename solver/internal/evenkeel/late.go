package evenkeel

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// moveLate moves kinds of groups of the fastest points to the end of the
// sequence, with about as many tokens as before or fewer, or back, and improves what
// comes near.
//
// In the zigzag of all a token sees half the sequence, at the end of it nearly
// all. So a group whose memory is full computes more on the tokens that it has
// room for, and one behind a slow link more on those it is sent; the others
// compute less on theirs. What a point comes to by that says little of what it was
// before, so all that were near are moved before the best of them are improved. What
// it costs is what is left of the budget, and a bit on top where that is little.
func (s *search) moveLate(points []point) {
	if !s.unequal() {
		return
	}
	s.budget = max(s.budget, s.work+s.budget*latePart)
	sortPoints(points)
	points = slices.CompactFunc(points, func(a, b point) bool { return a.t == b.t })
	type move struct{ from, to point }
	var moves []move
	until := s.work + s.budget*latePart/2
	for i, x := range points {
		if i >= lateStarts && s.work >= until || x.t > s.fastest()*(1+lateFar) {
			break
		}
		if y := s.latest(x); y.t < x.t*(1+lateGap) {
			moves = append(moves, move{x, y})
		}
	}
	slices.SortStableFunc(moves, func(a, b move) int { return cmp.Compare(a.to.t, b.to.t) })
	var found []point
	for _, m := range moves[:min(len(moves), lateStarts)] {
		for x, y := m.from, m.to; y.t < x.t*(1+lateGap); y = s.latest(x) {
			y = s.descend(y, s.work+s.budget*latePart)
			found = append(found, y)
			if y.t >= x.t*(1-dropGain) {
				break
			}
			x = y // and another kind
		}
	}
	if sortPoints(found); len(found) > 0 && found[0].t <= s.fastest()*(1+dropGain) {
		s.single(found[0])
	}
}

// lateStarts is how many points are improved, lateFar how much slower than the
// fastest those may be that are moved, lateGap how much slower than before one may
// get by that to be improved, and latePart the part of the budget for that.
const (
	lateStarts = 3
	lateFar    = 0.3
	lateGap    = 0.02
	latePart   = 1.0 / 12
)

// latest is the fastest point of those with one kind moved behind all others, into the
// last stretch, or back into the first; +Inf where there is none that fits.
func (s *search) latest(from point) point {
	best := point{t: math.Inf(1)}
	for kind := range from.d.kinds {
		for _, m := range from.d.tierMoves(kind) {
			if s.over() || len(from.d.kinds) > mostLateKinds {
				return best
			}
			if d := from.d.later(kind, m.tier, m.part, s.p.Block); d != nil {
				if x := s.judgeDraft(d); x.t < best.t {
					best = x
				}
			}
		}
	}
	return best
}

// mostLateKinds bounds the kinds of a draft that are moved.
const mostLateKinds = 8

// tierMove is a tier that a kind may move to and what it keeps of its tokens there,
// or gets.
type tierMove struct {
	tier int
	part float64
}

// tierMoves lists a kind's moves: into the last tier or behind it, or, from any other
// tier than the first, to that one.
func (d *draft) tierMoves(kind int) []tierMove {
	own, first, last := d.kinds[kind].tier, math.MaxInt, math.MinInt
	for i := range d.kinds {
		first, last = min(first, d.kinds[i].tier), max(last, d.kinds[i].tier)
	}
	var to []int
	switch {
	case own > first:
		to = []int{first}
	case own < last:
		to = []int{last, last + 1}
	default:
		to = []int{last + 1}
	}
	var all []tierMove
	for _, tier := range to {
		for _, part := range []float64{1.25, 1, 0.8, 0.6} {
			all = append(all, tierMove{tier, part})
		}
	}
	return all
}

// later moves a kind to another tier, with a part of its tokens; nil if it then has
// all.
func (d *draft) later(kind, tier int, part float64, block units.Tokens) *draft {
	own, all := float64(d.kinds[kind].total), 0.0
	for i := range d.kinds {
		all += float64(d.kinds[i].total)
	}
	if own == 0 || part*own >= all || own == all {
		return nil
	}
	x := d.clone()
	if part != 1 {
		x = d.leaner(kind, part, block)
	}
	if slices.ContainsFunc(x.kinds, func(k groupKind) bool { return k.total < 0 }) {
		return nil // so few tokens that rounding takes more than there are
	}
	x.kinds[kind].tier = tier
	return x
}

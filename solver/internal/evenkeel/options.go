package evenkeel

import (
	"cmp"
	"math"
	"slices"
)

// option is a grouping with shares and its estimated step.
type option struct {
	d      *draft
	t      float64
	rank   float64 // t, or more where memory is exceeded
	layers float64 // of t, by themselves
	pool   *pool
}

// tooLong is how many times as long as the best known a grouping may be estimated
// to take at most: those far beyond hopelessGap are not even listed.
const tooLong = 1.5

// candidates lists all groupings with shares, by rising estimate. These are estimated
// once, one micro-batch by itself; in twos they take more memory.
func (s *search) candidates() []option {
	if s.est.twoBatch {
		return s.optionsInTwos()
	}
	var all []option
	best := math.Inf(1)
	if s.fastest() > 0 {
		best = s.fastest()
	}
	s.pools = s.est.pools()
	for i := range s.pools {
		limit := groupingsOfAll
		if i > 0 {
			limit = groupingsOfPart
		}
		all, best = s.optionsOf(&s.pools[i], limit, all, best)
	}
	byRank := func(a, b option) int { return cmp.Compare(a.rank, b.rank) }
	slices.SortStableFunc(all, byRank)
	s.tryOtherHeads(all[:min(len(all), mostOtherHeads)], best)
	slices.SortStableFunc(all, byRank)
	s.options = all
	return all
}

// optionsOf adds the groupings of a pool, at most limit, to options of which the best takes
// so long, and returns that of all.
func (s *search) optionsOf(p *pool, limit int, all []option, best float64) ([]option, float64) {
	if s.est.leastTime(p.ranks)+p.tax > tooLong*best {
		return all, best
	}
	for _, d := range s.est.groupings(p.ranks, limit) {
		if s.Late() && (len(all) > 0 || s.fastest() > 0) {
			break
		}
		s.work += 300 // of the estimate
		// Other heads may halve what the first ones take.
		t := s.firstHeads(d, 2*(tooLong*best-p.tax))
		if math.IsInf(t, 1) {
			continue
		}
		x := s.option(d, t, p)
		all = append(all, x)
		best = min(best, x.rank)
	}
	return all, best
}

// tryOtherHeads gives options heads that are not dealt one by one where these take less,
// and no longer than what is listed beside the best.
func (s *search) tryOtherHeads(options []option, best float64) {
	for i := range options {
		if s.Late() {
			break
		}
		x := &options[i]
		if t := s.otherHeads(x.d, x.layers, tooLong*best-x.pool.tax); t < x.layers {
			*x = s.option(x.d, t, x.pool)
		}
	}
}

// mostOtherHeads is how many groupings, of those that promise most, are looked at with
// heads that are not dealt one by one.
const mostOtherHeads = 1500

// option is a draft of some ranks whose layers take so long by themselves.
func (s *search) option(d *draft, layers float64, of *pool) option {
	t := s.est.shown(d, layers, of.hidden) + of.tax
	return option{d, t, t * max(1, s.est.fullest(d)), layers, of}
}

// estimate gives a draft the best of heads one by one, heads by whole groups
// that share keys and values, and heads of the fastest members alone.
func (s *search) estimate(d *draft) float64 {
	return s.otherHeads(d, s.firstHeads(d, math.Inf(1)), math.Inf(1))
}

// firstHeads gives a draft heads one by one; those that take longer than a limit may
// be +Inf.
func (s *search) firstHeads(d *draft, limit float64) float64 {
	s.est.setShares(d, len(d.ring), 1, false)
	return s.est.solveWithin(d, nil, limit)
}

// otherHeads gives a draft which takes t with heads one by one other ones if it takes
// less with them, and no longer than a limit.
func (s *search) otherHeads(d *draft, t, limit float64) float64 {
	if math.IsInf(t, 1) || !slices.ContainsFunc(d.kinds, func(k groupKind) bool { return len(k.class) > 1 }) {
		return t
	}
	m := s.p.Job.Model
	each := m.QHeads / m.KVHeads
	other := func(unit int, fastest bool) {
		x := d.clone()
		s.est.setShares(x, len(d.ring), unit, fastest)
		if slices.EqualFunc(x.kinds, d.kinds, func(a, b groupKind) bool { return slices.Equal(a.heads, b.heads) }) {
			return // weights do not depend on either
		}
		if w := s.est.solveWithin(x, nil, limit); w < t {
			*d, t = *x, w
		}
	}
	if each > 1 {
		other(each, false)
	}
	if slices.ContainsFunc(d.kinds, func(k groupKind) bool { return !alone(k.class) }) {
		other(1, true)
	}
	return t
}

// alone says whether all members are of one class.
func alone(class []int) bool {
	return !slices.ContainsFunc(class, func(c int) bool { return c != class[0] })
}

// Most groupings of the whole cluster and of each part of it.
const (
	groupingsOfAll  = 3000
	groupingsOfPart = 150
)

package batch

import (
	"cmp"
	"math"
	"slices"
)

// packer makes plans whose groups are all of one class, packed by best fit decreasing.
// Little is better than that where only memory matters.
type packer struct {
	t    *table
	try  state
	best state
}

// run finds the class with the best plan; best.total is infinite where no class
// holds all.
func (p *packer) run(t *table) {
	p.t = t
	p.best.total = math.Inf(1)
	for c := range t.base {
		if t.cap[c] < t.tokens[0] || !p.pack(c) {
			continue
		}
		if p.try.settle(t); p.try.total < p.best.total {
			p.best.copyFrom(&p.try)
		}
	}
}

// side is how many groups of a class there may be side by side.
func (t *table) side(c int) int {
	n := math.MaxInt
	one := t.p.Classes[c].One
	for i, u := range t.uses[c] {
		if u == 0 {
			continue
		}
		fit := t.size[i] / u
		if one {
			fit = 0
			for _, size := range t.nodes[i].sizes {
				fit += size / u
			}
		}
		n = min(n, fit)
	}
	return n
}

// pack fills groups by tokens, the slowest together in a micro-batch. False where
// it takes far more groups than memory would have to.
func (p *packer) pack(c int) bool {
	t, s := p.t, &p.try
	s.bins = s.bins[:0]
	side := t.side(c)
	if side == 0 {
		return false
	}
	s.free = s.free[:0]
	for k, tokens := range t.tokens {
		best, left := -1, int64(math.MaxInt64)
		for i := range s.bins {
			if room := t.cap[c] - s.bins[i].tokens; room >= tokens && room < left {
				best, left = i, room
			}
		}
		if best < 0 {
			best = s.grow(t, c, side)
		}
		b := &s.bins[best]
		b.items = append(b.items, item(k))
		b.tokens += tokens
		b.time += t.time[c][k]
	}
	slices.SortStableFunc(s.bins, func(a, b bin) int { return cmp.Compare(b.time, a.time) })
	for i := range s.bins {
		s.bins[i].micro = i / side
	}
	return true
}

// grow adds a group, and a micro-batch for every so many.
func (s *state) grow(t *table, c, side int) int {
	m := len(s.bins) / side
	if m == len(s.free) {
		s.free = resize(s.free, m+1)
		s.free[m] = append(s.free[m][:0], t.size...)
	}
	return s.add(t, m, c)
}

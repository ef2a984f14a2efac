package evenkeel

import (
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// leaner gives one kind of groups of a draft far fewer tokens than it could
// compute: where its keys and values cross a slow link, less to send can be worth
// more than less to compute. Small moves do not get there, for halfway the wait is
// the same and the computing is longer. points rise in time. What it costs is on
// top of the budget.
func (s *search) leaner(points []point) (found []point) {
	stop := s.work + s.budget/12
	s.budget += s.budget / 12
	defer func() { s.budget -= stop - s.work }()
	for i := 0; i < min(len(points), 3*descents); i++ {
		d := points[i].d
		if len(d.kinds) < 2 || len(d.kinds) > mostLeanKinds || points[i].t > points[0].t*(1+leanGap) {
			continue
		}
		for kind := range d.kinds {
			for _, part := range leanParts() {
				if s.over() || s.work > stop {
					return found
				}
				if x := s.judgeDraft(d.leaner(kind, part, s.p.Block)); !math.IsInf(x.t, 1) {
					found = append(found, x)
				}
			}
		}
	}
	return found
}

// leanParts are the parts of its tokens that a kind may keep.
func leanParts() []float64 { return []float64{0.5, 0.25} }

// mostLeanKinds bounds the kinds of a draft that leaner looks at, and leanGap how
// much slower than the fastest it may be.
const (
	mostLeanKinds = 4
	leanGap       = 0.4
)

// leaner leaves a kind a part of its tokens, in whole blocks, and gives the rest
// to the others in proportion to theirs.
func (d *draft) leaner(kind int, part float64, block units.Tokens) *draft {
	x := d.clone()
	left := units.Tokens(float64(x.kinds[kind].total)*(1-part)) / block * block
	x.kinds[kind].total -= left
	others := units.Tokens(0)
	last := -1
	for i := range x.kinds {
		if i != kind {
			others += d.kinds[i].total
			last = i
		}
	}
	rest := left
	for i := range x.kinds {
		switch {
		case i == kind:
			continue
		case i == last:
			x.kinds[i].total += rest
		case others > 0:
			n := units.Tokens(float64(left)*float64(d.kinds[i].total)/float64(others)) / block * block
			x.kinds[i].total += n
			rest -= n
		}
	}
	return x
}

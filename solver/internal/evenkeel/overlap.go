package evenkeel

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
)

// inTwos searches once more, for layouts whose micro-batches go in twos (see
// costmodel.Layout), from what the first search came to. All-to-alls cost less then, but
// memory more, so that other groups may be the best.
func (s *search) inTwos(from []point, budget float64) {
	if s.Done() || s.fastest() == 0 {
		return
	}
	from = slices.DeleteFunc(slices.Clone(from), func(x point) bool { return math.IsInf(x.t, 1) })
	sortPoints(from)
	from = append([]point{{d: draftOf(s.Best().Layout, s.est.class, s.p.Block, false)}}, from...)
	s.est.twoBatch, s.starts = true, nil
	s.work, s.budget = 0, budget
	for _, x := range from[:min(len(from), descents)] {
		d := x.d.clone()
		d.HeadChunks = 0
		s.starts = append(s.starts, s.judgeDraft(d))
	}
	s.run()
}

// optionsInTwos are the candidates with the memory of two micro-batches.
func (s *search) optionsInTwos() []option {
	return s.inTwosOf(s.options)
}

// inTwosOf is those of some options that are not far too slow, with the memory of two
// micro-batches.
func (s *search) inTwosOf(options []option) []option {
	var all []option
	for _, x := range options {
		if x.t > 2*tooLong*s.fastest() {
			continue
		}
		x.d = x.d.clone()
		x.rank = x.t * max(1, s.est.fullest(x.d))
		all = append(all, x)
	}
	slices.SortStableFunc(all, func(a, b option) int { return cmp.Compare(a.rank, b.rank) })
	return all
}

// mayGoInTwos says whether micro-batches may go through the layers in twos.
func (s *search) mayGoInTwos() bool { return s.p.Job.Accumulate > 1 && len(s.p.Ranks) > 1 }

// parts are the budgets for layouts whose micro-batches go one by one and for those
// whose go in twos. Where nothing fits in twos of what others found, there is little to
// search among these. Many ranks have less for either, for all of planning has a second
// for 128, and few a fifth of one for 16; but for many what goes one by one has as much
// as it had alone.
func (s *search) parts() (alone, twos float64) {
	if !s.mayGoInTwos() {
		return s.budget, 0
	}
	alone, twos = s.budget, s.budget*twosPart
	switch n := len(s.p.Ranks); {
	case n > someRanks:
		alone, twos = alone*partOfMany, twos*partOfMany
	case n <= fewInTwos:
		twos /= 2
	}
	for _, x := range s.starts {
		l := s.layout(x.d)
		l.TwoBatch, l.HeadChunks = true, 0
		if s.p.Overfull(l) == nil {
			return alone, twos
		}
	}
	return s.budget, s.budget * twosPart / 4
}

// twosPart is what is added to the budget for micro-batches in twos, of up to fewInTwos
// ranks half of that, partOfMany what many ranks have of all.
const (
	twosPart   = 0.6
	fewInTwos  = 16
	partOfMany = 0.55
)

// chunksGap is how much slower than the best so far a group may be to be tried with
// chunks of heads.
const chunksGap = 0.25

// inChunks is a point or, if it is a single group that gains by chunks of heads, with
// the best number of them. Micro-batches in twos hide all-to-alls without.
func (s *search) inChunks(best point) point {
	d := best.d
	if d.HeadChunks > 0 || s.est.twoBatch || len(d.ring) != 1 || d.ranks() == 1 || !s.unequal() || best.t > s.fastest()*(1+chunksGap) {
		return best
	}
	for k := 2; k <= costmodel.MaxHeadChunks; k++ {
		x := d.clone()
		x.HeadChunks = k
		if t := s.judge(s.layout(x)); t < best.t*(1-minGain) {
			best = point{x, t}
		}
	}
	return best
}

// inTurns is a point or, if it is a ring of micro-batches in twos that gains by it, with
// their steps in turn.
func (s *search) inTurns(best point) point {
	if best.d.InTurns() != "" || best.t > s.fastest()*(1+turnsGap) {
		return best
	}
	return s.rewoven(best)
}

// rewoven is a point or, if it is faster, with the rings of micro-batches in twos in turn in
// a pass where they are not, or the other way round. Passes add up, so that each is tried by
// itself.
func (s *search) rewoven(best point) point {
	if !s.est.twoBatch || len(best.d.ring) < 2 || math.IsInf(best.t, 1) {
		return best
	}
	for _, back := range []bool{false, true} {
		x := best.d.clone()
		if back {
			x.WeaveBackward = !x.WeaveBackward
		} else {
			x.WeaveForward = !x.WeaveForward
		}
		if t := s.judge(s.layout(x)); t < best.t*(1-minGain) {
			best = point{x, t}
		}
	}
	return best
}

// turnsGap is how much slower than the best so far a ring may be to be tried so.
const turnsGap = 0.3

// ownLast is the fastest points with own blocks last, of those that gain by it. Equal
// devices keep the layout that is known.
func (s *search) ownLast(points []point) (found []point) {
	if !s.unequal() {
		return nil
	}
	sortPoints(points)
	for _, x := range points[:min(len(points), lateStarts)] {
		if y := s.turned(x.d); y.t < x.t*(1-dropGain) {
			found = append(found, y)
		}
	}
	return found
}

// turned is a draft whose own blocks are computed last where they are first, and
// first where they are last.
func (s *search) turned(d *draft) point {
	x := d.clone()
	x.OwnLast = !d.OwnLast
	return s.judgeDraft(x)
}

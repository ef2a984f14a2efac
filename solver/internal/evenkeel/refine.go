package evenkeel

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// redescents is how many of the points of many ranks are improved again when all have
// been, for each one's share of the work ends its descent halfway, and redescentPart the
// part of the work for that. Of few ranks refine takes the best.
const (
	redescents    = 3
	redescentPart = 6
)

// descendEach improves points, each with an equal part of some work, and sorts them.
func (s *search) descendEach(points []point, work float64) {
	share := work / float64(max(1, len(points)))
	for i := range points {
		points[i] = s.descend(points[i], s.work+share)
	}
	sortPoints(points)
}

// refine spends what is left of the budget on the two best points: moves of
// single groups and ranks where there are few, which may treat equals unequally
// and so must gain more.
func (s *search) refine(points []point) {
	points = points[:min(2, len(points))]
	for i := range points {
		if s.unequal() && len(s.p.Ranks) <= tinyRanks {
			points[i] = s.regroup(points[i])
		}
		points[i] = s.single(points[i])
	}
}

// tinyRanks is up to how many ranks groupings are searched rank by rank.
const tinyRanks = 8

// single searches with every group a kind of its own.
func (s *search) single(from point) point {
	n := len(s.p.Ranks)
	l := s.layout(from.d)
	if n > fewRanks || !s.unequal() && uniform(l, s.p.Block) {
		return from
	}
	w := &walk{search: s, at: from, until: s.budget, gain: minGain, apart: true}
	switch {
	case !s.unequal():
		w.gain = dropGain
	case n > 4:
		w.gain = minGain * 10
	}
	d := draftOf(l, s.est.class, s.p.Block, true)
	w.at = point{d, from.t}
	w.swapSlots()
	w.shifts(w.p.Block*8, 1)
	w.headMoves()
	w.memberMoves()
	w.shifts(w.p.Block*2, 1)
	return w.at
}

// settle improves the best that was found once more, for what was found late had little
// left of its budget to descend in: kinds of groups, and then group by group, which may
// treat equals unequally and so must gain more. Equal devices keep the layout that is
// known.
func (s *search) settle(effort float64) {
	if s.Done() || s.fastest() == 0 || !s.unequal() {
		return
	}
	s.est.twoBatch = s.Best().Layout.TwoBatch
	s.work, s.budget = 0, budgetOf(len(s.p.Ranks))*settlePart*effort
	s.descend(s.rewoven(s.judgeDraft(draftOf(s.Best().Layout, s.est.class, s.p.Block, false))), s.budget/2)
	d := draftOf(s.Best().Layout, s.est.class, s.p.Block, true)
	w := &walk{search: s, at: point{d, s.fastest()}, until: s.budget, gain: minGain * 10, apart: true}
	w.shifts(w.largestShift(), 1)
}

// settlePart is what is added to the budget for that.
const settlePart = 0.1

// uniform says whether all ranks at work have equal heads and, but for a block,
// equal tokens.
func uniform(l costmodel.Layout, block units.Tokens) bool {
	first := l.Groups[0][0]
	for _, g := range l.Groups {
		for _, h := range g {
			own, other := l.Shards[h.Rank].Tokens(), l.Shards[first.Rank].Tokens()
			if h.QHeads != first.QHeads || max(own-other, other-own) > block {
				return false
			}
		}
	}
	return true
}

// swapSlots swaps groups in the ring: any two while they are few, else
// neighbours.
func (w *walk) swapSlots() {
	n := len(w.at.d.ring)
	for i := range n {
		for gap := 1; gap < n-i && (gap == 1 || n <= tinyRanks); gap++ {
			d := w.at.d.clone()
			d.ring = slices.Clone(d.ring)
			d.ring[i], d.ring[i+gap] = d.ring[i+gap], d.ring[i]
			w.try(d)
		}
	}
}

// regroup moves single ranks to other groups, out of the ring and to places of
// their own, swaps ranks of different classes, and descends from what comes near.
func (s *search) regroup(from point) point {
	best, until := from, s.budget-s.budget/singlePart
	for improved := true; improved && !s.over() && s.work < until; {
		improved = false
		for _, d := range s.regrouped(best.d) {
			if s.work >= until {
				break
			}
			x := s.judgeDraft(d)
			if math.IsInf(x.t, 1) || x.t > best.t*(1+nearGap) {
				continue
			}
			if x = s.descend(x, min(until, s.work+s.budget/20)); x.t < best.t*(1-minGain) {
				best, improved = x, true
				break
			}
		}
	}
	return best
}

// regrouped lists a draft's neighbours with estimated shares: of other groups,
// and of the same groups with a member that has no heads.
func (s *search) regrouped(d *draft) []*draft {
	var all []*draft
	for _, groups := range s.regroupings(d) {
		x := s.est.draft(groups)
		x.ring = ringOf(x, groups)
		s.estimate(x)
		all = append(all, x)
		all = append(all, s.headless(x)...)
	}
	return append(all, s.headless(d)...)
}

// headless lists a draft's neighbours with a member that has no heads.
func (s *search) headless(d *draft) []*draft {
	var all []*draft
	for k := range d.kinds {
		for m := range d.kinds[k].class {
			if x := d.headless(k, m); x != nil {
				s.est.solve(x, nil)
				all = append(all, x)
			}
		}
	}
	return all
}

// headless deals a member's heads to the others, who has fewest first; nil if
// there is no one or nothing to deal.
func (d *draft) headless(kind, member int) *draft {
	k := &d.kinds[kind]
	if len(k.heads) < 2 || k.heads[member] == 0 {
		return nil
	}
	x := d.clone()
	k = &x.kinds[kind]
	k.heads = slices.Clone(k.heads)
	for ; k.heads[member] > 0; k.heads[member]-- {
		least := -1
		for m, h := range k.heads {
			if m != member && (least < 0 || h < k.heads[least]) {
				least = m
			}
		}
		k.heads[least]++
	}
	return x
}

// singlePart is the part of the budget that is kept for moves of single groups.
const singlePart = 16

// nearGap is how much slower than the best a regrouping with estimated shares
// may be to be improved.
const nearGap = 0.25

// ringOf is the ring in the order of some groups.
func ringOf(d *draft, groups [][]int) []slot {
	at := map[int]slot{}
	for k := range d.kinds {
		for g, ranks := range d.kinds[k].groups {
			at[ranks[0]] = slot{k, g}
		}
	}
	var ring []slot
	for _, g := range groups {
		ring = append(ring, at[g[0]])
	}
	return ring
}

// regroupings lists the neighbours of a grouping, in the order of its ring, each once: what
// each rank can do on its own, rank by rank, and then what two can. The budget ends somewhere
// among them, so the order counts. A rank alone that stands alone elsewhere, say, is next to
// itself, and two of them that join do so in two ways.
func (s *search) regroupings(d *draft) [][][]int {
	now := formationOf(d)
	var all [][][]int
	for r := range s.p.Ranks {
		for _, neighbours := range []func(formation, int) [][][]int{s.idling, joining, standingAlone} {
			all = append(all, neighbours(now, r)...)
		}
	}
	all = append(all, s.swapped(now)...)
	possible, seen := all[:0], map[string]bool{formationKey(now.groups): true}
	for _, groups := range all {
		groups = slices.DeleteFunc(groups, func(g []int) bool { return len(g) == 0 })
		key := formationKey(groups)
		if len(groups) > 0 && !seen[key] && s.p.AllExchangeable(groups) {
			seen[key] = true
			possible = append(possible, groups)
		}
	}
	return possible
}

// formationKey tells apart who is with whom, in which order.
func formationKey(groups [][]int) string {
	var b []byte
	for _, g := range groups {
		b = binary.AppendUvarint(b, uint64(len(g)))
		for _, r := range g {
			b = binary.AppendUvarint(b, uint64(r))
		}
	}
	return string(b)
}

// formation is who is with whom: groups in the order of their ring, and the group of each
// rank that has one.
type formation struct {
	groups [][]int
	of     map[int]int
}

func formationOf(d *draft) formation {
	now := formation{of: map[int]int{}}
	for i, at := range d.ring {
		now.groups = append(now.groups, d.kinds[at.kind].groups[at.group])
		for _, r := range now.groups[i] {
			now.of[r] = i
		}
	}
	return now
}

// without is a copy of the groups without a rank, of which one may be empty.
func (f formation) without(rank int) [][]int {
	left := make([][]int, len(f.groups))
	for i := range left {
		left[i] = slices.DeleteFunc(slices.Clone(f.groups[i]), func(r int) bool { return r == rank })
	}
	return left
}

// idling lets a rank have no work, if the others can exchange gradients without it.
func (s *search) idling(now formation, rank int) [][][]int {
	left := now.without(rank)
	if _, works := now.of[rank]; !works || !s.exchangeGradients(left) {
		return nil
	}
	return [][][]int{left}
}

// joining puts a rank into any other group.
func joining(now formation, rank int) (all [][][]int) {
	own, works := now.of[rank]
	for i := range now.groups {
		if works && i == own {
			continue
		}
		x := now.without(rank)
		x[i] = append(x[i], rank)
		slices.Sort(x[i])
		all = append(all, x)
	}
	return all
}

// standingAlone makes a rank a group of its own at any place of the ring.
func standingAlone(now formation, rank int) (all [][][]int) {
	for i := range len(now.groups) + 1 {
		all = append(all, slices.Insert(now.without(rank), i, []int{rank}))
	}
	return all
}

// swapped swaps two ranks of different classes in different groups.
func (s *search) swapped(now formation) (all [][][]int) {
	n := len(s.p.Ranks)
	for a := range n {
		for b := a + 1; b < n; b++ {
			of, worksA := now.of[a]
			other, worksB := now.of[b]
			if !worksA || !worksB || of == other || s.est.class[a] == s.est.class[b] {
				continue
			}
			x := make([][]int, len(now.groups))
			for i := range x {
				x[i] = slices.Clone(now.groups[i])
			}
			x[of][slices.Index(x[of], a)], x[other][slices.Index(x[other], b)] = b, a
			all = append(all, x)
		}
	}
	return all
}

// exchangeGradients says whether the ranks of some groups can do so alone.
func (s *search) exchangeGradients(groups [][]int) bool {
	ranks := slices.Concat(groups...)
	slices.Sort(ranks)
	return len(ranks) > 0 && s.p.Alone(ranks) == nil
}

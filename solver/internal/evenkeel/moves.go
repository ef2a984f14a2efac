package evenkeel

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// walk is a descent from one draft.
type walk struct {
	*search
	at    point
	until float64 // work at which it ends
	gain  float64 // least relative gain of a move
	apart bool    // members of a group are moved one by one
	fit   bool    // towards what fits memory: t is what the ranks hold too much
}

// descend improves a draft by moves of whole kinds until nothing helps or the
// work is used up. Where nothing near fits, no move helps, and none costs any work a second
// time: the time stays infinite, which is no gain.
func (s *search) descend(from point, until float64) point {
	w := &walk{search: s, at: from, until: until, gain: minGain, apart: s.unequal() && len(s.p.Ranks) <= tinyRanks}
	for {
		before := w.at.t
		w.orders()
		w.shifts(w.largestShift(), 1)
		tight := w.est.fullest(w.at.d) > tightFill
		if tight {
			w.tradeoffMoves()
		}
		w.headMoves()
		w.memberMoves()
		if !tight {
			w.tradeoffMoves()
		}
		if w.ended() || w.at.t == before || w.at.t > before*(1-descentGain) {
			return w.at
		}
	}
}

// descentGain is the least relative gain of a round of moves for another one, and
// tightFill the part of its usable memory that a rank fills where trades of heads
// for tokens come first: elsewhere they take the shortest way down and end where
// single moves, which lead further, find nothing more.
const (
	descentGain = 2e-4
	tightFill   = 0.9
)

func (w *walk) ended() bool {
	return w.over() || w.work >= w.until || w.fit && w.at.t == 0
}

// try moves to a draft if it is faster.
func (w *walk) try(d *draft) bool {
	if d == nil || w.ended() {
		return false
	}
	x := point{d, 0}
	if w.fit {
		x.t = w.excess(d)
	} else {
		x = w.judgeDraft(d)
	}
	if x.t >= w.at.t*(1-w.gain) {
		return false
	}
	w.at = x
	return true
}

// fitIn moves tokens and heads of a draft until all ranks can hold their part,
// and judges what comes out.
func (s *search) fitIn(d *draft) point {
	w := &walk{search: s, until: s.work + s.budget/50, gain: minGain, fit: true}
	w.at = point{d, w.excess(d)}
	for round := 0; ; round++ {
		before := w.at.t
		w.apart = round%2 == 1 && len(s.p.Ranks) <= fewRanks
		w.shifts(w.largestShift()*4, 1)
		w.headMoves()
		w.memberMoves()
		if w.ended() || round > 0 && w.at.t > before*(1-descentGain) {
			break
		}
	}
	if w.at.t > 0 {
		return point{d, math.Inf(1)}
	}
	return s.judgeDraft(w.at.d)
}

// excess is by what part of their usable memory all ranks together are overfull.
func (s *search) excess(d *draft) float64 {
	s.work += float64(30 * d.ranks())
	over := 0.0
	for _, m := range s.p.Sim.Memory(s.layout(d)) {
		over += max(0, strategy.Fill(m)/costmodel.Usable-1)
	}
	return over
}

// orders tries other rings.
func (w *walk) orders() {
	for _, ring := range w.at.d.rings(func(r int) int { return w.p.Ranks[r].Node }) {
		d := w.at.d.clone()
		d.ring = ring
		w.try(d)
	}
}

// largestShift is the power of two of blocks next to a sixteenth of the largest
// kind.
func (w *walk) largestShift() units.Tokens {
	most := units.Tokens(0)
	for i := range w.at.d.kinds {
		most = max(most, w.at.d.kinds[i].total)
	}
	step := w.p.Block
	for step*32 <= most {
		step *= 2
	}
	return step
}

// shifts moves tokens between kinds, in steps that halve down to `least` blocks.
func (w *walk) shifts(step units.Tokens, least int) {
	for ; step >= units.Tokens(least)*w.p.Block && !w.ended(); step /= 2 {
		for rounds := 0; rounds < 4 && w.shiftAll(step); rounds++ {
		}
	}
}

// shiftAll tries the shift between every two kinds, as far as it helps, and
// says whether any did.
func (w *walk) shiftAll(step units.Tokens) bool {
	some := false
	for _, ab := range w.pairs() {
		for w.try(w.at.d.shift(ab[0], ab[1], step)) {
			some = true
		}
	}
	return some
}

// pairs lists two kinds each: all while they are few, else those that are late
// with those that idle.
func (w *walk) pairs() [][2]int {
	n := len(w.at.d.kinds)
	from, to := countTo(n), countTo(n)
	if n > fewKinds {
		idle := w.idleKinds()
		slices.SortStableFunc(from, func(a, b int) int { return cmp.Compare(idle[a], idle[b]) })
		to = slices.Clone(from[n-fewKinds/2:])
		slices.Reverse(to)
		from = from[:fewKinds/2]
	}
	var all [][2]int
	for _, a := range from {
		for _, b := range to {
			if a != b {
				all = append(all, [2]int{a, b})
			}
		}
	}
	return all
}

// fewKinds is up to how many kinds all pairs are tried.
const fewKinds = 6

// idleKinds is the least time that a member of each kind idles.
func (w *walk) idleKinds() []float64 {
	idle := make([]float64, len(w.at.d.kinds))
	of, err := w.p.Sim.Idle(w.layout(w.at.d))
	if err != nil {
		w.Fail(err)
		return idle
	}
	w.work += 10 * float64(w.at.d.ranks()*len(w.at.d.ring)) // an account takes longer
	for i := range w.at.d.kinds {
		idle[i] = math.Inf(1)
		for _, g := range w.at.d.kinds[i].groups {
			for _, r := range g {
				idle[i] = min(idle[i], float64(of[r]))
			}
		}
	}
	return idle
}

// shift moves tokens from one kind to another; nil if there are none. It is one
// amount for all groups together, so that the finest is a block of one of them.
func (d *draft) shift(from, to int, tokens units.Tokens) *draft {
	n := min(tokens, d.kinds[from].total)
	if n == 0 {
		return nil
	}
	x := d.clone()
	x.kinds[from].total -= n
	x.kinds[to].total += n
	return x
}

// headMoves moves heads between the members of each kind's groups: one from one
// member of a class to one of another, and one from each to each.
func (w *walk) headMoves() {
	for k := range w.at.d.kinds {
		if len(w.at.d.kinds[k].class) < 2 {
			continue
		}
		for again := true; again && !w.ended(); {
			again = false
			for _, d := range w.at.d.headNeighbours(k, w.p.Job.Model.QHeads/w.p.Job.Model.KVHeads, w.apart) {
				if w.try(d) {
					again = true
					break
				}
			}
		}
	}
}

// tradeoffMoves tries every trade of heads for tokens inside the groups of each
// kind.
func (w *walk) tradeoffMoves() {
	for k := range w.at.d.kinds {
		if len(w.at.d.kinds[k].class) < 2 || w.at.d.kinds[k].total == 0 || w.ended() {
			continue
		}
		each, widest := w.at.d.lengths()
		t := w.est.newTradeoff(&w.at.d.kinds[k], len(w.at.d.ring), each[k], widest[k], w.at.d.ranks())
		front := t.front()
		w.work += w.est.spent()
		for _, x := range front {
			d := w.at.d.clone()
			d.kinds[k].heads, d.kinds[k].weight = x.heads, x.weight
			w.try(d)
		}
	}
}

// headNeighbours lists a kind's moves of heads. Of members that are alike the
// one with the most heads gives and the one with the fewest takes.
func (d *draft) headNeighbours(k, unit int, apart bool) []*draft {
	var all []*draft
	for _, ab := range d.kinds[k].memberPairs(apart, len(d.kinds[k].class)) {
		a, b := ab[0], ab[1]
		for _, n := range slices.Compact([]int{1, unit}) {
			all = append(all, d.moveHeads(k, a[len(a)-1:], b[:1], n), d.moveHeads(k, a, b, n))
		}
	}
	return all
}

// memberPairs lists who may give to whom: members that are alike to others that
// are, and if wanted each to each. Both are needed: while several are equally
// late nothing is gained by relieving one of them. More than `most` sets of
// members have too many pairs.
func (k *groupKind) memberPairs(apart bool, most int) [][2][]int {
	var all [][2][]int
	pair := func(sets [][]int) {
		for i, a := range sets {
			for j, b := range sets {
				if i != j {
					all = append(all, [2][]int{a, b})
				}
			}
		}
	}
	sets := k.alikeMembers(false)
	if len(sets) <= most {
		pair(sets)
	}
	if apart && len(sets) < len(k.class) && len(k.class) <= most {
		pair(k.alikeMembers(true))
	}
	return all
}

// alikeMembers lists members by class and heads, or each apart.
func (k *groupKind) alikeMembers(apart bool) [][]int {
	var sets [][]int
	for i := range k.class {
		at := slices.IndexFunc(sets, func(s []int) bool {
			return !apart && k.class[s[0]] == k.class[i] && k.heads[s[0]] == k.heads[i]
		})
		if at < 0 {
			sets = append(sets, []int{i})
			continue
		}
		sets[at] = append(sets[at], i)
	}
	return sets
}

// moveHeads takes n heads from each of some members and deals them to others in
// turn; nil if one has too few.
func (d *draft) moveHeads(kind int, from, to []int, n int) *draft {
	x := d.clone()
	k := &x.kinds[kind]
	k.heads = slices.Clone(k.heads)
	got := 0
	for _, m := range from {
		if k.heads[m] < n {
			return nil
		}
		k.heads[m] -= n
		got += n
	}
	for i := 0; i < got; i++ {
		k.heads[to[i%len(to)]]++
	}
	return x
}

// memberMoves moves tokens between the members of each kind's groups.
func (w *walk) memberMoves() {
	for k := range w.at.d.kinds {
		if len(w.at.d.kinds[k].class) < 2 {
			continue
		}
		step := w.p.Block
		for step*16*units.Tokens(len(w.at.d.kinds[k].class)*len(w.at.d.kinds[k].groups)) <= w.at.d.kinds[k].total {
			step *= 2
		}
		for ; step >= w.p.Block && !w.ended(); step /= 2 {
			for rounds := 0; rounds < 4 && w.memberRound(k, step); rounds++ {
			}
		}
	}
}

func (w *walk) memberRound(k int, step units.Tokens) bool {
	some := false
	for _, ab := range w.at.d.kinds[k].memberPairs(w.apart, tinyRanks) {
		for w.try(w.at.d.moveTokens(k, ab[0], ab[1], step, w.p.Block)) {
			some = true
		}
	}
	return some
}

// moveTokens takes a step of tokens from each of some members of every group of
// a kind for others, which share it; nil if one has too few.
func (d *draft) moveTokens(kind int, from, to []int, step, block units.Tokens) *draft {
	x := d.clone()
	k := &x.kinds[kind]
	own := k.members(k.total/units.Tokens(len(k.groups))/block*block, block)
	k.weight = make([]float64, len(own))
	for i, n := range own {
		k.weight[i] = float64(n)
	}
	for _, m := range from {
		if own[m] < step {
			return nil
		}
		k.weight[m] -= float64(step)
	}
	for _, m := range to {
		k.weight[m] += float64(step) * float64(len(from)) / float64(len(to))
	}
	return x
}

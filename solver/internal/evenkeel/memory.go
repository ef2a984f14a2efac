package evenkeel

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// tooSmall says whether some ranks cannot hold the sequence, however it is
// split: what a layer keeps is a sum over tokens and over tokens x heads, so its
// total does not depend on the split.
func (e *estimator) tooSmall(ranks []int) bool {
	m := e.p.Job.Model
	whole := costmodel.MemoryShare{Tokens: e.p.Job.SeqLen, GroupTokens: e.p.Job.SeqLen, QHeads: m.QHeads, KVHeads: m.KVHeads, Ranks: len(ranks)}
	need, room := 0.0, 0.0
	for i, r := range ranks {
		k := e.m.Held.Of(whole, e.m.Memory[e.m.TypeOf[r]])
		if n := float64(k.Activations); i == 0 || n < need {
			need = n
		}
		room += costmodel.Usable*float64(k.Capacity) - float64(k.States)
	}
	return need > room
}

// fullest estimates the part of its usable memory that the fullest rank of a
// draft fills.
func (e *estimator) fullest(d *draft) float64 {
	each, widest := d.lengths()
	most := 0.0
	for i := range d.kinds {
		k := &d.kinds[i]
		most = max(most, e.fill(k.lots(), setting{len(k.class), each[i], widest[i], len(d.ring) - 1, d.ranks()}))
	}
	return most
}

// lengths is the tokens of a group of each kind, and of the longest other group,
// whose block passes by; 0 if there is none.
func (d *draft) lengths() (each, widest []float64) {
	first, second := 0.0, 0.0
	each, widest = make([]float64, len(d.kinds)), make([]float64, len(d.kinds))
	for i := range d.kinds {
		n := len(d.kinds[i].groups)
		each[i] = float64(d.kinds[i].total) / float64(n)
		for range min(2, n) {
			first, second = max(first, each[i]), max(second, min(first, each[i]))
		}
	}
	for i := range widest {
		if widest[i] = first; each[i] == first {
			widest[i] = second
		}
	}
	return each, widest
}

// setting is what a member's memory depends on besides what it has itself.
type setting struct {
	members int     // of its group
	tokens  float64 // of its group
	widest  float64 // tokens of the longest block that passes by
	others  int     // groups besides its own
	ranks   int     // at work in all
}

// fill is the part of its usable memory that the fullest member of a group fills.
func (e *estimator) fill(lots []lot, in setting) float64 {
	most := 0.0
	for _, l := range lots {
		share := e.share(l, in.tokens*l.weight, in)
		most = max(most, strategy.Fill(e.m.Held.Of(share, e.m.Memory[e.dev[l.class]]))/costmodel.Usable)
	}
	return most
}

// share is what a member of a lot holds that has so many tokens.
func (e *estimator) share(l lot, tokens float64, in setting) costmodel.MemoryShare {
	m := e.p.Job.Model
	return costmodel.MemoryShare{
		Tokens: tokensUp(tokens), GroupTokens: tokensUp(in.tokens), Widest: tokensUp(in.widest), Others: in.others, QHeads: l.heads,
		KVHeads: min(m.KVHeads, m.KVHeadsOf(0, l.heads)+e.straddle(l.heads)), Ranks: in.ranks, TwoBatch: e.twoBatch,
	}
}

// rooms is the most tokens that a member of each lot can own.
func (e *estimator) rooms(lots []lot, in setting) []float64 {
	rooms := make([]float64, len(lots))
	for i, l := range lots {
		rooms[i] = e.roomOf(l, in.tokens, in)
	}
	return rooms
}

// roomOf is the most tokens, up to a number, that a member of a lot can own, but for a block.
func (e *estimator) roomOf(l lot, upTo float64, in setting) float64 {
	e.spend(2 * memoryWork)
	most := e.m.Held.MostTokens(e.share(l, upTo, in), e.m.Memory[e.dev[l.class]])
	switch {
	case most >= upTo:
		return upTo
	case in.members == 1:
		return 0
	}
	return max(0, most-float64(e.p.Block))
}

// memoryWork is what a rank's memory costs, with its share, in units of search.work.
const memoryWork = 3

// spend counts what the fitting of shares to memory costs, as search.work does.
func (e *estimator) spend(work float64) { e.work += work }

// spent is what was counted since it was last asked for.
func (e *estimator) spent() float64 {
	work := e.work
	e.work = 0
	return work
}

// room is the most tokens, up to `longest`, that one of n groups, of a kind, can hold beside
// blocks of `widest` tokens, of `ranks` ranks at work, its tokens split as memory
// wants.
func (e *estimator) room(k *groupKind, longest, widest float64, n, ranks int) float64 {
	lots := k.lots()
	return most(longest, float64(e.p.Block), func(s float64) float64 {
		held := 0.0
		for i, r := range e.rooms(lots, setting{len(k.class), s, widest, n - 1, ranks}) {
			held += r * float64(lots[i].count)
		}
		return held
	})
}

// most is the largest s up to `longest` of which the capacity, concave in s, holds
// all, or a hair less.
func most(longest, block float64, capacity func(s float64) float64) float64 {
	lo, hi := 0.0, longest
	if capacity(hi) >= hi {
		return hi
	}
	for hi-lo > max(block, hi/512) {
		if mid := (lo + hi) / 2; capacity(mid) >= mid {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// fitTokens gives a draft tokens that fit beside its heads and returns the
// layers' estimated seconds; nil if there are none.
func (e *estimator) fitTokens(d *draft) (best *draft, least float64) {
	least = math.Inf(1)
	e.withCaps(d, e.room, func(caps []float64, passing float64) {
		x := d.clone()
		if t := e.solve(x, caps); t < least {
			best, least = x, t
			for k := range x.kinds {
				e.fitWeights(&x.kinds[k], passing, len(x.ring), x.ranks())
			}
		}
	})
	return best, least
}

// roomFor is the most tokens, up to `longest`, that a group of a kind can hold beside
// blocks of `widest` tokens, of so many groups and ranks at work.
type roomFor func(k *groupKind, longest, widest float64, groups, ranks int) float64

// withCaps calls try with the most tokens that a group of each kind can have.
// How much a group holds depends on the longest block that passes through its
// buffers, so the longest is tried on a grid: a longer one leaves more freedom and
// less room, until there is none for the sequence. Where memory is short, what is
// feasible can lie between two lengths of the grid (see capsBetween).
func (e *estimator) withCaps(d *draft, room roomFor, try func(caps []float64, passing float64)) {
	n, total := len(d.ring), float64(e.p.Job.SeqLen)
	before, free := 0.0, make([]float64, len(d.kinds))
	for i := range free {
		free[i] = total
	}
	some := false
	for i := range widths {
		passing := passingOf(total, float64(n), i)
		c := e.capsAt(d, room, free, passing)
		if i > 0 && !some {
			if between := e.capsBetween(d, room, free, before, passing); between != nil {
				try(between.tokens, between.passing)
				some = true
			}
		}
		if c.held < total {
			return
		}
		if n == 1 {
			try(c.tokens, 0)
			return
		}
		if c.dealt >= total {
			try(c.tokens, passing)
			some = true
		}
		before, free = passing, c.room
	}
}

// passingOf is the i-th longest block that is tried for n groups, from an even share
// to the whole sequence.
func passingOf(total, n float64, i int) float64 {
	return total / n * math.Pow(n, float64(i)/(widths-1))
}

// caps is how many tokens a group of each kind has room for, and may have so that
// no block is longer than the one that passes; and the sums over all groups.
type caps struct {
	passing      float64
	room, tokens []float64
	held, dealt  float64
}

// capsAt is the caps beside blocks of so many tokens; free is what there is room for
// at most.
func (e *estimator) capsAt(d *draft, room roomFor, free []float64, passing float64) *caps {
	c := &caps{passing: passing, room: make([]float64, len(free)), tokens: make([]float64, len(free))}
	longest := passing + float64(e.p.Block)
	if len(d.ring) == 1 {
		passing = 0
	}
	for k := range free {
		groups := float64(len(d.kinds[k].groups))
		c.room[k] = room(&d.kinds[k], free[k], passing, len(d.ring), d.ranks())
		c.tokens[k] = math.Floor(min(longest, c.room[k]))
		c.held += groups * c.room[k]
		c.dealt += groups * c.tokens[k]
	}
	return c
}

// capsBetween looks for a longest block between two lengths that leaves both enough
// room and enough freedom, where neither of them does; nil if there seems to be none.
// Of rooms free beside the shorter one, groups get no more than a longer one
// is long, which rules most intervals out at no cost.
func (e *estimator) capsBetween(d *draft, room roomFor, free []float64, lo, hi float64) *caps {
	total, block := float64(e.p.Job.SeqLen), float64(e.p.Block)
	for range bisections {
		most := 0.0
		for k := range free {
			most += float64(len(d.kinds[k].groups)) * min(free[k], hi+block)
		}
		if most < total || hi-lo < block {
			return nil
		}
		mid := (lo + hi) / 2
		switch c := e.capsAt(d, room, free, mid); {
		case c.dealt >= total:
			return c
		case c.held < total:
			hi = mid
		default:
			lo, free = mid, c.room
		}
	}
	return nil
}

// widths is the size of the grid of longest shares, and bisections how often an
// interval of it is halved.
const (
	widths     = 9
	bisections = 6
)

// fitWeights splits the tokens of a kind's groups, of n in all, at the pace of linear work, as
// far as the members have room.
func (e *estimator) fitWeights(k *groupKind, widest float64, n, ranks int) {
	if len(k.class) == 1 || k.total == 0 {
		return
	}
	s := float64(k.total) / float64(len(k.groups))
	lots := k.lots()
	paces, counts := make([]pace, len(lots)), make([]float64, len(lots))
	for i, l := range lots {
		paces[i], counts[i] = pace{0, 1 / max(1e-9, l.weight)}, float64(l.count)
	}
	each, _ := level(s, paces, counts, e.rooms(lots, setting{len(k.class), s, widest, n - 1, ranks}))
	if each == nil {
		return
	}
	all := 0.0
	for _, w := range k.weight {
		all += w
	}
	weight := make([]float64, len(k.weight))
	for m := range weight {
		for i, l := range lots {
			if l.class == k.class[m] && l.heads == k.heads[m] && l.weight == k.weight[m]/all {
				weight[m] = max(1e-9, each[i])
			}
		}
	}
	k.weight = weight
}

// straddle is how many key-value heads more a run of query heads may need than
// where it begins with one.
func (e *estimator) straddle(heads int) int {
	m := e.p.Job.Model
	if each := m.QHeads / m.KVHeads; each > 1 && heads%each != 0 {
		return 1
	}
	return 0
}

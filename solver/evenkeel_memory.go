package solver

import "github.com/evenkeel/evenkeel/costmodel"

// tooSmall says whether some ranks cannot hold the sequence, however it is
// split: what a layer keeps is a sum over tokens and over tokens x heads, so its
// total does not depend on the split.
func (e *estimator) tooSmall(ranks []int) bool {
	m := e.p.Job.Model
	whole := costmodel.MemoryShare{Tokens: e.p.Job.SeqLen, GroupTokens: e.p.Job.SeqLen, QHeads: m.QHeads, KVHeads: m.KVHeads, AllKVHeads: m.KVHeads, Members: 1, Ranks: len(ranks)}
	need, room := 0.0, 0.0
	for i, r := range ranks {
		k := e.p.Job.MemoryOf(whole, e.m.memory[e.m.dev[r]])
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
	first, second, ranks := 0.0, 0.0, d.ranks()
	each := make([]float64, len(d.kinds))
	for i := range d.kinds {
		n := len(d.kinds[i].groups)
		each[i] = float64(d.kinds[i].total) / float64(n)
		for range min(2, n) {
			first, second = max(first, each[i]), max(second, min(first, each[i]))
		}
	}
	most := 0.0
	for i := range d.kinds {
		k, widest := &d.kinds[i], first
		if each[i] == first {
			widest = second
		}
		most = max(most, e.fill(k.lots(), len(k.class), each[i], widest, ranks))
	}
	return most
}

// fill is the part of its usable memory that the fullest member fills in a group
// of s tokens.
func (e *estimator) fill(lots []lot, members int, s, widest float64, ranks int) float64 {
	m := e.p.Job.Model
	all, most := 0, 0.0
	for _, l := range lots {
		all += l.count * m.KVHeadsOf(0, l.heads)
	}
	for _, l := range lots {
		share := e.share(l, all, members, s*l.weight, s, widest, ranks)
		most = max(most, fill(e.p.Job.MemoryOf(share, e.m.memory[e.dev[l.class]]))/costmodel.Usable)
	}
	return most
}

// share is what a member of a lot holds in a group of s tokens.
func (e *estimator) share(l lot, all, members int, tokens, s, widest float64, ranks int) costmodel.MemoryShare {
	m := e.p.Job.Model
	return costmodel.MemoryShare{
		Tokens: tokensUp(tokens), GroupTokens: tokensUp(s), Widest: tokensUp(widest), QHeads: l.heads,
		KVHeads: min(m.KVHeads, m.KVHeadsOf(0, l.heads)+e.straddle(l.heads)), AllKVHeads: all, Members: members, Ranks: ranks,
	}
}

// rooms is the most tokens that a member of each lot can own in a group of s
// tokens: memory is a maximum of straight lines in them, so that the chord from
// none to all of the group's errs on the safe side.
func (e *estimator) rooms(lots []lot, members int, s, widest float64, ranks int) []float64 {
	all := 0
	for _, l := range lots {
		all += l.count * e.p.Job.Model.KVHeadsOf(0, l.heads)
	}
	rooms := make([]float64, len(lots))
	for i, l := range lots {
		at := func(tokens float64) float64 {
			return fill(e.p.Job.MemoryOf(e.share(l, all, members, tokens, s, widest, ranks), e.m.memory[e.dev[l.class]])) / costmodel.Usable
		}
		none, whole := at(0), at(s)
		switch {
		case whole <= 1:
			rooms[i] = s
		case none < 1 && members > 1:
			rooms[i] = max(0, s*(1-none)/(whole-none)-float64(e.p.Block))
		}
	}
	return rooms
}

// room is the most tokens that a group of a kind can hold beside blocks of
// `widest` tokens, of `ranks` ranks at work, its tokens split as memory wants.
func (e *estimator) room(k *groupKind, widest float64, ranks int) float64 {
	lots := k.lots()
	fits := func(s float64) bool {
		held := 0.0
		for i, r := range e.rooms(lots, len(k.class), s, widest, ranks) {
			held += r * float64(lots[i].count)
		}
		return held >= s
	}
	lo, hi := 0.0, float64(e.p.Job.SeqLen)
	if fits(hi) {
		return hi
	}
	for range 20 {
		if mid := (lo + hi) / 2; fits(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// fitWeights splits the tokens of a kind's groups at the pace of linear work, as
// far as the members have room.
func (e *estimator) fitWeights(k *groupKind, widest float64, ranks int) {
	if len(k.class) == 1 || k.total == 0 {
		return
	}
	s := float64(k.total) / float64(len(k.groups))
	lots := k.lots()
	paces, counts := make([]pace, len(lots)), make([]float64, len(lots))
	for i, l := range lots {
		paces[i], counts[i] = pace{0, 1 / max(1e-9, l.weight)}, float64(l.count)
	}
	each, _ := level(s, paces, counts, e.rooms(lots, len(k.class), s, widest, ranks))
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

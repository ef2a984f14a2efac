package evenkeel

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
)

// wires is what the ring's hops take, forward and backward: a block crosses all
// borders between groups but one, one after the other, and each border lets all
// blocks but one pass.
func (e *estimator) wires(d *draft, n int) wireTime {
	if n < 2 {
		return wireTime{}
	}
	// Borders between groups of the same kinds are alike where the same of their
	// outer members share nodes.
	type pair struct {
		from, to            int // kinds
		first, last, inside bool
	}
	type alike struct {
		pair
		count, example int
	}
	pairs := make([]alike, 0, 8) // few kinds, few pairs
	for i, at := range d.ring {
		next := d.ring[(i+1)%n]
		a, b := d.members(at), d.members(next)
		x := pair{at.kind, next.kind, e.together(a[0], b[0]), e.together(a[len(a)-1], b[len(b)-1]), e.together(a[0], b[len(b)-1])}
		known := slices.IndexFunc(pairs, func(o alike) bool { return o.pair == x })
		if known < 0 {
			known = len(pairs)
			pairs = append(pairs, alike{x, 0, i})
		}
		pairs[known].count++
	}
	var sum, most analytic.Times
	for _, x := range pairs {
		i := x.example
		late, load := e.border(d, d.ring[i], d.ring[(i+1)%n], n)
		sum.Forward += float64(x.count) * late.Forward
		sum.Backward += float64(x.count) * late.Backward
		most = most.Longer(load)
	}
	hops, grads := float64(n-1), float64(n-2) // the last one of a gradient leads home
	share := func(of analytic.Times) analytic.Times {
		return analytic.Times{Forward: of.Forward * hops, Backward: of.Forward*hops + (of.Backward-of.Forward)*grads}
	}
	all, port := share(analytic.Times{Forward: sum.Forward / float64(n), Backward: sum.Backward / float64(n)}), share(most)
	w := wireTime{all.Longer(port), 0}
	w.home = (sum.Backward - sum.Forward) / float64(n)
	return w
}

// wireTime is what a ring's hops take: until the last block has arrived, keys
// and values alone or gradients with them; and the last hop of a gradient, home,
// all for blocks of average length.
type wireTime struct {
	analytic.Times
	home float64
}

func (d *draft) members(at slot) []int { return d.kinds[at.kind].groups[at.group] }

// together says whether two ranks share a node.
func (e *estimator) together(a, b int) bool { return e.p.Ranks[a].Node == e.p.Ranks[b].Node }

// border is how late a block of average length arrives behind a border between
// two groups, and how long it keeps the busiest port. Pieces of a block that
// share a sender or a receiver with the one before wait for it, so where the
// heads' borders of both groups lie apart, all pieces between two common borders
// arrive one by one.
func (e *estimator) border(d *draft, from, to slot, n int) (late, load analytic.Times) {
	m := e.p.Job.Model
	a, b := &d.kinds[from.kind], &d.kinds[to.kind]
	senders, receivers := d.members(from), d.members(to)
	ofHead := float64(e.p.Job.SeqLen) / float64(n) * 2 * float64(m.HeadDim) // elements of a block
	crowd := max(e.crowd(a), e.crowd(b))
	var chain, out, in analytic.Times
	at, endA, endB := 0, 0, 0
	for i, j := -1, -1; at < m.QHeads; {
		for endA <= at && i+1 < len(a.heads) {
			i++
			endA += a.heads[i]
			out = analytic.Times{}
		}
		for endB <= at && j+1 < len(b.heads) {
			j++
			endB += b.heads[j]
			in = analytic.Times{}
		}
		end := min(endA, endB)
		t := e.message(senders[i], receivers[j], ofHead*float64(m.KVHeadsOf(at, end-at)), crowd)
		chain, out, in = chain.Plus(t), out.Plus(t), in.Plus(t)
		late, load = late.Longer(chain), load.Longer(out).Longer(in)
		if endA == endB {
			chain = analytic.Times{}
		}
		at = end
	}
	return late, load
}

// message is what passing on so many elements of a block takes between two ranks; crowd is
// how many share a network card on the way to another node.
func (e *estimator) message(from, to int, elements, crowd float64) analytic.Times {
	on := e.p.Ranks[from].Node
	if !e.together(from, to) {
		elements, on = elements*crowd, len(e.m.Inside)
	}
	key := math.Float64bits(elements)
	t, ok := e.hops[on][key]
	if !ok {
		link := e.m.Network
		if on < len(e.m.Inside) {
			link = e.m.Inside[on]
		}
		t.Forward = link.Seconds(op.KindSendRecv, elements*float64(e.p.Job.DType.Size()))
		t.Backward = t.Forward + link.Seconds(op.KindSendRecv, 4*elements)
		e.hops[on][key] = t
	}
	return t
}

// crowd is how many of a kind's members share a network card.
func (e *estimator) crowd(k *groupKind) float64 {
	most := 1.0
	for _, c := range k.class {
		if cards := e.cards[c]; cards > 0 {
			most = max(most, float64(min(len(k.class), e.size[c]))/float64(cards))
		}
	}
	return most
}

package solver

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// crewShare is what stages II and III give a crew.
type crewShare struct {
	total  units.Tokens
	tokens []units.Tokens
	heads  []int
}

// passing is the blocks of other groups, which pass by in the ring, longest first.
type passing []chunk

// chunk is blocks of one length.
type chunk struct {
	tokens units.Tokens
	count  int
}

// blocksOf counts the blocks of groups by length, longest first.
func blocksOf(shares []crewShare) passing {
	count := map[units.Tokens]int{}
	for _, s := range shares {
		count[s.total]++
	}
	var all passing
	for n, k := range count {
		all = append(all, chunk{n, k})
	}
	slices.SortFunc(all, func(a, b chunk) int { return cmp.Compare(b.tokens, a.tokens) })
	return all
}

// without takes one block of a length away.
func (all passing) without(tokens units.Tokens) passing {
	var rest passing
	for _, x := range all {
		if x.tokens == tokens {
			x.count--
		}
		if x.count > 0 {
			rest = append(rest, x)
		}
	}
	return rest
}

// cost is what the model finds for a crew's layer, all passes of a step.
type cost struct {
	over    float64 // 1, and by what parts of their memory members exceed it
	seconds float64
	spread  float64 // sum of squares of the members' loads: what breaks ties
}

// less orders costs: what fits better, then what is faster, then what is more
// even, so that a move helps even while another rank is equally late.
func (a cost) less(b cost) bool {
	const hair = 1e-12
	switch {
	case math.Abs(a.over-b.over) > hair*b.over:
		return a.over < b.over
	case math.Abs(a.seconds-b.seconds) > hair*b.seconds:
		return a.seconds < b.seconds
	}
	return a.spread < b.spread*(1-hair)
}

// pricer prices the shares of a crew while blocks of other groups pass by. It remembers
// rings by member, and what each member had and cost when it was last priced: a move of a
// search changes few of them.
type pricer struct {
	m     *perfModel
	crew  *crew
	other passing
	ranks int // at work in all
	rings map[ringKey]float64
	last  []memberCost
}

// pricer is that of a crew among so many ranks at work.
func (m *perfModel) pricer(c *crew, other passing, ranks int) *pricer {
	return &pricer{m: m, crew: c, other: other, ranks: ranks, rings: map[ringKey]float64{}, last: make([]memberCost, len(c.dev))}
}

// memberCost is what a member had, and what that takes.
type memberCost struct {
	costMember
	linear, ring float64
	over         float64 // by how much memory is exceeded, in proportion
}

// costMember is all that changes a member's cost while the blocks that pass by,
// its group's tokens and the ranks at work stay the same.
type costMember struct {
	tokens           units.Tokens
	heads, kv, allKV int
}

type ringKey struct {
	blockKey
	hop int // member of the crew whose law it is
}

// cost prices a share.
func (x *pricer) cost(s crewShare) cost {
	out := cost{over: 1}
	c, md := x.crew, x.m.p.Job.Model
	kv := make([]int, len(c.dev))
	allKV, first := 0, 0
	for i, h := range s.heads {
		kv[i] = md.KVHeadsOf(first, h)
		allKV += kv[i]
		first += h
	}
	linear, ring := 0.0, 0.0
	for i := range c.dev {
		k := &x.last[i]
		if has := (costMember{s.tokens[i], s.heads[i], kv[i], allKV}); k.costMember != has {
			*k = x.member(i, has, s.total)
		}
		linear, ring = max(linear, k.linear), max(ring, k.ring)
		out.spread += k.linear*k.linear + k.ring*k.ring
		out.over += k.over
	}
	out.seconds = linear + ring + x.m.exchange(c, s, kv)
	return out
}

// member prices member i of a group of so many tokens with what it has.
func (x *pricer) member(i int, has costMember, total units.Tokens) memberCost {
	d := x.crew.dev[i]
	k := memberCost{costMember: has, linear: x.m.linearTime(d, has.tokens)}
	k.ring = x.ring(x.crew.hops[i], blockKey{dev: d, heads: has.heads, kvHeads: has.kv, q: total})
	share := costmodel.MemoryShare{
		Tokens: has.tokens, GroupTokens: total, Members: len(x.crew.dev),
		QHeads: has.heads, KVHeads: has.kv, AllKVHeads: has.allKV, Ranks: x.ranks,
	}
	if len(x.other) > 0 {
		share.Widest = x.other[0].tokens
	}
	if full := x.m.held.Of(share, x.m.memory[d]); !full.Fits() {
		k.over = strategy.Fill(full)/costmodel.Usable - 1
	}
	return k
}

// ring is a member's time in the ring, forward and backward.
func (x *pricer) ring(h hopLaw, k blockKey) float64 {
	if t, ok := x.rings[ringKey{k, h.like}]; ok {
		return t
	}
	m := x.m
	own := m.block(k)
	if len(x.other) == 0 {
		own = m.wholeBlock(k)
	}
	total := m.forward*own.forward + own.backward
	width := float64(2*k.kvHeads*m.p.Job.Model.HeadDim) * h.crowd
	for _, b := range x.other {
		on := k
		on.kv = b.tokens
		t := m.block(on)
		kv := width * float64(b.tokens) * float64(m.p.Job.DType.Size())
		hop := h.seconds(op.KindSendRecv, kv)
		// Gradients travel in float32.
		both := hop + h.seconds(op.KindSendRecv, width*float64(b.tokens)*4)
		total += float64(b.count) * (m.forward*max(t.forward, hop) + max(t.backward, both))
	}
	x.rings[ringKey{k, h.like}] = total
	return total
}

// exchange is a crew's all-to-alls of a layer: queries, keys and values in and
// outputs out, backward the gradients of both.
func (m *perfModel) exchange(c *crew, s crewShare, kv []int) float64 {
	if len(c.dev) < 2 {
		return 0
	}
	e := float64(m.p.Job.Model.HeadDim) * float64(m.p.Job.DType.Size())
	n := len(c.dev)
	var few [3 * 32]float64 // most crews need no more room
	room := few[:]
	if 3*n > len(room) {
		room = make([]float64, 3*n)
	}
	tokens, q, qkv := room[:n], room[n:2*n], room[2*n:3*n]
	for i := range c.dev {
		tokens[i], q[i], qkv[i] = float64(s.tokens[i]), e*float64(s.heads[i]), e*float64(s.heads[i]+2*kv[i])
	}
	// In and out are mirror images: the port that sends most in one receives
	// most in the other.
	wide, narrow := c.port(tokens, qkv), c.port(tokens, q)
	even := float64(n) / float64(n-1)
	return (m.forward + 1) * (c.toAll.seconds(op.KindAllToAll, even*wide) + c.toAll.seconds(op.KindAllToAll, even*narrow))
}

// port is the bytes on the busiest port, or network card, when member i sends
// send[i] x receive[j] to member j.
func (c *crew) port(send, receive []float64) float64 {
	sends, receives, most := 0.0, 0.0, 0.0
	for i := range send {
		sends, receives = sends+send[i], receives+receive[i]
	}
	for i := range send {
		most = max(most, send[i]*(receives-receive[i]), receive[i]*(sends-send[i]))
	}
	for at, cards := range c.cards {
		if cards == 0 || len(c.cards) == 1 {
			continue
		}
		a, r := 0.0, 0.0
		for i, n := range c.node {
			if n == at {
				a, r = a+send[i], r+receive[i]
			}
		}
		each := float64(cards) / float64(c.users[at])
		most = max(most, a*(receives-r)/each, r*(sends-a)/each)
	}
	return most
}

// layout is the model's time of all layers of a layout, as it stands.
func (m *perfModel) layout(l costmodel.Layout) float64 {
	tokens := l.Tokens()
	groups, shares := make([][]int, len(l.Groups)), make([]crewShare, len(l.Groups))
	ranks := 0
	for g, group := range l.Groups {
		s := &shares[g]
		for _, h := range group {
			groups[g] = append(groups[g], h.Rank)
			s.tokens, s.heads = append(s.tokens, tokens[h.Rank]), append(s.heads, h.QHeads)
			s.total += tokens[h.Rank]
		}
		ranks += len(group)
	}
	worst, all := 0.0, blocksOf(shares)
	known, users := map[string]bool{}, m.cardUsers(groups)
	for g, ranksOf := range groups {
		key := m.key(ranksOf, before(groups, g), users) + fmt.Sprint(shares[g])
		if known[key] {
			continue
		}
		known[key] = true
		c, err := m.crewOf(ranksOf, before(groups, g), users)
		if err != nil {
			return math.Inf(1)
		}
		worst = max(worst, m.pricer(c, all.without(shares[g].total), ranks).cost(shares[g]).seconds)
	}
	return m.step(worst)
}

// step is the time of all layers in a step, by that of one.
func (m *perfModel) step(layer float64) float64 {
	return layer * float64(m.p.Job.Model.Layers) * float64(max(1, m.p.Job.Accumulate))
}

// hopeless is how many times slower than the best the analytic model must find a
// layout for it not to be simulated. The model leaves out the queues at ports,
// which only make a layout slower, and is within this factor of the simulator on
// equal shares (TestModelOfEqualShares).
const hopeless = 1.2

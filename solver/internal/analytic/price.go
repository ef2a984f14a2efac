package analytic

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

// Share is what a crew has: tokens in all and of each member, and heads of each.
type Share struct {
	Total  units.Tokens
	Tokens []units.Tokens
	Heads  []int
}

// Passing is the blocks of other groups, which pass by in the ring, longest first.
type Passing []chunk

// chunk is blocks of one length.
type chunk struct {
	tokens units.Tokens
	count  int
}

// groups is how many groups the blocks are of.
func (p Passing) groups() int {
	n := 0
	for _, b := range p {
		n += b.count
	}
	return n
}

// PassingOf counts the blocks of groups by length, longest first.
func PassingOf(shares []Share) Passing {
	count := map[units.Tokens]int{}
	for _, s := range shares {
		count[s.Total]++
	}
	var all Passing
	for n, k := range count {
		all = append(all, chunk{n, k})
	}
	slices.SortFunc(all, func(a, b chunk) int { return cmp.Compare(b.tokens, a.tokens) })
	return all
}

// Without takes one block of a length away.
func (all Passing) Without(tokens units.Tokens) Passing {
	var rest Passing
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

// Cost is what the model finds for a crew's layer, all passes of a step.
type Cost struct {
	Over    float64 // 1, and by what parts of their memory members exceed it
	Seconds float64
	spread  float64 // sum of squares of the members' loads: what breaks ties
}

// Less orders costs: what fits better, then what is faster, then what is more
// even, so that a move helps even while another rank is equally late.
func (a Cost) Less(b Cost) bool {
	const hair = 1e-12
	switch {
	case math.Abs(a.Over-b.Over) > hair*b.Over:
		return a.Over < b.Over
	case math.Abs(a.Seconds-b.Seconds) > hair*b.Seconds:
		return a.Seconds < b.Seconds
	}
	return a.spread < b.spread*(1-hair)
}

// Pricer prices the shares of a crew while blocks of other groups pass by. It remembers
// rings by member, and what each member had and cost when it was last priced: a move of a
// search changes few of them.
type Pricer struct {
	m     *Model
	Crew  *Crew
	other Passing
	ranks int // at work in all
	rings map[ringKey]float64
	last  []memberCost
}

// Pricer prices a crew among so many ranks at work.
func (m *Model) Pricer(c *Crew, other Passing, ranks int) *Pricer {
	return &Pricer{m: m, Crew: c, other: other, ranks: ranks, rings: map[ringKey]float64{}, last: make([]memberCost, len(c.Types))}
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
	tokens    units.Tokens
	heads, kv int
}

type ringKey struct {
	Block
	hop int // member of the crew whose law it is
}

// Cost prices a share.
func (x *Pricer) Cost(s Share) Cost {
	out := Cost{Over: 1}
	c, md := x.Crew, x.m.p.Job.Model
	kv := make([]int, len(c.Types))
	first := 0
	for i, h := range s.Heads {
		kv[i] = md.KVHeadsOf(first, h)
		first += h
	}
	linear, ring := 0.0, 0.0
	for i := range c.Types {
		k := &x.last[i]
		if has := (costMember{s.Tokens[i], s.Heads[i], kv[i]}); k.costMember != has {
			*k = x.member(i, has, s.Total)
		}
		linear, ring = max(linear, k.linear), max(ring, k.ring)
		out.spread += k.linear*k.linear + k.ring*k.ring
		out.Over += k.over
	}
	out.Seconds = linear + ring + x.m.exchange(c, s, kv)
	return out
}

// member prices member i of a group of so many tokens with what it has.
func (x *Pricer) member(i int, has costMember, total units.Tokens) memberCost {
	d := x.Crew.Types[i]
	k := memberCost{costMember: has, linear: x.m.LinearTime(d, has.tokens)}
	k.ring = x.ring(x.Crew.hops[i], Block{Type: d, Heads: has.heads, KVHeads: has.kv, Q: total})
	share := costmodel.MemoryShare{
		Tokens: has.tokens, GroupTokens: total,
		QHeads: has.heads, KVHeads: has.kv, Ranks: x.ranks,
	}
	if len(x.other) > 0 {
		share.Widest, share.Others = x.other[0].tokens, x.other.groups()
	}
	if full := x.m.Held.Of(share, x.m.Memory[d]); !full.Fits() {
		k.over = strategy.Fill(full)/costmodel.Usable - 1
	}
	return k
}

// ring is a member's time in the ring, forward and backward.
func (x *Pricer) ring(h hopLaw, k Block) float64 {
	if t, ok := x.rings[ringKey{k, h.like}]; ok {
		return t
	}
	m := x.m
	own := m.Block(k)
	if len(x.other) == 0 {
		own = m.WholeBlock(k)
	}
	total := m.Forwards*own.Forward + own.Backward
	width := float64(2*k.KVHeads*m.p.Job.Model.HeadDim) * h.crowd
	for _, b := range x.other {
		on := k
		on.KV = b.tokens
		t := m.Block(on)
		kv := width * float64(b.tokens) * float64(m.p.Job.DType.Size())
		hop := h.Seconds(op.KindSendRecv, kv)
		// Gradients travel in float32.
		both := hop + h.Seconds(op.KindSendRecv, width*float64(b.tokens)*4)
		total += float64(b.count) * (m.Forwards*max(t.Forward, hop) + max(t.Backward, both))
	}
	x.rings[ringKey{k, h.like}] = total
	return total
}

// exchange is a crew's all-to-alls of a layer: queries, keys and values in and
// outputs out, backward the gradients of both.
func (m *Model) exchange(c *Crew, s Share, kv []int) float64 {
	if len(c.Types) < 2 {
		return 0
	}
	e := float64(m.p.Job.Model.HeadDim) * float64(m.p.Job.DType.Size())
	n := len(c.Types)
	var few [3 * 32]float64 // most crews need no more room
	room := few[:]
	if 3*n > len(room) {
		room = make([]float64, 3*n)
	}
	tokens, q, qkv := room[:n], room[n:2*n], room[2*n:3*n]
	for i := range c.Types {
		tokens[i], q[i], qkv[i] = float64(s.Tokens[i]), e*float64(s.Heads[i]), e*float64(s.Heads[i]+2*kv[i])
	}
	// In and out are mirror images: the port that sends most in one receives
	// most in the other.
	wide, narrow := c.port(tokens, qkv), c.port(tokens, q)
	even := float64(n) / float64(n-1)
	return (m.Forwards + 1) * (c.toAll.Seconds(op.KindAllToAll, even*wide) + c.toAll.Seconds(op.KindAllToAll, even*narrow))
}

// port is the bytes on the busiest port, or network card, when member i sends
// send[i] x receive[j] to member j, as the law of the crew counts them.
func (c *Crew) port(send, receive []float64) float64 {
	sends, receives, most := 0.0, 0.0, 0.0
	for i := range send {
		sends, receives = sends+send[i], receives+receive[i]
	}
	if len(c.cards) == 1 || c.abroad == 0 {
		for i := range send {
			most = max(most, send[i]*(receives-receive[i]), receive[i]*(sends-send[i]))
		}
	}
	if len(c.cards) == 1 {
		return most
	}
	for at, cards := range c.cards {
		a, r := 0.0, 0.0
		for i, n := range c.Nodes {
			if n == at {
				a, r = a+send[i], r+receive[i]
			}
		}
		if cards > 0 {
			each := float64(cards) / float64(c.users[at]) / max(1, c.abroad)
			most = max(most, a*(receives-r)/each, r*(sends-a)/each)
		}
		if c.abroad == 0 {
			continue
		}
		for i, n := range c.Nodes {
			if n == at {
				most = max(most, c.abroad*send[i]*(receives-r), c.abroad*receive[i]*(sends-a), c.beside[at]*send[i]*(r-receive[i]), c.beside[at]*receive[i]*(a-send[i]))
			}
		}
	}
	return most
}

// Layout is the model's time of all layers of a layout, as it stands.
func (m *Model) Layout(l costmodel.Layout) float64 {
	tokens := l.Tokens()
	groups, shares := make([][]int, len(l.Groups)), make([]Share, len(l.Groups))
	ranks := 0
	for g, group := range l.Groups {
		s := &shares[g]
		for _, h := range group {
			groups[g] = append(groups[g], h.Rank)
			s.Tokens, s.Heads = append(s.Tokens, tokens[h.Rank]), append(s.Heads, h.QHeads)
			s.Total += tokens[h.Rank]
		}
		ranks += len(group)
	}
	worst, all := 0.0, PassingOf(shares)
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
		worst = max(worst, m.Pricer(c, all.Without(shares[g].Total), ranks).Cost(shares[g]).Seconds)
	}
	return m.Step(worst)
}

// Step is the time of all layers in a step, by that of one.
func (m *Model) Step(layer float64) float64 {
	return layer * float64(m.p.Job.Model.Layers) * float64(max(1, m.p.Job.Accumulate))
}

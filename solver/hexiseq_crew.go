package solver

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// crew is a candidate all-to-all group as the analytic model sees it: groups
// with equal devices, equally spread over nodes and equally fed, are one crew.
type crew struct {
	dev   []int    // of each member
	node  []int    // of each member, counted from the crew's first
	cards []int    // network cards of these nodes; 0 is one a device
	users []int    // groups whose all-to-alls these cards serve at once, this one among them
	toAll linkLaw  // unless the crew is alone
	hops  []hopLaw // of the blocks that come in, by member
}

// hopLaw is the link over which a member receives blocks, slowed where members
// share network cards.
type hopLaw struct {
	linkLaw
	crowd float64
	like  int // first member of the crew with this law
}

// crewShare is what stages II and III give a crew.
type crewShare struct {
	total  units.Tokens
	tokens []units.Tokens
	heads  []int
}

// chunk is blocks of one length that pass by in the ring.
type chunk struct {
	tokens units.Tokens
	count  int
}

// crewOf describes a group whose blocks come from the ranks of another, nil for
// none; users are those of all nodes' cards. The error is a law that nobody measured.
func (m *perfModel) crewOf(ranks, before, users []int) (*crew, error) {
	c := &crew{}
	var nodes []int
	for _, r := range ranks {
		at := slices.Index(nodes, m.p.ranks[r].Node)
		if at < 0 {
			at = len(nodes)
			nodes = append(nodes, m.p.ranks[r].Node)
			c.cards = append(c.cards, m.p.Job.Cluster.Nodes[m.p.ranks[r].Node].NICs)
			c.users = append(c.users, users[m.p.ranks[r].Node])
		}
		c.dev, c.node = append(c.dev, m.dev[r]), append(c.node, at)
	}
	c.feed(m, ranks, before)
	if len(ranks) < 2 {
		return c, nil
	}
	link := m.p.Job.Cluster.Network
	if len(nodes) == 1 {
		link = m.p.Job.Cluster.Nodes[nodes[0]].Link
	}
	var err error
	c.toAll, err = m.over(link, op.KindAllToAll, ranks)
	return c, err
}

// cardUsers counts by node the groups whose all-to-alls its network cards serve:
// those that have members there and elsewhere, each taken to have as much to send;
// none where every device has a card.
func (m *perfModel) cardUsers(groups [][]int) []int {
	users, last := make([]int, len(m.p.Job.Cluster.Nodes)), make([]int, len(m.p.Job.Cluster.Nodes))
	for g, ranks := range groups {
		first := m.p.ranks[ranks[0]].Node
		if !slices.ContainsFunc(ranks, func(r int) bool { return m.p.ranks[r].Node != first }) {
			continue
		}
		for _, r := range ranks {
			if node := m.p.ranks[r].Node; m.p.Job.Cluster.Nodes[node].NICs > 0 && last[node] <= g {
				last[node] = g + 1
				users[node]++
			}
		}
	}
	return users
}

// feed finds the laws of incoming blocks: the network's for a member whose
// giver is on another node.
func (c *crew) feed(m *perfModel, ranks, before []int) {
	c.hops = make([]hopLaw, len(ranks))
	far := make([]int, len(c.cards))
	for i, r := range ranks {
		if m.isFar(r, giver(i, len(ranks), before)) {
			far[c.node[i]]++
		}
	}
	for i, r := range ranks {
		h := hopLaw{linkLaw: m.inside[m.p.ranks[r].Node], crowd: 1}
		if m.isFar(r, giver(i, len(ranks), before)) {
			h.linkLaw = m.network
			if cards := c.cards[c.node[i]]; cards > 0 {
				h.crowd = max(1, float64(far[c.node[i]])/float64(cards))
			}
		}
		for h.like < i && c.hops[h.like] != h {
			h.like++
		}
		c.hops[i] = h
	}
}

// giver is the rank that the i-th of n members receives blocks from, as if all
// heads were dealt evenly; -1 in a group alone.
func giver(i, n int, before []int) int {
	if before == nil {
		return -1
	}
	return before[i*len(before)/n]
}

func (m *perfModel) isFar(r, from int) bool {
	return from >= 0 && m.p.ranks[r].Node != m.p.ranks[from].Node
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

// ringMemo remembers rings by member while the blocks that pass by stay the same,
// and what each member had and cost when it was last priced: a move of a descent
// changes few of them.
type ringMemo struct {
	of    map[ringKey]float64
	other []chunk
	last  []memberCost
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

// cost prices a crew's share when blocks of other groups pass by. widest is the
// largest of these, ranks how many are at work in all.
func (m *perfModel) cost(c *crew, s crewShare, memo *ringMemo, widest units.Tokens, ranks int) cost {
	out := cost{over: 1}
	md := m.p.Job.Model
	kv := make([]int, len(c.dev))
	allKV, first := 0, 0
	for i, h := range s.heads {
		kv[i] = md.KVHeadsOf(first, h)
		allKV += kv[i]
		first += h
	}
	if memo.last == nil {
		memo.last = make([]memberCost, len(c.dev))
	}
	linear, ring := 0.0, 0.0
	for i := range c.dev {
		x := &memo.last[i]
		if has := (costMember{s.tokens[i], s.heads[i], kv[i], allKV}); x.costMember != has {
			*x = m.memberCost(c, i, has, s.total, memo, costmodel.MemoryShare{Widest: widest, Ranks: ranks})
		}
		linear, ring = max(linear, x.linear), max(ring, x.ring)
		out.spread += x.linear*x.linear + x.ring*x.ring
		out.over += x.over
	}
	out.seconds = linear + ring + m.exchange(c, s, kv)
	return out
}

// memberCost prices member i with what it has; share holds what of its memory
// does not follow from that.
func (m *perfModel) memberCost(c *crew, i int, has costMember, total units.Tokens, memo *ringMemo, share costmodel.MemoryShare) memberCost {
	d := c.dev[i]
	x := memberCost{costMember: has, linear: m.linearTime(d, has.tokens)}
	x.ring = m.ring(c.hops[i], blockKey{dev: d, heads: has.heads, kvHeads: has.kv, q: total}, memo)
	share.Tokens, share.GroupTokens, share.Members = has.tokens, total, len(c.dev)
	share.QHeads, share.KVHeads, share.AllKVHeads = has.heads, has.kv, has.allKV
	if full := m.held.Of(share, m.memory[d]); !full.Fits() {
		x.over = fill(full)/costmodel.Usable - 1
	}
	return x
}

// ring is a member's time in the ring, forward and backward.
func (m *perfModel) ring(h hopLaw, k blockKey, memo *ringMemo) float64 {
	if t, ok := memo.of[ringKey{k, h.like}]; ok {
		return t
	}
	own := m.block(k)
	if len(memo.other) == 0 {
		own = m.wholeBlock(k)
	}
	total := m.forward*own.forward + own.backward
	width := float64(2*k.kvHeads*m.p.Job.Model.HeadDim) * h.crowd
	for _, x := range memo.other {
		b := k
		b.kv = x.tokens
		t := m.block(b)
		kv := width * float64(x.tokens) * float64(m.p.Job.DType.Size())
		hop := h.seconds(op.KindSendRecv, kv)
		// Gradients travel in float32.
		both := hop + h.seconds(op.KindSendRecv, width*float64(x.tokens)*4)
		total += float64(x.count) * (m.forward*max(t.forward, hop) + max(t.backward, both))
	}
	memo.of[ringKey{k, h.like}] = total
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
	worst, chunks := 0.0, chunksOf(shares)
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
		memo := &ringMemo{of: map[ringKey]float64{}, other: without(chunks, shares[g].total)}
		worst = max(worst, m.cost(c, shares[g], memo, 0, ranks).seconds)
	}
	return m.step(worst)
}

// step is the time of all layers in a step, by that of one.
func (m *perfModel) step(layer float64) float64 {
	return layer * float64(m.p.Job.Model.Layers) * float64(max(1, m.p.Job.Accumulate))
}

// before is the group that passes its blocks to a group, nil if that is alone.
func before(groups [][]int, g int) []int {
	if len(groups) == 1 {
		return nil
	}
	return groups[(g+len(groups)-1)%len(groups)]
}

// key tells crews apart: groups of one key are alike to the model.
func (m *perfModel) key(ranks, before, users []int) string {
	var nodes []int
	key := make([]byte, 0, 4*len(ranks)+1)
	for i, r := range ranks {
		node := m.p.ranks[r].Node
		at := slices.Index(nodes, node)
		if at < 0 {
			at = len(nodes)
			nodes = append(nodes, node)
		}
		key = binary.AppendUvarint(key, uint64(m.dev[r]))
		key = binary.AppendUvarint(key, uint64(at))
		key = binary.AppendUvarint(key, uint64(m.nodeKind[node]))
		key = binary.AppendUvarint(key, uint64(users[node]))
		far := byte(0)
		if m.isFar(r, giver(i, len(ranks), before)) {
			far = 1
		}
		key = append(key, far)
	}
	return string(key)
}

// chunksOf counts the blocks of groups by length, longest first.
func chunksOf(shares []crewShare) []chunk {
	count := map[units.Tokens]int{}
	for _, s := range shares {
		count[s.total]++
	}
	var all []chunk
	for n, k := range count {
		all = append(all, chunk{n, k})
	}
	slices.SortFunc(all, func(a, b chunk) int { return cmp.Compare(b.tokens, a.tokens) })
	return all
}

// without takes one block of a length away.
func without(all []chunk, tokens units.Tokens) []chunk {
	var rest []chunk
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

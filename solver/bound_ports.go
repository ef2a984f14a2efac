package solver

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// ports is what the egress ports of a scope's ranks carry in all when there are
// several groups, in rows of all heads; some port carries no less than the mean.
// What the exchange does not hide behind goes on top of that, so that few bytes
// can make a step longer that has time for all of its computing.
//
// Of H heads (here one row) and S tokens, with w = kv_heads/q_heads, P groups and
// no rank with more than s tokens, the two all-to-alls of a pass carry
//
//	sum over groups of (2+2w) (S_g - sum of h_i s_i)  >=  (2+2w) (S - P s)
//
// for the heads h_i of a group add up to one row. From each group to the next go
// the keys and values of all tokens but the next one's, and backward the gradients
// of all but its own: 2w (P-1) S in all, and backward as many again in float32.
//
// Among several nodes, of whose ranks none holds more than n tokens together, take
// a head that is owned on m of them, by this group or that. Along the ring, which is
// closed, its owner changes nodes at least m times if m > 1, to a different group
// each, and no two groups have a token in common: at least 2w (m-1) S cross the
// network. Tokens of a group that are not on the owner's node come there by an
// all-to-all that is priced as the network: at least (2+2w) (S - m n).
type ports struct {
	tokens, ranks          float64
	kvShare, wide          float64
	row, hop               float64 // seconds a row takes at the cheapest link, by all-to-all or ring
	farRow, farHop         float64 // and between nodes; 0 in one node
	mostOfRank, mostOfNode float64 // tokens that they can have
}

// passes are seconds of the mean port in a layer's passes.
type passes struct{ forward, backward float64 }

// among is the least with so many groups or, between nodes, owners' nodes.
func (p *ports) among(n, row, hop, most float64) passes {
	toAll := (2 + 2*p.kvShare) * max(0, p.tokens-n*most) * row
	ring := 2 * p.kvShare * (n - 1) * p.tokens * hop
	return passes{(toAll + ring) / p.ranks, (toAll + (1+p.wide)*ring) / p.ranks}
}

// portsOf is what is known of a scope's ports before that of its tokens.
func (f *floors) portsOf(s scope) ports {
	b := f.borderOf(f.perByte(op.KindAllToAll, s), f.perByte(op.KindSendRecv, s))
	p := ports{tokens: b.tokens, ranks: float64(s.most), kvShare: b.kvShare, wide: b.wide, row: b.perRow, hop: b.perHop}
	if s.node < 0 {
		far := f.borderOf(f.perByteOver(f.p.Job.Cluster.Network, op.KindAllToAll), f.perByteOver(f.p.Job.Cluster.Network, op.KindSendRecv))
		p.farRow, p.farHop = far.perRow, far.perHop
	}
	return p
}

// limit fills in how many tokens a rank and the ranks of a node can have by theta.
func (f *floors) limit(p *ports, s scope, g *groupWork, theta float64) {
	most := map[string]float64{}
	p.mostOfRank, p.mostOfNode = 0, 0
	for i, c := range g.classes {
		one := groupWork{classes: g.classes[i : i+1], weights: g.weights, beside: g.beside}
		most[c.device] = one.mostTokens(theta)
		p.mostOfRank = max(p.mostOfRank, most[c.device])
	}
	for i, n := range f.p.Job.Cluster.Nodes {
		all := 0.0
		for _, m := range n.Devices {
			all += float64(min(m.Count, s.counts[m.Device])) * most[m.Device]
		}
		if s.node < 0 || s.node == i {
			p.mostOfNode = max(p.mostOfNode, all)
		}
	}
}

// least is the larger of two: the least of a step over how many groups there are,
// and what it takes with the least that crosses between nodes. Heads differ in how
// many nodes their owners are on, so that either pass has its own least, at one end
// of where all-to-alls fall as rings rise.
func (p *ports) least(step func(passes) float64) float64 {
	near := math.Inf(1)
	for n := 2.0; n <= p.ranks; n++ {
		near = min(near, step(p.among(n, p.row, p.hop, p.mostOfRank)))
		if n*p.mostOfRank >= p.tokens { // from here on it rises
			break
		}
	}
	if p.farRow == 0 {
		return near
	}
	one, many := p.among(1, p.farRow, p.farHop, p.mostOfNode), p.among(max(1, p.tokens/max(1, p.mostOfNode)), p.farRow, p.farHop, p.mostOfNode)
	return max(near, step(passes{min(one.forward, many.forward), min(one.backward, many.backward)}))
}

// byPorts raises the base of a scope by what the ports carry: theta is too small
// if, with no more tokens anywhere than can be computed by then, the step takes
// longer.
func (f *floors) byPorts(s scope, g *groupWork, step func(passes) float64) float64 {
	p := f.portsOf(s)
	at := func(theta float64) float64 {
		f.limit(&p, s, g, theta)
		return p.least(step)
	}
	lo, hi := g.base, at(g.base)
	if hi <= lo {
		return lo
	}
	for range 6 {
		if mid := (lo + hi) / 2; at(mid) > mid {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

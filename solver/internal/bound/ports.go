package bound

import "github.com/evenkeel/evenkeel/costmodel/op"

// ports is what the egress ports of a scope's ranks carry in all when there are
// several groups, in rows of all heads; some port carries no less than the mean.
// What the exchange does not hide behind goes on top of that, so that few bytes
// can make a step longer that has time for all of its computing.
//
// Of H heads (here one row) and S tokens, with w = kv_heads/q_heads and no rank with
// more than s tokens, the two all-to-alls of a pass carry, with the heads h_i of a
// group, which add up to one row,
//
//	sum over groups of (2+2w) (S_g - sum of h_i s_i)  >=  (2+2w) sum of (S_g - s)
//
// Of two groups the one that ends later needs all keys of the other, so that the other's
// block goes there whole, also where tails stay at home. In all, with the groups in falling
// order of their tokens, that is no less than
//
//	2w sum over i > j of S_i  =  2w sum of (i-1) S_i
//
// rows, and backward as many again in float32: gradients leave every group that needs
// the keys. How the tokens are shared out between groups so that least is carried is a
// linear program: each group but the first has s tokens or none, as many groups as it
// costs less than more tokens in the first one.
//
// The same holds of nodes, of whose ranks none holds more than n tokens together, and
// the groups whose owner of a head is on one of them: of two nodes the one with the group
// that ends last needs all keys of the groups on the other.
type ports struct {
	tokens, ranks          float64
	kvShare, wide          float64
	row, hop               float64 // seconds a row takes at the cheapest link, by all-to-all or ring
	farRow, farHop         float64 // and between nodes; 0 in one node
	mostOfRank, mostOfNode float64 // tokens that they can have
}

// passes are seconds of the mean port in a layer's passes.
type passes struct{ forward, backward float64 }

// among is the least where no rank or, between nodes, no node holds more than so many
// tokens. The passes differ in what a hop costs, so that each has its own least.
func (p *ports) among(row, hop, most float64) passes {
	pass := func(hops float64) float64 {
		each, exchange := 2*p.kvShare*hops*hop, (2+2*p.kvShare)*row // of a token: a hop further, and in the first group
		sum, left := 0.0, max(0, p.tokens-most)
		for i := 1.0; left > 0 && i < p.ranks && i*each < exchange; i++ {
			n := min(most, left)
			sum += i * each * n
			left -= n
		}
		return (sum + left*exchange) / p.ranks
	}
	return passes{pass(1), pass(1 + p.wide)}
}

// portsOf is what is known of a scope's ports before that of its tokens.
func (f *floors) portsOf(s scope) ports {
	b := f.borderOf(f.perByte(op.KindAllToAll, s), f.perByte(op.KindSendRecv, s))
	p := ports{tokens: b.tokens, ranks: float64(s.most), kvShare: b.kvShare, wide: b.wide, row: b.perRow, hop: b.perHop}
	if s.node < 0 {
		far := f.borderOf(f.perByteOver(f.job.Cluster.Network, op.KindAllToAll), f.perByteOver(f.job.Cluster.Network, op.KindSendRecv))
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
	for i, n := range f.job.Cluster.Nodes {
		all := 0.0
		for _, m := range n.Devices {
			all += float64(min(m.Count, s.counts[m.Device])) * most[m.Device]
		}
		if s.node < 0 || s.node == i {
			p.mostOfNode = max(p.mostOfNode, all)
		}
	}
}

// least is the larger of two: of a step with the least that ranks pass to each other,
// and with the least that crosses between nodes.
func (p *ports) least(step func(passes) float64) float64 {
	near := step(p.among(p.row, p.hop, p.mostOfRank))
	if p.farRow == 0 {
		return near
	}
	return max(near, step(p.among(p.farRow, p.farHop, p.mostOfNode)))
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
	return raised(g.base, at)
}

// raised raises a floor of a step's seconds: at(theta) is the least that a step takes whose
// ranks have no more tokens than they can compute by theta, so that theta is too small where
// at(theta) is longer.
func raised(base float64, at func(theta float64) float64) float64 {
	lo, hi := base, at(base)
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

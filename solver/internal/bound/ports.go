package bound

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

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
//
// What counts of a rank or node are not all of its tokens but the queries that stay: those
// whose head it computes itself. It has no more of them than it has pairs for, as m queries
// of a head see m^2/2 keys at least. Take of each head the one rank that has the most of
// its queries (or the second, or the i-th): rank r for n_r of H heads, with m_r of them in
// all, s_r tokens and A_r <= A pairs. Then m_r <= n_r s_r and, by Cauchy's inequality,
// m_r <= sqrt(2 A n_r), so that m_r^3 <= 2 A s_r n_r^2; and, by Hoelder's,
//
//	sum of m_r <= (2A)^(1/3) sum of s_r^(1/3) n_r^(2/3) <= (2A S H^2)^(1/3)
//
// which is (2A S / H)^(1/3) rows, and takes the place of s where it is less (stays).
//
// Where ranks of a node share network cards, these carry what leaves the node (cards).
type ports struct {
	tokens, ranks, heads   float64
	kvShare, wide          float64
	row, hop               float64 // seconds a row takes at the cheapest link, by all-to-all or ring
	farRow, farHop         float64 // and between nodes; 0 in one node
	mostOfRank, mostOfNode float64 // tokens that they can have, or queries that stay
	cards                  float64 // network cards of all nodes, or ranks where each has its own
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

// stays is how many queries of each head stay, on average, with the one rank or node that has
// the most of them, if none computes more pairs.
func (p *ports) stays(pairs float64) float64 { return math.Cbrt(2 * pairs * p.tokens / p.heads) }

// overCards is the least that the network cards of nodes take, as ports are, in seconds of
// the mean card.
//
// Of all-to-alls, the ports of the group with the most queries on a node whose heads are
// elsewhere are busy until the node's cards have moved those of all groups; and of a ring,
// those of the rank on it that passes on the most tokens, for as long as if all did. But the
// ring may be one rank's and the all-to-alls another's. So some port is busy for any mean of
// both, of which that counts where a token costs the same either way.
func (p *ports) overCards() passes {
	left := max(0, p.tokens-p.mostOfNode)
	pass := func(hops float64) float64 {
		ring, exchange := 2*p.kvShare*hops*p.farHop, (2+2*p.kvShare)*p.farRow // of a token
		if ring == 0 || exchange == 0 {
			return 0
		}
		return left / (1/ring + 1/exchange) / p.cards
	}
	return passes{pass(1), pass(1 + p.wide)}
}

// portsOf is what is known of a scope's ports before that of its tokens.
func (f *floors) portsOf(s scope) ports {
	b := f.borderOf(f.perByte(op.KindAllToAll, s), f.perByte(op.KindSendRecv, s))
	p := ports{tokens: b.tokens, ranks: float64(s.most), heads: b.heads, kvShare: b.kvShare, wide: b.wide, row: b.perRow, hop: b.perHop}
	if s.node < 0 {
		far := f.borderOf(f.perByteOver(f.job.Cluster.Network, op.KindAllToAll), f.perByteOver(f.job.Cluster.Network, op.KindSendRecv))
		p.farRow, p.farHop = far.perRow, far.perHop
	}
	for _, n := range f.job.Cluster.Nodes {
		cards := s.within(n)
		if n.NICs > 0 {
			cards = min(cards, n.NICs)
		}
		p.cards += float64(cards)
	}
	return p
}

// limit fills in how many tokens a rank and the ranks of a node can have by theta, or queries
// that stay with them.
func (f *floors) limit(p *ports, s scope, g *groupWork, theta float64) {
	most, pairs := map[string]float64{}, map[string]float64{}
	p.mostOfRank, p.mostOfNode = 0, 0
	mostPairs := 0.0
	for i, c := range g.classes {
		one := groupWork{classes: g.classes[i : i+1], weights: g.weights, beside: g.beside}
		most[c.device], pairs[c.device] = one.mostTokens(theta), g.pairs[i].within(theta-g.beside)
		p.mostOfRank, mostPairs = max(p.mostOfRank, most[c.device]), max(mostPairs, pairs[c.device])
	}
	p.mostOfRank = min(p.mostOfRank, p.stays(mostPairs))
	mostPairs = 0
	for i, n := range f.job.Cluster.Nodes {
		tokens, work := 0.0, 0.0
		for _, m := range n.Devices {
			ranks := float64(min(m.Count, s.counts[m.Device]))
			tokens, work = tokens+ranks*most[m.Device], work+ranks*pairs[m.Device]
		}
		if s.node < 0 || s.node == i {
			p.mostOfNode, mostPairs = max(p.mostOfNode, tokens), max(mostPairs, work)
		}
	}
	p.mostOfNode = min(p.mostOfNode, p.stays(mostPairs))
}

// least is the largest of three: of a step with the least that ranks pass to each other,
// with the least that crosses between nodes, and with what of that cards carry.
func (p *ports) least(step func(passes) float64) float64 {
	near := step(p.among(p.row, p.hop, p.mostOfRank))
	if p.farRow == 0 {
		return near
	}
	return max(near, step(p.among(p.farRow, p.farHop, p.mostOfNode)), step(p.overCards()))
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

package evenkeel

import (
	"encoding/binary"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
)

// toAllLaw is the law of the all-to-all of a kind's groups.
func (e *estimator) toAllLaw(k *groupKind) analytic.Link {
	ranks := k.groups[0]
	link := e.p.LinkAmong(ranks)
	key := append(append(make([]byte, 0, 128), link...), 0)
	for _, c := range k.class { // the classes say which devices
		key = binary.AppendUvarint(key, uint64(c))
	}
	l, ok := e.toAll[string(key)]
	if !ok {
		// A link without the law is asked for by nobody (see groupings).
		l, _ = e.m.Over(link, op.KindAllToAll, ranks)
		e.toAll[string(key)] = l
	}
	return l
}

// volume is what crosses the busiest port, or the busiest network card where
// members share some, a token of the group: with queries, keys and values and with
// outputs. It is as the simulator has it, in rows that the law of the group counts: of a
// group on several nodes mostly those between nodes.
type volume struct{ wide, narrow float64 }

// portion is a member's or a node's part of a group's tokens, and how many rows a
// token it has of queries, keys and values and of queries alone.
type portion struct{ tokens, rows, heads float64 }

// most is what a portion sends to others or receives from them, the larger.
func (x portion) most(all portion, ports float64) volume { return x.with(all.less(x), 1/ports) }

// with is what a portion sends to another or receives from it, the larger, each byte counting
// so many times.
func (x portion) with(y portion, times float64) volume {
	return volume{times * max(x.tokens*y.rows, x.rows*y.tokens), times * max(x.tokens*y.heads, x.heads*y.tokens)}
}

func (x portion) less(y portion) portion {
	return portion{x.tokens - y.tokens, x.rows - y.rows, x.heads - y.heads}
}

func (v volume) times(n float64) volume { return volume{n * v.wide, n * v.narrow} }

func (v *volume) raise(to volume) {
	v.wide, v.narrow = max(v.wide, to.wide), max(v.narrow, to.narrow)
}

// portions are the parts of a kind's members, of its first group's by node in the
// order of their first, and all of them together. They are good until the next
// call.
func (e *estimator) portions(k *groupKind) (members []portion, nodes []nodePortion, all portion) {
	m, total := e.p.Job.Model, 0.0
	for _, w := range k.weight {
		total += w
	}
	members, nodes = e.members[:0], e.nodes[:0]
	for i, r := range k.groups[0] {
		x := portion{k.weight[i] / total, float64(k.heads[i] + 2*m.KVHeadsOf(0, k.heads[i])), float64(k.heads[i])}
		members, all = append(members, x), all.and(x)
		node := e.p.Ranks[r].Node
		at := slices.IndexFunc(nodes, func(n nodePortion) bool { return n.node == node })
		if at < 0 {
			at = len(nodes)
			nodes = append(nodes, nodePortion{node: node})
		}
		nodes[at].portion = nodes[at].and(x)
	}
	e.members, e.nodes = members, nodes
	return members, nodes, all
}

// nodePortion is the portion of the members on a node.
type nodePortion struct {
	node int
	portion
}

func (x portion) and(y portion) portion {
	return portion{x.tokens + y.tokens, x.rows + y.rows, x.heads + y.heads}
}

// exchanged is the volume of the all-to-alls of a draft's i-th kind, with the heads
// and weights of k. A network card serves the groups of all kinds at once, each
// alike while it has bytes, so that a group is done when the card has moved what
// each of them has, but of none more than its own.
func (e *estimator) exchanged(k *groupKind, i int, cards *cardUse) volume {
	var v volume
	if len(k.class) < 2 {
		return v
	}
	members, nodes, all := e.portions(k)
	abroad, law := 0.0, analytic.Link{}
	if len(nodes) > 1 {
		law = e.toAllLaw(k)
		abroad = e.m.Abroad(law)
	}
	if abroad == 0 {
		for _, x := range members {
			v.raise(x.most(all, 1))
		}
	} else {
		for i, r := range k.groups[0] {
			at := slices.IndexFunc(nodes, func(n nodePortion) bool { return n.node == e.p.Ranks[r].Node })
			v.raise(members[i].with(all.less(nodes[at].portion), abroad))
			v.raise(members[i].with(nodes[at].less(members[i]), e.m.Beside(nodes[at].node, law)))
		}
	}
	if cards == nil || len(nodes) < 2 {
		return v
	}
	for _, x := range nodes {
		if n := e.p.Job.Cluster.Nodes[x.node].NICs; n > 0 {
			v.raise(cards.until(x.most(all, float64(n)), i, x.node, float64(n)).times(max(1, abroad)))
		}
	}
	return v
}

// cardUse is who shares the network cards of a draft's nodes in all-to-alls. Groups
// of a kind count as alike, and as long as those of others.
type cardUse struct {
	groups [][]float64 // by kind and node, those that reach beyond their node; nil if none does
	border []volume    // by kind, the most that one of its groups passes over a node's border
}

// cardsOf is nil where no node's ranks share cards.
func (e *estimator) cardsOf(d *draft) *cardUse {
	if !slices.ContainsFunc(e.cards, func(n int) bool { return n > 0 }) {
		return nil
	}
	u := &cardUse{make([][]float64, len(d.kinds)), make([]volume, len(d.kinds))}
	for i := range d.kinds {
		k := &d.kinds[i]
		if len(k.class) < 2 {
			continue
		}
		_, nodes, all := e.portions(k)
		if len(nodes) < 2 {
			continue
		}
		for _, x := range nodes {
			u.border[i].raise(x.most(all, 1))
		}
		u.groups[i] = e.byNode(k)
	}
	return u
}

// byNode counts a kind's groups by node, each once a node it has members on.
func (e *estimator) byNode(k *groupKind) []float64 {
	count, last := make([]float64, len(e.p.Job.Cluster.Nodes)), make([]int, len(e.p.Job.Cluster.Nodes))
	for g, ranks := range k.groups {
		for _, r := range ranks {
			if node := e.p.Ranks[r].Node; last[node] <= g {
				last[node] = g + 1
				count[node]++
			}
		}
	}
	return count
}

// until is what a node's cards, so many, carry each until a group of the i-th kind
// has passed its own part of v there.
func (u *cardUse) until(v volume, i, node int, cards float64) volume {
	var sum volume
	for j, groups := range u.groups {
		if groups == nil {
			continue
		}
		each := v
		if j != i {
			each = volume{min(v.wide, u.border[j].wide/cards), min(v.narrow, u.border[j].narrow/cards)}
		}
		sum.wide += groups[node] * each.wide
		sum.narrow += groups[node] * each.narrow
	}
	return sum
}

// exchange is all all-to-alls of a layer in a group of s tokens.
func (e *estimator) exchange(members int, law analytic.Link, v volume, s float64) float64 {
	even := s * float64(e.p.Job.Model.HeadDim) * float64(e.p.Job.DType.Size()) * float64(members) / float64(members-1)
	return (e.m.Forwards + 1) * (law.Seconds(op.KindAllToAll, even*v.wide) + law.Seconds(op.KindAllToAll, even*v.narrow))
}

package costmodel

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// allToAllBytes is what crosses the busiest port in an all-to-all of a group.
func (s *sim) allToAllBytes(x exchangeKind, b *seatGroup) float64 {
	by := s.rowsOf(x)
	members := s.seats[b.from:b.to]
	sends, receives := by.sums(members)
	most := 0.0
	for i := range members {
		a, r := by.send(&members[i]), by.receive(&members[i])
		most = max(most, a*(receives-r), r*(sends-a))
	}
	return most
}

// nodeWire is the members of a group on one of its nodes, which exchange rows over the
// node's own link.
type nodeWire struct {
	node, members int
	types         []op.Member
	law           int     // of their all-to-all, where they are several
	port          float64 // bytes on the busiest port among them in the all-to-all at hand
	// Units that they send and receive in it: see rowsOf.
	sends, receives float64
}

// AbroadFactor takes the bytes that an all-to-all's busiest port sends to other nodes to
// those that a law of the network counts: one that is assumed, by the rate of a network card,
// just these; a measured one all that a port sent in its group, of n ranks on k nodes, of
// which n - n/k in n - 1 left the node. It is 0 where the law is of a group on one node or
// on who knows how many.
func (q *Predictor) AbroadFactor(law *Law) float64 {
	if law == nil {
		return 0
	}
	g := q.named[law.Group]
	n, k := float64(g.Ranks()), float64(g.Nodes)
	switch {
	case g.Nodes < 2:
		return 0
	case law.Assumed != "":
		return 1
	}
	return (n - 1) / (n - n/k)
}

// wiresOf is how a group of several nodes exchanges rows: those between nodes over the
// network and, at the same time, those inside each over its own link. The factor is that of
// the network's law (AbroadFactor). It is 0 where all of a member's rows count as the
// network's: where the factor is, a node's link is the network, or it has no law.
func (s *sim) wiresOf(b *seatGroup) (wires []nodeWire, factor float64) {
	if factor = s.q.AbroadFactor(s.uses[b.law].law); factor == 0 {
		return nil, 0
	}
	at := map[int]int{} // by node
	for i := b.from; i < b.to; i++ {
		a := &s.seats[i]
		n, known := at[a.node]
		if !known {
			n = len(wires)
			at[a.node], wires = n, append(wires, nodeWire{node: a.node})
		}
		a.wire = n
		wires[n].members++
		wires[n].types = addMember(wires[n].types, a.device)
	}
	for i := range wires {
		w := &wires[i]
		if w.members < 2 {
			continue
		}
		link := s.linkOf(w.node)
		if w.law = s.over(link, op.KindAllToAll, w.types); link == s.linkOf(-1) || s.uses[w.law].err != nil {
			return nil, 0
		}
	}
	return wires, factor
}

// bytesOver is what crosses the busiest port between nodes in an all-to-all of a group that
// several hold, until it is done, and fills in the same of its nodes. A network card counts
// like a port where cards are fewer than ranks.
func (s *sim) bytesOver(x exchangeKind, b *seatGroup) float64 {
	by := s.rowsOf(x)
	members := s.seats[b.from:b.to]
	for i := range b.wires {
		b.wires[i].port, b.wires[i].sends, b.wires[i].receives = 0, 0, 0
	}
	sends, receives := 0.0, 0.0
	for i := range members {
		w, a, r := &b.wires[members[i].wire], by.send(&members[i]), by.receive(&members[i])
		w.sends, w.receives = w.sends+a, w.receives+r
		sends, receives = sends+a, receives+r
	}
	most := 0.0
	for i := range members {
		w, a, r := &b.wires[members[i].wire], by.send(&members[i]), by.receive(&members[i])
		most = max(most, a*(receives-w.receives), r*(sends-w.sends))
		w.port = max(w.port, a*(w.receives-r), r*(w.sends-a))
	}
	if s.fewCards {
		most = max(most, s.cardBytes(x, b))
	}
	return most
}

// sums is what members send to and receive from all of their group, themselves
// among them: what travels from i to j is send(i) times receive(j).
func (x rows) sums(members []seat) (sends, receives float64) {
	for i := range members {
		sends += x.send(&members[i])
		receives += x.receive(&members[i])
	}
	return sends, receives
}

// crossing is the bytes of a group's all-to-all that cross the border of a node.
type crossing struct {
	group   int // its first seat
	out, in float64
}

// cardBytes is what the busiest network card of a group's nodes carries until the
// group's all-to-all is done. All groups exchange at the same time, and a card
// serves each of them alike while it has bytes: one with w bytes is done when the
// card has moved the sum over all of the lesser of their bytes and w.
func (s *sim) cardBytes(x exchangeKind, b *seatGroup) float64 {
	most := 0.0
	for node, groups := range s.crossings(x) {
		at := slices.IndexFunc(groups, func(c crossing) bool { return c.group == b.from })
		if at < 0 {
			continue
		}
		out, in := 0.0, 0.0
		for _, c := range groups {
			out += min(c.out, groups[at].out)
			in += min(c.in, groups[at].in)
		}
		cards := float64(s.job.Cluster.Nodes[node].NICs)
		most = max(most, out/cards, in/cards)
	}
	return most
}

// crossings is by node what the all-to-alls of its groups carry across its border;
// of nodes whose ranks share cards.
func (s *sim) crossings(x exchangeKind) [][]crossing {
	if s.cross[x] != nil {
		return s.cross[x]
	}
	s.cross[x] = make([][]crossing, len(s.job.Cluster.Nodes))
	for g := range s.groups {
		if b := &s.groups[g]; b.node < 0 {
			s.addCrossings(x, b)
		}
	}
	return s.cross[x]
}

func (s *sim) addCrossings(x exchangeKind, b *seatGroup) {
	by := s.rowsOf(x)
	members := s.seats[b.from:b.to]
	all := s.cross[x]
	sends, receives := by.sums(members)
	for i := range members { // its node's entry holds sums until all are there
		node := members[i].node
		if s.job.Cluster.Nodes[node].NICs == 0 {
			continue
		}
		if n := len(all[node]); n == 0 || all[node][n-1].group != b.from {
			all[node] = append(all[node], crossing{group: b.from})
		}
		n := &all[node][len(all[node])-1]
		n.out += by.send(&members[i])
		n.in += by.receive(&members[i])
	}
	for node := range all {
		if k := len(all[node]); k > 0 && all[node][k-1].group == b.from {
			n := &all[node][k-1]
			n.out, n.in = n.out*(receives-n.in), n.in*(sends-n.out)
		}
	}
}

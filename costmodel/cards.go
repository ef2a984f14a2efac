package costmodel

import "slices"

// allToAllBytes is what crosses the busiest port in an all-to-all of a group until it
// is done; a network card counts like a port where cards are fewer than ranks.
func (s *sim) allToAllBytes(x exchangeKind, b *seatGroup) float64 {
	send, receive := s.rowsOf(x)
	members := s.seats[b.from:b.to]
	sends, receives := sums(members, send, receive)
	most := 0.0
	for i := range members {
		a, r := send(&members[i]), receive(&members[i])
		most = max(most, a*(receives-r), r*(sends-a))
	}
	if b.node >= 0 || !s.fewCards {
		return most
	}
	return max(most, s.cardBytes(x, b))
}

// sums is what members send to and receive from all of their group, themselves
// among them: what travels from i to j is send(i) times receive(j).
func sums(members []seat, send, receive func(*seat) float64) (sends, receives float64) {
	for i := range members {
		sends += send(&members[i])
		receives += receive(&members[i])
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
	send, receive := s.rowsOf(x)
	members := s.seats[b.from:b.to]
	all := s.cross[x]
	sends, receives := sums(members, send, receive)
	for i := range members { // its node's entry holds sums until all are there
		node := members[i].node
		if s.job.Cluster.Nodes[node].NICs == 0 {
			continue
		}
		if n := len(all[node]); n == 0 || all[node][n-1].group != b.from {
			all[node] = append(all[node], crossing{group: b.from})
		}
		n := &all[node][len(all[node])-1]
		n.out += send(&members[i])
		n.in += receive(&members[i])
	}
	for node := range all {
		if k := len(all[node]); k > 0 && all[node][k-1].group == b.from {
			n := &all[node][k-1]
			n.out, n.in = n.out*(receives-n.in), n.in*(sends-n.out)
		}
	}
}

package costmodel

import (
	"cmp"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// toAll is an all-to-all of a group from the matrix of what each sends to each.
func (s *slowSim) toAll(g int, in bool) float64 {
	var ranks []int
	for _, x := range s.l.Groups[g] {
		ranks = append(ranks, x.Rank)
	}
	// busiest is the most that a rank sends to or receives from those it exchanges with.
	busiest := func(with func(i, j int) bool) float64 {
		most := 0.0
		for _, i := range ranks {
			out, into := 0.0, 0.0
			for _, j := range ranks {
				if i != j && with(i, j) {
					out, into = out+s.exchanged(i, j, in), into+s.exchanged(j, i, in)
				}
			}
			most = max(most, out, into)
		}
		return most
	}
	took := func(among []int, port float64) float64 {
		if port == 0 {
			return 0
		}
		n := float64(len(among))
		return s.over(s.link(among), op.KindAllToAll, among, port*n/(n-1))
	}
	together := func(i, j int) bool { return s.ranks[i].Node == s.ranks[j].Node }
	// Rows inside a node move beside those between nodes, where these are told apart.
	factor, inside := s.abroad(ranks), 0.0
	port := busiest(func(i, j int) bool { return factor == 0 || !together(i, j) })
	for _, of := range ranks {
		if factor == 0 {
			break
		}
		var here []int
		for _, i := range ranks {
			if together(i, of) {
				here = append(here, i)
			}
		}
		inside = max(inside, took(here, busiest(func(i, j int) bool { return together(i, of) && together(j, of) })))
	}
	sent, received := s.across(g, in)
	for node, n := range s.j.Cluster.Nodes {
		if n.NICs == 0 {
			continue
		}
		// A card is shared by all groups alike while they have bytes.
		out, into := 0.0, 0.0
		for other := range s.l.Groups {
			theirs, to := s.across(other, in)
			out, into = out+min(theirs[node], sent[node]), into+min(to[node], received[node])
		}
		port = max(port, out/float64(n.NICs), into/float64(n.NICs))
	}
	return max(inside, took(ranks, cmp.Or(factor, 1)*port))
}

// abroad is what a byte between nodes counts for in the network's law of an all-to-all: one
// that is assumed counts just those, a measured one all of its own group's, as many of which
// left a node as ranks there are on others. It is 0 where it is not known to be of several
// nodes, or where a node's link is the network.
func (s *slowSim) abroad(ranks []int) float64 {
	link := s.link(ranks)
	law, _, err := s.q.Over(link, op.KindAllToAll, s.membersOf(ranks))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, i := range ranks {
		for _, j := range ranks {
			if i != j && s.ranks[i].Node == s.ranks[j].Node && s.link([]int{i, j}) == link {
				return 0
			}
		}
	}
	for _, g := range s.q.groups {
		if g.Name == law.Group && g.Nodes > 1 {
			if law.Assumed != "" {
				return 1
			}
			n := float64(g.Ranks())
			return (n - 1) / (n - n/float64(g.Nodes))
		}
	}
	return 0
}

// across is what a group's all-to-all sends and receives across nodes' borders, by
// node.
func (s *slowSim) across(g int, in bool) (sent, received map[int]float64) {
	sent, received = map[int]float64{}, map[int]float64{}
	for _, i := range s.l.Groups[g] {
		for _, j := range s.l.Groups[g] {
			if from, to := s.ranks[i.Rank].Node, s.ranks[j.Rank].Node; from != to {
				sent[from] += s.exchanged(i.Rank, j.Rank, in)
				received[to] += s.exchanged(i.Rank, j.Rank, in)
			}
		}
	}
	return sent, received
}

// everSends says whether a group sends another anything in the ring of a pass: a block or,
// backward, its gradients.
func (s *slowSim) everSends(from, to int) bool {
	if sends, ok := s.sends[groupPass{from, to, s.back}]; ok {
		return sends
	}
	kinds := []string{"kv"}
	if s.back {
		kinds = append(kinds, "grad", "homeward")
	}
	sends := false
	for t := range s.l.Groups {
		for _, i := range s.l.Groups[from] {
			for _, j := range s.l.Groups[to] {
				for _, kind := range kinds {
					sends = sends || s.moves(kind, t, i.Rank, j.Rank)
				}
			}
		}
	}
	s.sends[groupPass{from, to, s.back}] = sends
	return sends
}

// groupPass is two groups in a pass.
type groupPass struct {
	from, to int
	back     bool
}

// crowd is what sharing a node's cards costs its senders (side 0) or receivers of
// messages like x: all ranks are taken to send at once the most that they ever send to
// one group in the pass, and all to be done together. No more come in than there are ranks
// that send, each to one at a time.
func (s *slowSim) crowd(x slowTask, node, side int) float64 {
	heads := func(rank, group int) int { // between a rank of the node and a group, across the border
		sum := 0
		for pair, w := range s.w {
			if pair[side] == rank && s.members[pair[1-side]].group == group && s.ranks[pair[1-side]].Node != node {
				sum += w
			}
		}
		return sum
	}
	all := 0
	for _, r := range s.working {
		most := 0
		for g := range s.l.Groups {
			ends := [2]int{s.members[r].group, g}
			if s.ranks[r].Node == node && s.everSends(ends[side], ends[1-side]) {
				most = max(most, heads(r, g))
			}
		}
		all += most
	}
	if side == 1 {
		all = min(all, s.givenTo(node, heads))
	}
	ends := [2]int{x.i, x.j}
	own := heads(ends[side], s.members[ends[1-side]].group)
	if nics := s.j.Cluster.Nodes[node].NICs; nics > 0 {
		return max(1, float64(all)/float64(nics*own))
	}
	return 1
}

// givenTo adds up, of the ranks on other nodes, the most that one of a node's ranks receives
// from their group while they send to it.
func (s *slowSim) givenTo(node int, heads func(rank, group int) int) int {
	all := 0
	for _, from := range s.working {
		most := 0
		for _, to := range s.working {
			a, b := s.members[from].group, s.members[to].group
			if s.ranks[from].Node != node && s.ranks[to].Node == node && s.w[[2]int{from, to}] > 0 && s.everSends(a, b) {
				most = max(most, heads(to, a))
			}
		}
		all += most
	}
	return all
}

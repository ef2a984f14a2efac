package costmodel

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// seat is a rank's place in a layout.
type seat struct {
	rank   int
	device string
	node   int
	group  int // index into the layout's groups
	tokens units.Tokens
	first  int // query heads first to first+heads
	heads  int
	kv     int // key-value heads that these need
	work   int // row of the prices of its attention blocks
	wire   int // of a group of several nodes, the one of its wires that it is on
}

// worksLike says whether two seats take as long over work that follows tokens.
func (a *seat) worksLike(b *seat) bool { return a.tokens == b.tokens && a.device == b.device }

// seatGroup is an all-to-all group of a layout with what the simulator knows of it.
type seatGroup struct {
	from, to int // its seats are seats[from:to]
	tokens   units.Tokens
	sent     units.Tokens // tokens of its block that travel round the ring
	shard    Shard
	form     form
	out      []hop            // messages to the members of the next group
	near     int              // distance in the ring to the first group that needs its block; 0 if none does
	reach    int              // distance to the last such group, as far as the block is passed on
	home     []hop            // messages of its gradients from that group, unless it is the group before
	law      int              // of its all-to-all; only of groups of several ranks
	wires    []nodeWire       // of a group of several nodes: what it has inside each
	abroad   float64          // and what bytes between them count for in its law; see wiresOf
	slow     [2]units.Seconds // forward, backward: see slowTwos
	node     int              // index of the node that holds all of it, or -1
}

// form is what the prices of a shard's blocks depend on.
type form struct {
	shape         int          // of the shard, as the prices know it
	first, second units.Tokens // where its segments begin; the second beyond all tokens where there is none
	from, to      int          // seats of the group
	out, home     []hop        // as of the group; set for a run
	near, reach   int          // likewise
}

// hop is a message of keys and values, or of their gradients, between members
// of neighbouring groups. Its bytes follow the block that is passed on.
type hop struct {
	from, to int    // seats
	kv       int    // key-value heads that travel, twice where a border cuts one
	price    [2]int // row of the prices of messages, forward and backward
}

// nodeOfSeats is what a node brings to a layout.
type nodeOfSeats struct {
	seats   int
	members []op.Member // by device type, in order of their first rank
	// Key-value heads that its seats send to and receive from other nodes at once, at most,
	// forward and backward.
	out, in [2]int
}

// KVHeadsOf is the number of key-value heads that query heads first to
// first+n need.
func (m Model) KVHeadsOf(first, n int) int {
	if n == 0 {
		return 0
	}
	each := m.QHeads / m.KVHeads
	return (first+n-1)/each - first/each + 1
}

// seat takes the groups of the layout apart: who sits where, with which
// prices. The error is a link class that the cluster leaves open.
func (s *sim) seat() error {
	s.cross = [exchangeKinds][][]crossing{}
	shards := s.groupShards()
	if s.seated.of(s.layout.Groups) {
		s.seatAgain(shards)
		return nil
	}
	s.seated.forget()
	s.seats, s.groups, s.nodes = s.seats[:0], s.groups[:0], make([]nodeOfSeats, len(s.job.Cluster.Nodes))
	for g, group := range s.layout.Groups {
		b := seatGroup{from: len(s.seats), node: s.ranks[group[0].Rank].Node}
		first := 0
		for _, m := range group {
			r := s.ranks[m.Rank]
			a := seat{rank: m.Rank, device: r.Device, node: r.Node, group: g, first: first, heads: m.QHeads}
			a.kv = s.job.Model.KVHeadsOf(first, m.QHeads)
			first += m.QHeads
			if r.Node != b.node {
				b.node = -1
			}
			s.seats = append(s.seats, a)
		}
		b.to = len(s.seats)
		s.groups = append(s.groups, b)
	}
	s.share(shards)
	if err := s.countNodes(); err != nil {
		return err
	}
	for g := range s.groups {
		b := &s.groups[g]
		switch {
		case b.to-b.from < 2:
		case g > 0 && s.exchangeAlike(b, &s.groups[g-1]):
			b.law = s.groups[g-1].law
		default:
			b.law = s.over(s.linkOf(b.node), op.KindAllToAll, s.membersOf(b.from, b.to))
		}
		if b.to-b.from > 1 && b.node < 0 {
			b.wires, b.abroad = s.wiresOf(b)
		}
	}
	s.reaches()
	s.messages()
	s.seatChunks()
	s.seated.keep(s.layout.Groups)
	return nil
}

// share gives the seats and groups the tokens of the layout.
func (s *sim) share(shards []Shard) {
	for g := range s.groups {
		b := &s.groups[g]
		b.shard, b.tokens = shards[g], 0
		for i := b.from; i < b.to; i++ {
			a := &s.seats[i]
			a.tokens = s.layout.Shards[a.rank].Tokens()
			b.tokens += a.tokens
		}
		if b.sent = b.tokens; s.layout.KeepTail {
			b.sent = neededOf(g, shards)
		}
	}
	s.shapes(shards)
}

// seated is for which groups the seats are: a search moves tokens many times over between
// groups that stay as they are.
type seated struct {
	members []HeadShare // of all groups
	ends    []int       // of each group among them; none where seats are not to be taken again
	whole   *exchanged  // among the ranks of all, once priced
}

func (x *seated) of(groups []Group) bool {
	if len(x.ends) != len(groups) {
		return false
	}
	from := 0
	for g, to := range x.ends {
		if !slices.Equal(x.members[from:to], groups[g]) {
			return false
		}
		from = to
	}
	return len(groups) > 0
}

func (x *seated) keep(groups []Group) {
	x.forget()
	for _, g := range groups {
		x.members = append(x.members, g...)
		x.ends = append(x.ends, len(x.members))
	}
}

func (x *seated) forget() { x.members, x.ends, x.whole = x.members[:0], x.ends[:0], nil }

// seatAgain is seat for a layout of the same groups as the one before. Only who needs whose
// keys may differ besides tokens, and then messages do.
func (s *sim) seatAgain(shards []Shard) {
	s.share(shards)
	if s.reaches() {
		for i := range s.nodes {
			s.nodes[i].out, s.nodes[i].in = [2]int{}, [2]int{}
		}
		s.messages()
	}
	s.seatChunks()
}

// exchangeAlike says whether two groups have the same devices on the same link.
func (s *sim) exchangeAlike(a, b *seatGroup) bool {
	if a.to-a.from != b.to-b.from || s.linkOf(a.node) != s.linkOf(b.node) {
		return false
	}
	for i := range a.to - a.from {
		if s.seats[a.from+i].device != s.seats[b.from+i].device {
			return false
		}
	}
	return true
}

func (s *sim) groupShards() []Shard {
	shards := make([]Shard, len(s.layout.Groups))
	for g, group := range s.layout.Groups {
		if len(group) == 1 {
			shards[g] = s.layout.Shards[group[0].Rank]
			continue
		}
		shards[g] = s.layout.GroupShard(g)
	}
	return shards
}

// linkOf is the link class inside a node, or between nodes for -1.
func (s *sim) linkOf(node int) string {
	if node < 0 {
		return s.job.Cluster.Network
	}
	return s.job.Cluster.Nodes[node].Link
}

// countNodes counts the seats of every node and finds the links that they need.
func (s *sim) countNodes() error {
	for i := range s.seats {
		n := &s.nodes[s.seats[i].node]
		n.seats++
		n.members = addMember(n.members, s.seats[i].device)
	}
	for i, n := range s.nodes {
		if n.seats > 1 && s.job.Cluster.Nodes[i].Link == "" {
			return fmt.Errorf("cluster.nodes[%d].link: empty, but ranks of node %s exchange bytes; name a link class of the profile", i, s.job.Cluster.Nodes[i].Name)
		}
		if n.seats > 0 && n.seats < len(s.seats) && s.job.Cluster.Network == "" {
			return fmt.Errorf("cluster.network: empty, but ranks of different nodes exchange bytes; name a link class of the profile")
		}
	}
	return nil
}

// membersOf counts the devices of seats by type, in order of their first seat.
func (s *sim) membersOf(from, to int) []op.Member {
	var members []op.Member
	for i := from; i < to; i++ {
		members = addMember(members, s.seats[i].device)
	}
	return members
}

func addMember(members []op.Member, device string) []op.Member {
	for i := range members {
		if members[i].Device == device {
			members[i].Count++
			return members
		}
	}
	return append(members, op.Member{Device: device, Count: 1})
}

// reaches finds how far blocks go, and says whether any goes another way than before.
func (s *sim) reaches() (changed bool) {
	for g := range s.groups {
		b := &s.groups[g]
		near, reach := neededFrom(g, len(s.groups), func(k int) Shard { return s.groups[k].shard })
		changed = changed || near != b.near || reach != b.reach
		b.near, b.reach = near, reach
	}
	return changed
}

// messages finds who passes blocks on to whom: a member of a group to every
// member of the next one that shares query heads with it. A border of any
// group's heads that cuts a key-value head makes it travel twice where it is
// crossed, since either side has sums of its own to bring home.
func (s *sim) messages() {
	if len(s.groups) < 2 {
		return
	}
	cuts, n := s.layout.cutsBefore(s.job.Model), len(s.groups)
	for g := range s.groups {
		b := &s.groups[g]
		b.out, b.home = s.hopsBetween(b, &s.groups[(g+1)%n], cuts), nil
		if b.reach > 0 && b.reach < n-1 {
			b.home = s.hopsBetween(&s.groups[(g+b.reach)%n], b, cuts)
		}
	}
	s.loadNodes()
	s.priceMessages()
}

// hopsBetween are the messages from the members of a group to those of another.
func (s *sim) hopsBetween(b, next *seatGroup, cuts cutsBefore) []hop {
	var out []hop
	for i, j := b.from, next.from; i < b.to && j < next.to; {
		from, to := &s.seats[i], &s.seats[j]
		lo, hi := max(from.first, to.first), min(from.first+from.heads, to.first+to.heads)
		if lo < hi {
			kv := s.job.Model.KVHeadsOf(lo, hi-lo) + cuts.inside(lo, hi-lo)
			out = append(out, hop{from: i, to: j, kv: kv})
		}
		switch {
		case from.first+from.heads < to.first+to.heads:
			i++
		case from.first+from.heads > to.first+to.heads:
			j++
		default:
			i, j = i+1, j+1
		}
	}
	return out
}

// loadNodes adds up what each node's network cards carry when all of its ranks send at
// once, each the most key-value heads that it ever does in a pass. As many come in as its
// ranks receive or, where these are fewer, as there are senders: a port carries one message
// at a time, and the gradients that a chain's last group sends home are of one block after
// the other.
func (s *sim) loadNodes() {
	if !s.fewCards {
		return
	}
	for dir := range 2 {
		s.loadNodesIn(dir)
	}
}

func (s *sim) loadNodesIn(dir int) {
	out, in, byGivers := make([]int, len(s.seats)), make([]int, len(s.seats)), make([]int, len(s.nodes))
	given := map[[2]int]int{} // by sender and node
	for g := range s.groups {
		b := &s.groups[g]
		var sets [2][]hop
		if s.passesAny(g, dir) {
			sets[0] = b.out
		}
		if dir == 1 {
			sets[1] = b.home
		}
		for _, hops := range sets {
			sent, received := s.abroad(hops)
			for i, h := range hops {
				out[h.from], in[h.to] = max(out[h.from], sent[i]), max(in[h.to], received[i])
				if to := s.seats[h.to].node; to != s.seats[h.from].node {
					key := [2]int{h.from, to}
					if more := received[i] - given[key]; more > 0 {
						given[key] += more
						byGivers[to] += more
					}
				}
			}
		}
	}
	for i := range s.seats {
		n := &s.nodes[s.seats[i].node]
		n.out[dir], n.in[dir] = n.out[dir]+out[i], n.in[dir]+in[i]
	}
	for i := range s.nodes {
		s.nodes[i].in[dir] = min(s.nodes[i].in[dir], byGivers[i])
	}
}

// abroad is, of the messages of one block between two groups, by message the key-value
// heads that its sender sends to other nodes and that its receiver gets from others.
// Those of a sender, and those to a receiver, are neighbours.
func (s *sim) abroad(hops []hop) (sent, received []int) {
	s.sent, s.received = resized(s.sent, len(hops)), resized(s.received, len(hops))
	for _, side := range []struct {
		sums []int
		end  func(h *hop) int
	}{{s.sent, func(h *hop) int { return h.from }}, {s.received, func(h *hop) int { return h.to }}} {
		for i := 0; i < len(hops); {
			sum, k := 0, i
			for ; k < len(hops) && side.end(&hops[k]) == side.end(&hops[i]); k++ {
				if s.commonNode(hops[k].from, hops[k].to) < 0 {
					sum += hops[k].kv
				}
			}
			for ; i < k; i++ {
				side.sums[i] = sum
			}
		}
	}
	return s.sent, s.received
}

// passes says whether group g passes the block of group k on to the next, and
// whether its gradients. Where all groups need all blocks that is every block but
// the next group's own, and the gradients of every one but its own.
func (s *sim) passes(g, k int) (kv, gradients bool) {
	n, of := len(s.groups), &s.groups[k]
	at := (g - k + n) % n
	home := at == n-1 && of.reach == n-1
	return at < of.reach, at > 0 && at >= of.near && (at < of.reach || home)
}

// passesAny says whether a group passes anything on to the next in a pass: keys and values
// or, backward, gradients.
func (s *sim) passesAny(g, dir int) bool {
	for k := range s.groups {
		if kv, gradients := s.passes(g, k); kv || dir == 1 && gradients {
			return true
		}
	}
	return false
}

// crowding is by what factor a message between two nodes moves slower because their
// nodes' ranks share network cards. All of a node's ranks send at once, and all are done
// when the cards are: whoever has less to send than others gets less of a card.
func (s *sim) crowding(dir int, h *hop, sent, received int) float64 {
	from, to := s.seats[h.from].node, s.seats[h.to].node
	return max(1, load(s.nodes[from].out[dir], sent, s.job.Cluster.Nodes[from].NICs), load(s.nodes[to].in[dir], received, s.job.Cluster.Nodes[to].NICs))
}

func load(all, own, cards int) float64 {
	if cards == 0 || own == 0 {
		return 1
	}
	return float64(all) / (float64(cards) * float64(own))
}

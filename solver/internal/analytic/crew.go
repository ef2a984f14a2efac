package analytic

import (
	"encoding/binary"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Crew is a candidate all-to-all group as the analytic model sees it: groups
// with equal devices, equally spread over nodes and equally fed, are one crew.
type Crew struct {
	Types []int // of each member
	Nodes []int // of each member, counted from the crew's first
	cards []int // network cards of these nodes; 0 is one a device
	users []int // groups whose all-to-alls these cards serve at once, this one among them
	toAll Link  // unless the crew is alone
	// Of a crew on several nodes: what bytes between them count for in that law, 0 where all
	// do, and by node, what bytes inside do.
	abroad float64
	beside []float64
	hops   []hopLaw // of the blocks that come in, by member
}

// hopLaw is the link over which a member receives blocks, slowed where members
// share network cards.
type hopLaw struct {
	Link
	crowd float64
	like  int // first member of the crew with this law
}

// Crews describes groups, those that are alike by one crew.
func (m *Model) Crews(groups [][]int) ([]*Crew, error) {
	known, users := map[string]*Crew{}, m.cardUsers(groups)
	crews := make([]*Crew, len(groups))
	for g, ranks := range groups {
		key := m.key(ranks, before(groups, g), users)
		c := known[key]
		if c == nil {
			var err error
			if c, err = m.crewOf(ranks, before(groups, g), users); err != nil {
				return nil, err
			}
			known[key] = c
		}
		crews[g] = c
	}
	return crews, nil
}

// crewOf describes a group whose blocks come from the ranks of another, nil for
// none; users are those of all nodes' cards. The error is a law that nobody measured.
func (m *Model) crewOf(ranks, before, users []int) (*Crew, error) {
	c := &Crew{}
	var nodes []int
	for _, r := range ranks {
		at := slices.Index(nodes, m.p.Ranks[r].Node)
		if at < 0 {
			at = len(nodes)
			nodes = append(nodes, m.p.Ranks[r].Node)
			c.cards = append(c.cards, m.p.Job.Cluster.Nodes[m.p.Ranks[r].Node].NICs)
			c.users = append(c.users, users[m.p.Ranks[r].Node])
		}
		c.Types, c.Nodes = append(c.Types, m.TypeOf[r]), append(c.Nodes, at)
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
	if c.toAll, err = m.Over(link, op.KindAllToAll, ranks); len(nodes) < 2 {
		return c, err
	}
	if c.abroad = m.Abroad(c.toAll); c.abroad > 0 {
		for _, node := range nodes {
			c.beside = append(c.beside, m.Beside(node, c.toAll))
		}
	}
	return c, err
}

// cardUsers counts by node the groups whose all-to-alls its network cards serve:
// those that have members there and elsewhere, each taken to have as much to send;
// none where every device has a card.
func (m *Model) cardUsers(groups [][]int) []int {
	users, last := make([]int, len(m.p.Job.Cluster.Nodes)), make([]int, len(m.p.Job.Cluster.Nodes))
	for g, ranks := range groups {
		first := m.p.Ranks[ranks[0]].Node
		if !slices.ContainsFunc(ranks, func(r int) bool { return m.p.Ranks[r].Node != first }) {
			continue
		}
		for _, r := range ranks {
			if node := m.p.Ranks[r].Node; m.p.Job.Cluster.Nodes[node].NICs > 0 && last[node] <= g {
				last[node] = g + 1
				users[node]++
			}
		}
	}
	return users
}

// feed finds the laws of incoming blocks: the network's for a member whose
// giver is on another node.
func (c *Crew) feed(m *Model, ranks, before []int) {
	c.hops = make([]hopLaw, len(ranks))
	far := make([]int, len(c.cards))
	for i, r := range ranks {
		if m.isFar(r, giver(i, len(ranks), before)) {
			far[c.Nodes[i]]++
		}
	}
	for i, r := range ranks {
		h := hopLaw{Link: m.Inside[m.p.Ranks[r].Node], crowd: 1}
		if m.isFar(r, giver(i, len(ranks), before)) {
			h.Link = m.Network
			if cards := c.cards[c.Nodes[i]]; cards > 0 {
				h.crowd = max(1, float64(far[c.Nodes[i]])/float64(cards))
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

func (m *Model) isFar(r, from int) bool {
	return from >= 0 && m.p.Ranks[r].Node != m.p.Ranks[from].Node
}

// before is the group that passes its blocks to a group, nil if that is alone.
func before(groups [][]int, g int) []int {
	if len(groups) == 1 {
		return nil
	}
	return groups[(g+len(groups)-1)%len(groups)]
}

// key tells crews apart: groups of one key are alike to the model.
func (m *Model) key(ranks, before, users []int) string {
	var nodes []int
	key := make([]byte, 0, 4*len(ranks)+1)
	for i, r := range ranks {
		node := m.p.Ranks[r].Node
		at := slices.Index(nodes, node)
		if at < 0 {
			at = len(nodes)
			nodes = append(nodes, node)
		}
		key = binary.AppendUvarint(key, uint64(m.TypeOf[r]))
		key = binary.AppendUvarint(key, uint64(at))
		key = binary.AppendUvarint(key, uint64(m.NodeKind[node]))
		key = binary.AppendUvarint(key, uint64(users[node]))
		far := byte(0)
		if m.isFar(r, giver(i, len(ranks), before)) {
			far = 1
		}
		key = append(key, far)
	}
	return string(key)
}

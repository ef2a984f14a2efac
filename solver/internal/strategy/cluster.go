package strategy

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// AllRanks lists the ranks.
func (p *Problem) AllRanks() []int {
	all := make([]int, len(p.Ranks))
	for r := range all {
		all[r] = r
	}
	return all
}

// DeviceTypes lists the device types of the cluster in order of their first rank.
func (p *Problem) DeviceTypes() []string {
	var types []string
	for _, r := range p.Ranks {
		if !slices.Contains(types, r.Device) {
			types = append(types, r.Device)
		}
	}
	return types
}

// NodeRanks lists the ranks of every node.
func (p *Problem) NodeRanks() [][]int {
	nodes := make([][]int, len(p.Job.Cluster.Nodes))
	for r, k := range p.Ranks {
		nodes[k.Node] = append(nodes[k.Node], r)
	}
	return nodes
}

// Exchangeable says whether the profile can tell what an all-to-all among some
// ranks costs; the error is the law that nobody measured. Any number of devices
// of any type will do (see Predictor.Over), so it is a matter of the link alone.
func (p *Problem) Exchangeable(ranks []int) error {
	if len(ranks) < 2 {
		return nil
	}
	_, _, err := p.Predictor.Over(p.LinkAmong(ranks), op.KindAllToAll, p.MembersOf(ranks))
	return err
}

// AllExchangeable says that of several groups.
func (p *Problem) AllExchangeable(groups [][]int) bool {
	known := map[string]bool{} // a link either has a law or has not
	for _, g := range groups {
		if len(g) < 2 {
			continue
		}
		link := p.LinkAmong(g)
		ok, seen := known[link]
		if !seen {
			ok = p.Exchangeable(g) == nil
			known[link] = ok
		}
		if !ok {
			return false
		}
	}
	return true
}

// Alone says whether the profile can tell what the exchange of gradients and
// parameters costs when only some ranks are at work; the error is the law that
// nobody measured. All ranks together are known to have them (New).
func (p *Problem) Alone(ranks []int) error {
	if len(ranks) < 2 {
		return nil
	}
	for _, x := range p.Job.Collectives() {
		if _, _, err := p.Predictor.Over(p.LinkAmong(ranks), x.Kind, p.MembersOf(ranks)); err != nil {
			return err
		}
	}
	return nil
}

// LinkAmong is the link class that holds ranks together: that of their node, or
// the network.
func (p *Problem) LinkAmong(ranks []int) string {
	node := p.Ranks[ranks[0]].Node
	for _, r := range ranks {
		if p.Ranks[r].Node != node {
			return p.Job.Cluster.Network
		}
	}
	return p.Job.Cluster.Nodes[node].Link
}

// MembersOf counts ranks by device type, in order of their first.
func (p *Problem) MembersOf(ranks []int) []op.Member {
	var all []op.Member
	for _, r := range ranks {
		name := p.Ranks[r].Device
		at := slices.IndexFunc(all, func(m op.Member) bool { return m.Device == name })
		if at < 0 {
			all = append(all, op.Member{Device: name, Count: 1})
			continue
		}
		all[at].Count++
	}
	return all
}

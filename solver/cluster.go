package solver

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// all lists the ranks.
func (p *Problem) all() []int {
	all := make([]int, len(p.ranks))
	for r := range all {
		all[r] = r
	}
	return all
}

// deviceTypes lists the device types of the cluster in order of their first rank.
func (p *Problem) deviceTypes() []string {
	var types []string
	for _, r := range p.ranks {
		if !slices.Contains(types, r.Device) {
			types = append(types, r.Device)
		}
	}
	return types
}

// nodeRanks lists the ranks of every node.
func (p *Problem) nodeRanks() [][]int {
	nodes := make([][]int, len(p.Job.Cluster.Nodes))
	for r, k := range p.ranks {
		nodes[k.Node] = append(nodes[k.Node], r)
	}
	return nodes
}

// exchangeable says whether the profile can tell what an all-to-all among some
// ranks costs; the error is the law that nobody measured. Any number of devices
// of any type will do (see Predictor.Over), so it is a matter of the link alone.
func (p *Problem) exchangeable(ranks []int) error {
	if len(ranks) < 2 {
		return nil
	}
	_, _, err := p.Predictor.Over(p.linkAmong(ranks), op.KindAllToAll, p.membersOf(ranks))
	return err
}

// allExchangeable says that of several groups.
func (p *Problem) allExchangeable(groups [][]int) bool {
	known := map[string]bool{} // a link either has a law or has not
	for _, g := range groups {
		if len(g) < 2 {
			continue
		}
		link := p.linkAmong(g)
		ok, seen := known[link]
		if !seen {
			ok = p.exchangeable(g) == nil
			known[link] = ok
		}
		if !ok {
			return false
		}
	}
	return true
}

// alone says whether the profile can tell what the exchange of gradients and
// parameters costs when only some ranks are at work; the error is the law that
// nobody measured. All ranks together are known to have them (NewProblem).
func (p *Problem) alone(ranks []int) error {
	if len(ranks) < 2 {
		return nil
	}
	for _, x := range p.Job.Collectives() {
		if _, _, err := p.Predictor.Over(p.linkAmong(ranks), x.Kind, p.membersOf(ranks)); err != nil {
			return err
		}
	}
	return nil
}

// linkAmong is the link class that holds ranks together: that of their node, or
// the network.
func (p *Problem) linkAmong(ranks []int) string {
	node := p.ranks[ranks[0]].Node
	for _, r := range ranks {
		if p.ranks[r].Node != node {
			return p.Job.Cluster.Network
		}
	}
	return p.Job.Cluster.Nodes[node].Link
}

// membersOf counts ranks by device type, in order of their first.
func (p *Problem) membersOf(ranks []int) []op.Member {
	var all []op.Member
	for _, r := range ranks {
		name := p.ranks[r].Device
		at := slices.IndexFunc(all, func(m op.Member) bool { return m.Device == name })
		if at < 0 {
			all = append(all, op.Member{Device: name, Count: 1})
			continue
		}
		all[at].Count++
	}
	return all
}

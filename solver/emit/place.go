package emit

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// nodesOf are the nodes' names, by rank of a plan.
func nodesOf(p *solver.Plan) []string {
	names := make([]string, len(p.Ranks))
	for r, k := range p.Ranks {
		names[r] = k.Node
	}
	return names
}

// namesOf are the same of a cluster.
func namesOf(c costmodel.Cluster) []string {
	var names []string
	for _, r := range c.Ranks() {
		names = append(names, r.NodeName)
	}
	return names
}

// host is a node with the ranks of it that train, and which of its devices these are.
type host struct {
	node    string
	ranks   []int
	devices []int
}

// hosts are the nodes of some ranks in the order of these.
func hosts(nodes []string, ranks []int) []host {
	first := map[string]int{} // rank of each node
	for r := len(nodes) - 1; r >= 0; r-- {
		first[nodes[r]] = r
	}
	var all []host
	for _, r := range ranks {
		if n := len(all); n == 0 || all[n-1].node != nodes[r] {
			all = append(all, host{node: nodes[r]})
		}
		h := &all[len(all)-1]
		h.ranks, h.devices = append(h.ranks, r), append(h.devices, r-first[h.node])
	}
	return all
}

// visible says which devices a node's processes must see, where they are not its first ones in
// their order: a launcher takes these.
func visible(all []host) string {
	var lists []string // of devices
	nodes := map[string][]string{}
	for _, h := range all {
		list, usual := "", true
		for i, d := range h.devices {
			list, usual = list+fmt.Sprintf(",%d", d), usual && d == i
		}
		if usual {
			continue
		}
		if nodes[list] == nil {
			lists = append(lists, list)
		}
		nodes[list] = append(nodes[list], h.node)
	}
	text := ""
	for _, list := range lists {
		text += fmt.Sprintf(", with CUDA_VISIBLE_DEVICES=%s on %s", list[1:], strings.Join(nodes[list], ", "))
		if len(nodes[list]) == len(all) && len(all) > 1 {
			text = fmt.Sprintf(", with CUDA_VISIBLE_DEVICES=%s on each", list[1:])
		}
	}
	return text
}

// alike is how many ranks every host has; 0 where they have not equally many.
func alike(all []host) int {
	for _, h := range all {
		if len(h.ranks) != len(all[0].ranks) {
			return 0
		}
	}
	return len(all[0].ranks)
}

// launched says where the framework's ranks are: with which node of a launcher first.
func launched(nodes []string, ranks []int) string {
	all := hosts(nodes, ranks)
	each := "as many ranks on each as it has here"
	if n := alike(all); n > 0 {
		each = fmt.Sprintf("%s each", units.Count(n, "rank"))
	}
	if len(all) == 1 {
		return fmt.Sprintf("%s on node %s (%s of the plan)", units.Count(len(ranks), "rank"), all[0].node, units.Spans(ranks)) + visible(all)
	}
	names := fmt.Sprintf("%s to %s", all[0].node, all[len(all)-1].node)
	if len(all) <= 4 {
		names = all[0].node
		for _, h := range all[1:] {
			names += ", " + h.node
		}
	}
	return fmt.Sprintf("%s in the plan's order (%s), node rank 0 the first, %s (%s of the plan)", units.Count(len(all), "node"), names, each, units.Spans(ranks)) + visible(all)
}

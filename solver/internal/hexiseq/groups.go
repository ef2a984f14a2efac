package hexiseq

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// grouping is a candidate of stage I: a partition of all ranks into all-to-all
// groups, in the order of their ring.
type grouping struct {
	name   string
	groups [][]int
}

// mostCombinations is how many choices of one group size a device type stage I
// makes; beyond, and on clusters of at least manyRanks, one type at a time
// departs from the others.
const (
	mostCombinations = 64
	manyRanks        = 512
)

// groupings is stage I: candidate groups inside high-bandwidth domains, and
// super-nodes of them. Nodes are the domains that a cluster states: inside their
// link is fast, between them the network is not. Groups have at most as many
// members as there are heads.
func groupings(p *strategy.Problem) []grouping {
	var all []grouping
	for _, x := range baseline.Meshes(p, p.AllRanks()) {
		all = append(all, grouping{x.Name(), x.Groups})
	}
	all = append(all, insideNodes(p)...)
	all = append(all, mixedNodes(p)...)
	all = append(all, superNodes(p)...)
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(x grouping) bool {
		key := partitionKey(x.groups)
		known := seen[key]
		seen[key] = true
		return known || !groupable(p, x.groups)
	})
}

func groupable(p *strategy.Problem, groups [][]int) bool {
	tooLarge := func(g []int) bool { return len(g) > p.Job.Model.QHeads }
	return len(groups) > 0 && !slices.ContainsFunc(groups, tooLarge) && p.AllExchangeable(groups)
}

func partitionKey(groups [][]int) string {
	var key []byte
	for _, g := range groups {
		for _, r := range g {
			key = binary.AppendUvarint(key, uint64(r)+1)
		}
		key = append(key, 0)
	}
	return string(key)
}

// insideNodes cuts every node into groups of one device type each, in every
// combination of sizes by type.
func insideNodes(p *strategy.Problem) []grouping {
	nodes := p.NodeRanks()
	types := p.DeviceTypes()
	var all []grouping
	for _, sizes := range sizes(p, types, nodes) {
		x := grouping{name: "in nodes by type, " + sizesName(types, sizes)}
		for _, ranks := range nodes {
			for t, name := range types {
				x.groups = append(x.groups, cut(ofType(p, ranks, name), sizes[t])...)
			}
		}
		all = append(all, x)
	}
	return all
}

// mixedNodes cuts nodes into groups that have all of a node's types in the same
// mix, as far as they divide. Without a node of several types there are none.
func mixedNodes(p *strategy.Problem) []grouping {
	nodes := p.NodeRanks()
	largest, several := 0, false
	for i, ranks := range nodes {
		largest = max(largest, len(ranks))
		several = several || len(p.Job.Cluster.Nodes[i].Devices) > 1
	}
	var all []grouping
	for size := 2; size <= largest && several; size++ {
		if largest%size != 0 {
			continue
		}
		x := grouping{name: fmt.Sprintf("in nodes with all types mixed, groups of %d", size)}
		for _, ranks := range nodes {
			x.groups = append(x.groups, spread(byType(p, ranks), len(ranks)/divisorUpTo(len(ranks), size))...)
		}
		all = append(all, x)
	}
	return all
}

// sizes lists what sizes groups may have, by type: divisors of the most devices
// of the type in a node.
func sizes(p *strategy.Problem, types []string, nodes [][]int) [][]int {
	options := make([][]int, len(types))
	combinations := 1
	for t, name := range types {
		most := 1
		for _, ranks := range nodes {
			most = max(most, len(ofType(p, ranks, name)))
		}
		for size := 1; size <= most; size++ {
			if most%size == 0 {
				options[t] = append(options[t], size)
			}
		}
		combinations *= len(options[t])
	}
	if combinations <= mostCombinations && len(p.Ranks) < manyRanks {
		return everyCombination(options)
	}
	return oneApart(options)
}

func everyCombination(options [][]int) [][]int {
	all := [][]int{nil}
	for _, sizes := range options {
		var longer [][]int
		for _, c := range all {
			for _, size := range sizes {
				longer = append(longer, append(slices.Clone(c), size))
			}
		}
		all = longer
	}
	return all
}

// oneApart is the same size for all types, and for one of them any other.
func oneApart(options [][]int) [][]int {
	var largest []int
	for _, sizes := range options {
		if last := sizes[len(sizes)-1]; len(largest) == 0 || last > largest[len(largest)-1] {
			largest = sizes
		}
	}
	var all [][]int
	for _, size := range largest {
		alike := make([]int, len(options))
		for t := range alike {
			alike[t] = size
		}
		all = append(all, alike)
		for t := range options {
			for _, other := range options[t] {
				c := slices.Clone(alike)
				c[t] = other
				all = append(all, c)
			}
		}
	}
	return all
}

func sizesName(types []string, sizes []int) string {
	var parts []string
	for t, name := range types {
		parts = append(parts, fmt.Sprintf("%s in groups of %d", name, sizes[t]))
	}
	return strings.Join(parts, ", ")
}

func ofType(p *strategy.Problem, ranks []int, device string) []int {
	var some []int
	for _, r := range ranks {
		if p.Ranks[r].Device == device {
			some = append(some, r)
		}
	}
	return some
}

// byType orders ranks by their device type, in order of the types' first rank.
func byType(p *strategy.Problem, ranks []int) []int {
	var ordered []int
	for _, name := range p.DeviceTypes() {
		ordered = append(ordered, ofType(p, ranks, name)...)
	}
	return ordered
}

// divisorUpTo is the largest divisor of n that is at most size.
func divisorUpTo(n, size int) int {
	for size = min(size, n); n%size != 0; size-- {
	}
	return size
}

// cut makes groups of neighbours, of the largest size up to the given one that
// divides their number.
func cut(ranks []int, size int) [][]int {
	if len(ranks) == 0 {
		return nil
	}
	return slices.Collect(slices.Chunk(ranks, divisorUpTo(len(ranks), size)))
}

// spread deals ranks to so many groups like cards.
func spread(ranks []int, groups int) [][]int {
	all := make([][]int, groups)
	for i, r := range ranks {
		all[i%groups] = append(all[i%groups], r)
	}
	return all
}

// superNodes joins nodes to groups: neighbours of one kind by twos, fours and so
// on up to all of the kind, and nodes of different kinds to groups of equal
// aggregate strength.
func superNodes(p *strategy.Problem) []grouping {
	kinds := nodeKinds(p)
	var all []grouping
	for size := 2; size < 2*len(p.Job.Cluster.Nodes); size *= 2 {
		x := grouping{name: fmt.Sprintf("super-nodes of up to %d like nodes", size)}
		for _, nodes := range kinds {
			for part := range slices.Chunk(nodes, size) {
				x.groups = append(x.groups, slices.Concat(part...))
			}
		}
		all = append(all, x)
	}
	if len(kinds) < 2 {
		return all
	}
	least := len(p.Job.Cluster.Nodes)
	for _, nodes := range kinds {
		least = min(least, len(nodes))
	}
	for groups := 1; groups <= least; groups++ {
		x := grouping{name: fmt.Sprintf("%d super-nodes of nodes of every kind", groups), groups: make([][]int, groups)}
		whole := true
		for _, nodes := range kinds {
			whole = whole && len(nodes)%groups == 0
			for i, ranks := range nodes {
				x.groups[i*groups/len(nodes)] = append(x.groups[i*groups/len(nodes)], ranks...)
			}
		}
		if whole {
			all = append(all, x)
		}
	}
	return all
}

// nodeKinds lists the ranks of nodes, those of equal devices and link together.
func nodeKinds(p *strategy.Problem) [][][]int {
	var kinds [][][]int
	index := map[string]int{}
	for i, ranks := range p.NodeRanks() {
		node := p.Job.Cluster.Nodes[i]
		key := fmt.Sprint(node.Link, node.Devices)
		k, ok := index[key]
		if !ok {
			k = len(kinds)
			index[key] = k
			kinds = append(kinds, nil)
		}
		kinds[k] = append(kinds[k], ranks)
	}
	return kinds
}

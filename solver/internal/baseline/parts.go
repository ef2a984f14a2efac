package baseline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// clusterPart is some ranks of the cluster.
type clusterPart struct {
	name  string
	ranks []int
}

// parts lists the parts of the cluster that people choose, without repetition
// and without the whole. The error is a law that a part would need and nobody
// measured; the others stay.
func parts(p *strategy.Problem, m *analytic.Model) (kept []clusterPart, unpriced error) {
	seen := map[string]bool{}
	for _, x := range slices.Concat(partsByType(p), []clusterPart{evenNodes(p)}, largestNodes(p), alikeNodes(p, m), fastestNodes(p, m), partsOfNodes(p, m)) {
		key := fmt.Sprint(x.ranks)
		if len(x.ranks) == 0 || len(x.ranks) == len(p.Ranks) || seen[key] {
			continue
		}
		seen[key] = true
		if err := p.Alone(x.ranks); err != nil {
			unpriced = err
			continue
		}
		x.name = fmt.Sprintf("%s (%d of %d ranks)", x.name, len(x.ranks), len(p.Ranks))
		kept = append(kept, x)
	}
	return kept, unpriced
}

// fewTypes is up to how many device types every choice of them is tried; with
// more it is each alone and all but one.
const fewTypes = 4

// partsByType lists the choices of device types, in order of their first rank.
func partsByType(p *strategy.Problem) []clusterPart {
	types := p.DeviceTypes()
	k := len(types)
	var all []clusterPart
	if k > fewTypes {
		for i, t := range types {
			all = append(all, partOf(p, p.AllRanks(), t), partOf(p, p.AllRanks(), slices.Delete(slices.Clone(types), i, i+1)...))
		}
		return all
	}
	for choice := 1; choice < 1<<k-1; choice++ {
		var some []string
		for i, t := range types {
			if choice>>i&1 == 1 {
				some = append(some, t)
			}
		}
		all = append(all, partOf(p, p.AllRanks(), some...))
	}
	return all
}

// partOf is those of some ranks that are of some device types.
func partOf(p *strategy.Problem, ranks []int, types ...string) clusterPart {
	x := clusterPart{name: "the " + strings.Join(types, " and ")}
	for _, r := range ranks {
		if slices.Contains(types, p.Ranks[r].Device) {
			x.ranks = append(x.ranks, r)
		}
	}
	return x
}

// mostOneByOne is up to how many nodes every number of them is tried; beyond, it doubles.
const mostOneByOne = 8

// numbers are those of nodes that are tried, of so many.
func numbers(nodes int) (all []int) {
	for n := 1; n < nodes; {
		all = append(all, n)
		if n++; n > mostOneByOne {
			n = 2 * (n - 1)
		}
	}
	return append(all, nodes)
}

// firstNodes are the first of some nodes, by every number of them.
func firstNodes(p *strategy.Problem, nodes [][]int, of string) (all []clusterPart) {
	for _, n := range numbers(len(nodes)) {
		all = append(all, clusterPart{
			name:  fmt.Sprintf("%d of %s%s", n, units.Count(len(p.Job.Cluster.Nodes), "node"), of),
			ranks: slices.Sorted(slices.Values(slices.Concat(nodes[:n]...))),
		})
	}
	return all
}

// largestNodes is, of the nodes that have devices of one type alone, the largest, the two
// largest and so on, and all of them, type by type.
func largestNodes(p *strategy.Problem) (all []clusterPart) {
	for _, t := range p.DeviceTypes() {
		nodes := slices.DeleteFunc(p.NodeRanks(), func(ranks []int) bool {
			return len(ranks) == 0 || slices.ContainsFunc(ranks, func(r int) bool { return p.Ranks[r].Device != t })
		})
		slices.SortStableFunc(nodes, func(a, b []int) int { return len(b) - len(a) })
		of := ""
		if len(p.DeviceTypes()) > 1 {
			of = ", with " + t + " alone"
		}
		all = append(all, firstNodes(p, nodes, of)...)
	}
	return all
}

// alikeNodes is one, two and so on of the nodes of every kind, with all of their devices and
// with those of each type.
func alikeNodes(p *strategy.Problem, m *analytic.Model) (all []clusterPart) {
	for _, nodes := range kinds(p, m) {
		types := typesOf(p, nodes[0])
		all = append(all, firstNodes(p, nodes, ", with "+strings.Join(types, " and "))...)
		for _, t := range types {
			some := make([][]int, len(nodes))
			for i, ranks := range nodes {
				some[i] = partOf(p, ranks, t).ranks
			}
			all = append(all, firstNodes(p, some, ", the "+t+" of them")...)
		}
	}
	return all
}

// fastestNodes is the fastest node, the two fastest and so on, whatever their devices.
func fastestNodes(p *strategy.Problem, m *analytic.Model) []clusterPart {
	half := max(1, p.Job.SeqLen/2)
	pace := func(ranks []int) (sum float64) {
		for _, r := range ranks {
			sum += 1 / m.LinearTime(m.TypeOf[r], half)
		}
		return sum
	}
	nodes := p.NodeRanks()
	slices.SortStableFunc(nodes, func(a, b []int) int { return cmp.Compare(pace(b), pace(a)) })
	return firstNodes(p, nodes, ", the fastest")
}

// partsOfNodes is one, two, four and so on of the devices of a type, in one node of every kind:
// exchanges among all of them may take longer than they save.
func partsOfNodes(p *strategy.Problem, m *analytic.Model) (all []clusterPart) {
	for _, nodes := range kinds(p, m) {
		for _, t := range typesOf(p, nodes[0]) {
			ranks := partOf(p, nodes[0], t).ranks
			for n := 1; n < len(ranks); n *= 2 {
				all = append(all, clusterPart{name: fmt.Sprintf("%d %s of one node", n, t), ranks: ranks[:n]})
			}
		}
	}
	return all
}

// kinds are the ranks of the nodes of every kind, in order of their first node.
func kinds(p *strategy.Problem, m *analytic.Model) (all [][][]int) {
	place := map[int]int{}
	for node, ranks := range p.NodeRanks() {
		at, known := place[m.NodeKind[node]]
		if !known {
			at = len(all)
			place[m.NodeKind[node]], all = at, append(all, nil)
		}
		all[at] = append(all[at], ranks)
	}
	return all
}

// typesOf lists the device types of some ranks, in order.
func typesOf(p *strategy.Problem, ranks []int) (types []string) {
	for _, r := range ranks {
		if t := p.Ranks[r].Device; !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	return types
}

// evenNodes is the first devices of every node, as many as the smallest has.
func evenNodes(p *strategy.Problem) clusterPart {
	nodes := p.NodeRanks()
	least := len(p.Ranks)
	for _, ranks := range nodes {
		least = min(least, len(ranks))
	}
	x := clusterPart{name: fmt.Sprintf("%d devices of every node", least)}
	for _, ranks := range nodes {
		x.ranks = append(x.ranks, ranks[:least]...)
	}
	return x
}

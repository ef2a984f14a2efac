package torch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// group is a group signature with the sets of ranks that have it.
type group struct {
	op.GroupType
	sets [][]int // indices of the job's ranks, each in ascending order
}

// set names the i-th set as the workers know it. Names sort by age, since every
// rank must create every group in the same order.
func (g group) set(i int) string { return fmt.Sprintf("%s #%d", g.Name, i) }

// mostSets of one signature are measured: enough to find the odd one.
const mostSets = 8

// sizes are the group sizes to measure of n ranks: all up to four, for planners
// ask for any, then powers of two, and all ranks.
func sizes(asked []int, n int) []int {
	if asked != nil {
		return slices.DeleteFunc(slices.Clone(asked), func(s int) bool { return s > n })
	}
	var list []int
	for s := 2; s <= n; s++ {
		if s <= 4 || s&(s-1) == 0 || s == n {
			list = append(list, s)
		}
	}
	return list
}

// findGroups lists the signatures that the ranks can form at the given sizes,
// each with its sets: neighbours (which share nodes as far as they can), one
// rank of each node, and halves of two device types.
func findGroups(ranks []*rank, asked []int, link func(set []int) string) []group {
	var groups []group
	add := func(set []int) {
		t := signature(ranks, set, link(set))
		i := slices.IndexFunc(groups, func(g group) bool { return g.Name == t.Name })
		if i < 0 {
			groups = append(groups, group{t, [][]int{set}})
			return
		}
		known := slices.ContainsFunc(groups[i].sets, func(s []int) bool { return overlap(s, set) })
		if !known && len(groups[i].sets) < mostSets {
			groups[i].sets = append(groups[i].sets, set)
		}
	}
	for _, n := range sizes(asked, len(ranks)) {
		for i := 0; i+n <= len(ranks); i += n {
			add(span(i, n))
		}
		for _, set := range across(ranks, n) {
			add(set)
		}
		for _, set := range halves(ranks, n) {
			add(set)
		}
	}
	return groups
}

func span(from, n int) []int {
	set := make([]int, n)
	for i := range set {
		set[i] = from + i
	}
	return set
}

// overlap says whether two sets share a rank: places of a signature are apart,
// or one slow device would show in all of them.
func overlap(a, b []int) bool {
	return slices.ContainsFunc(a, func(r int) bool { return slices.Contains(b, r) })
}

// across takes one rank of each of n nodes, as data parallel groups do.
func across(ranks []*rank, n int) [][]int {
	byNode := map[int][]int{}
	nodes := 0
	for i, r := range ranks {
		byNode[r.node] = append(byNode[r.node], i)
		nodes = max(nodes, r.node+1)
	}
	var sets [][]int
	for from := 0; from+n <= nodes; from += n {
		for k := 0; ; k++ {
			var set []int
			for node := from; node < from+n; node++ {
				if k < len(byNode[node]) {
					set = append(set, byNode[node][k])
				}
			}
			if len(set) < n {
				break
			}
			sets = append(sets, set)
		}
	}
	return sets
}

// halves takes the first n/2 ranks of each two device types.
func halves(ranks []*rank, n int) [][]int {
	byType := map[string][]int{}
	var types []string
	for i, r := range ranks {
		if byType[r.device.Name] == nil {
			types = append(types, r.device.Name)
		}
		byType[r.device.Name] = append(byType[r.device.Name], i)
	}
	var sets [][]int
	for i, a := range types {
		for _, b := range types[i+1:] {
			if h := n / 2; n%2 == 0 && len(byType[a]) >= h && len(byType[b]) >= h {
				set := slices.Concat(byType[a][:h], byType[b][:h])
				slices.Sort(set)
				sets = append(sets, set)
			}
		}
	}
	return sets
}

// signature names a set of ranks.
func signature(ranks []*rank, set []int, link string) op.GroupType {
	var members []op.Member
	nodes := map[int]bool{}
	for _, r := range set {
		nodes[ranks[r].node] = true
		i := slices.IndexFunc(members, func(m op.Member) bool { return m.Device == ranks[r].device.Name })
		if i < 0 {
			members = append(members, op.Member{Device: ranks[r].device.Name, Count: 1})
		} else {
			members[i].Count++
		}
	}
	return op.NewGroupType(members, len(nodes), link)
}

// placeOf names a set of ranks: "n0/g0+n0/g1".
func (b *Backend) placeOf(set []int) string { return strings.Join(b.namesOf(set), "+") }

func (b *Backend) namesOf(set []int) []string {
	names := make([]string, len(set))
	for i, r := range set {
		names[i] = b.ranks[r].place
	}
	return names
}

package batch

import (
	"cmp"
	"fmt"
	"slices"
)

// Place gives every group of a micro-batch its ranks. Groups that must be within one node
// come first, largest first, each in the node with the fewest free devices that holds it
// (best fit decreasing). The others follow, on the nodes with the most free devices, so
// that they span few.
//
// Error: the groups need more devices than the fleet has, or more within single nodes than
// are free.
func Place(p *Problem, groups []Group) error {
	free := make([][][]int, len(p.Fleet)) // by pool and node
	for i, pool := range p.Fleet {
		for _, node := range pool.Ranks {
			free[i] = append(free[i], slices.Clone(node))
		}
	}
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		ca, cb := p.Classes[groups[a].Class], p.Classes[groups[b].Class]
		if ca.One != cb.One {
			if ca.One {
				return -1
			}
			return 1
		}
		return cmp.Compare(cb.Degree(), ca.Degree())
	})
	for _, i := range order {
		g := &groups[i]
		c := p.Classes[g.Class]
		g.Ranks = g.Ranks[:0]
		for pool, n := range c.Uses {
			ranks, ok := take(free[pool], n, c.One)
			if !ok {
				return fmt.Errorf("group %d (%s): no room left among the %d devices of %s", i, c.Name, p.Fleet[pool].Count(), p.Fleet[pool].Device)
			}
			g.Ranks = append(g.Ranks, ranks...)
		}
	}
	return nil
}

// take removes n free ranks from the nodes of a pool and returns them; if one, all from a
// single node. It returns false if there are too few.
func take(nodes [][]int, n int, one bool) ([]int, bool) {
	var ranks []int
	for n > 0 {
		k := pick(nodes, n, one)
		if k < 0 {
			return nil, false
		}
		m := min(n, len(nodes[k]))
		ranks = append(ranks, nodes[k][:m]...)
		nodes[k], n = nodes[k][m:], n-m
	}
	slices.Sort(ranks)
	return ranks, true
}

// pick is the node with the fewest free ranks that holds n or, if none does and one is
// false, the node with the most free ranks; -1 if there is none.
func pick(nodes [][]int, n int, one bool) int {
	best, most := -1, -1
	for i, node := range nodes {
		if len(node) >= n && (best < 0 || len(node) < len(nodes[best])) {
			best = i
		}
		if len(node) > 0 && (most < 0 || len(node) > len(nodes[most])) {
			most = i
		}
	}
	if best >= 0 || one {
		return best
	}
	return most
}

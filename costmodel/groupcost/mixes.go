package groupcost

import (
	"cmp"
	"fmt"
	"slices"
)

// mixes lists the groups of several device types. All combinations would be far
// too many to plan with; the rule is:
//
//   - a type takes part with half a node, or with 1, 2, 4, ... whole nodes, or
//     with all of its nodes: its levels;
//   - of two types every pair of levels that are equal or next to one another;
//   - of three types and more only equal levels;
//   - where that makes more than mostMixes, only types join that are next to one another
//     in speed.
//
// A type with fewer levels stays at its last. So the largest group is all devices,
// which alone holds the longest sequences.
func (b *builder) mixes() []kind {
	if len(b.pools) <= mostPools {
		if all := b.mixesOf(subsets(len(b.pools))); len(all) <= mostMixes {
			return all
		}
	}
	return b.mixesOf(b.neighbours())
}

// mostMixes bounds the mixes of every set of pools, each of which is simulated some hundred
// times: a pool more doubles the sets. So many sets as mostPools have are not even listed.
const (
	mostMixes = 600
	mostPools = 10
)

// mixesOf is the mixes of some sets of pools.
func (b *builder) mixesOf(sets [][]int) []kind {
	levels := make([][]int, len(b.pools))
	most := 0
	for p := range b.pools {
		levels[p] = b.levels(p)
		most = max(most, len(levels[p]))
	}
	var all []kind
	seen := map[string]bool{}
	add := func(uses []int) {
		if key := fmt.Sprint(uses); !seen[key] {
			seen[key] = true
			all = append(all, b.place(uses, false))
		}
	}
	for _, types := range sets {
		for l := range most {
			uses := make([]int, len(b.pools))
			for _, p := range types {
				uses[p] = at(levels[p], l)
			}
			add(uses)
			if len(types) > 2 || l+1 == most {
				continue
			}
			for i, p := range types { // one of the two a level higher
				up := slices.Clone(uses)
				up[p] = at(levels[types[i]], l+1)
				add(up)
			}
		}
	}
	return all
}

// neighbours lists the sets of pools that are next to one another in speed, from any to
// any, small ones first. They are few, have groups of every size among them, and their
// devices are as alike as they can be, so that shares and heads are even.
//
// In 15 batches on three clusters of seven to nine types, plans took 0.8 % longer with
// these than with all sets (3.5 % at most). With pairs and the set of all pools it was
// 5.6 % (34 %), for groups of three to all but one are missed; with these sets and all
// pairs, twice as many groups, 0.6 % (3.3 %).
func (b *builder) neighbours() [][]int {
	n := len(b.pools)
	order := make([]int, n)
	for p := range order {
		order[p] = p
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(b.perHead[x], b.perHead[y]) })
	var all [][]int
	for size := 2; size <= n; size++ {
		for from := range n - size + 1 {
			all = append(all, slices.Sorted(slices.Values(order[from:from+size])))
		}
	}
	return all
}

// levels are the numbers of devices with which a pool takes part in a mix.
func (b *builder) levels(pool int) []int {
	whole := b.whole(pool)
	var levels []int
	if half := whole[0] / 2; half > 0 {
		levels = append(levels, half)
	}
	for n := 1; n < len(whole); n *= 2 {
		levels = append(levels, whole[n-1])
	}
	return append(levels, whole[len(whole)-1])
}

func at(levels []int, l int) int { return levels[min(l, len(levels)-1)] }

// subsets lists the sets of two and more of n, small ones first.
func subsets(n int) [][]int {
	var all [][]int
	for bits := 1; bits < 1<<n; bits++ {
		var set []int
		for i := range n {
			if bits>>i&1 == 1 {
				set = append(set, i)
			}
		}
		if len(set) > 1 {
			all = append(all, set)
		}
	}
	slices.SortStableFunc(all, func(a, b []int) int { return len(a) - len(b) })
	return all
}

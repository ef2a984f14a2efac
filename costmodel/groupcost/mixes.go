package groupcost

import "slices"

// mixes lists the groups of several device types. All combinations would be far
// too many to plan with; the rule is:
//
//   - a type takes part with half a node, or with 1, 2, 4, ... whole nodes, or
//     with all of its nodes: its levels;
//   - of two types every pair of levels that are equal or next to one another;
//   - of three types and more only equal levels.
//
// A type with fewer levels stays at its last. So the largest group is all devices,
// which alone holds the longest sequences.
func (b *builder) mixes() []kind {
	levels := make([][]int, len(b.pools))
	most := 0
	for p := range b.pools {
		levels[p] = b.levels(p)
		most = max(most, len(levels[p]))
	}
	var all []kind
	add := func(uses []int) {
		if !slices.ContainsFunc(all, func(k kind) bool { return slices.Equal(k.uses, uses) }) {
			all = append(all, b.place(uses, false))
		}
	}
	for _, types := range subsets(len(b.pools)) {
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

package batch

import "github.com/evenkeel/evenkeel/internal/units"

// programme is stage 2 as published:
//
//	DP[0][j] = 0,  DP[i][j] = min_c max(DP[i-1][j-c], t_i(c))
//
// over the degrees c that hold group i; walking back begins at DP[K'][N]. Ranks may
// stay idle, so a group that more ranks slow does not get them.
func (t *fcpTable) programme(groups []*atomic) {
	n := t.a.devices
	row := make([]units.Seconds, n+1)
	path := make([][]int, len(groups))
	for i, g := range groups {
		next := make([]units.Seconds, n+1)
		path[i] = make([]int, n+1)
		for j := range next {
			next[j], path[i][j] = never, -1
			for l := g.least; l < len(t.a.levels) && t.a.levels[l].degree <= j; l++ {
				v := max(row[j-t.a.levels[l].degree], t.time(g, l))
				if v < next[j] {
					next[j], path[i][j] = v, l
				}
			}
		}
		row = next
	}
	j := n
	for i := len(groups) - 1; i >= 0; i-- {
		groups[i].at = path[i][j]
		j -= t.a.levels[groups[i].at].degree
	}
}

// allot is stage 2 by the shortest way: all groups begin on the least ranks, and
// the slowest gets the fewest more that make it faster, until there is no such
// number or too few are left. The slowest group then stands in the way of any
// better makespan: no plan that is better gives any group fewer ranks than this
// does, since each step was needed to get below a time that a group still had.
// So the makespan is the programme's (TestAllotGivesTheProgrammesMakespan).
func (t *fcpTable) allot(groups []*atomic) {
	spare := t.a.devices
	for _, g := range groups {
		g.at = g.least
		spare -= t.a.levels[g.at].degree
	}
	for {
		top := groups[0]
		for _, g := range groups {
			if t.time(g, g.at) > t.time(top, top.at) {
				top = g
			}
		}
		to := t.faster(top, spare)
		if to < 0 {
			return
		}
		spare -= t.a.levels[to].degree - t.a.levels[top.at].degree
		top.at = to
	}
}

// faster is the first level above a group's that makes it faster and needs no more
// than the spare ranks; -1 if there is none.
func (t *fcpTable) faster(g *atomic, spare int) int {
	have := t.a.levels[g.at].degree
	for l := g.at + 1; l < len(t.a.levels) && t.a.levels[l].degree-have <= spare; l++ {
		if t.time(g, l) < t.time(g, g.at) {
			return l
		}
	}
	return -1
}

// conserve is stage 3: ranks left over go round the groups, to each the fewest that
// make it faster, until no group can use them. The makespan does not rise.
func (t *fcpTable) conserve(groups []*atomic) {
	spare := t.a.devices
	for _, g := range groups {
		spare -= t.a.levels[g.at].degree
	}
	for more := true; more && spare > 0; {
		more = false
		for _, g := range groups {
			if to := t.faster(g, spare); to >= 0 {
				spare -= t.a.levels[to].degree - t.a.levels[g.at].degree
				g.at, more = to, true
			}
		}
	}
}

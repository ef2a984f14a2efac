package batch

import (
	"cmp"
	"slices"
)

// nodeFit says whether groups that must each be in one node of a pool can be put
// there. Where their degrees divide one another and the largest divides every
// node, any that have devices enough can; else they are tried as Place does.
type nodeFit struct {
	chain bool
	sizes []int // of the nodes
	room  []int // of the nodes while trying
}

func newNodeFit(p *Problem, pool int) nodeFit {
	f := nodeFit{chain: true}
	for _, node := range p.Fleet[pool].Ranks {
		f.sizes = append(f.sizes, len(node))
	}
	var degrees []int
	for _, c := range p.Classes {
		if c.One && c.Uses[pool] > 1 {
			degrees = append(degrees, c.Uses[pool])
		}
	}
	slices.Sort(degrees)
	for i, d := range degrees {
		if i > 0 && d%degrees[i-1] != 0 {
			f.chain = false
		}
	}
	if len(degrees) > 0 {
		largest := degrees[len(degrees)-1]
		f.chain = f.chain && !slices.ContainsFunc(f.sizes, func(n int) bool { return n%largest != 0 })
	}
	f.room = make([]int, len(f.sizes))
	return f
}

// fits says whether groups of these degrees find nodes, largest first, each in
// the node with the least room that holds it.
func (f *nodeFit) fits(degrees []int) bool {
	if f.chain {
		return true
	}
	slices.SortFunc(degrees, func(a, b int) int { return cmp.Compare(b, a) })
	copy(f.room, f.sizes)
	for _, d := range degrees {
		best := -1
		for i, r := range f.room {
			if r >= d && (best < 0 || r < f.room[best]) {
				best = i
			}
		}
		if best < 0 {
			return false
		}
		f.room[best] -= d
	}
	return true
}

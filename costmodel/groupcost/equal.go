package groupcost

import (
	"fmt"
	"slices"
)

// AsEqual returns the costs as a planner sees them that assumes equal devices: one pool
// and, for each number of devices, one class that keeps activations and one that
// recomputes them. Each takes the time of the slowest and the memory of the tightest of
// c's classes of that size, since any of these may be what a group gets. If c was made
// with Options.EqualShares, a plan for these costs runs on the real devices as they come,
// in not much more than the time it states.
//
// Numbers of devices are left out for which c lacks a class of some pool, on its own or
// in a mix.
func (c *Costs) AsEqual() *Costs {
	out := &Costs{MicroBase: c.MicroBase, Fixed: c.Fixed, Hidden: c.Hidden, BothPasses: c.BothPasses, Behind: c.Behind, Layers: c.Layers, Longest: c.Longest, Pools: []Pool{c.onePool()}}
	perNode := len(c.Pools[0].Ranks[0])
	for _, node := range out.Pools[0].Ranks {
		perNode = min(perNode, len(node))
	}
	for d := 1; d <= out.Pools[0].Count(); d++ {
		for _, recompute := range []bool{false, true} {
			if class, of, ok := c.slowest(d, d <= perNode, recompute); ok {
				out.Classes, out.curves = append(out.Classes, class), append(out.curves, of)
			}
		}
	}
	return out
}

// onePool joins the pools, node by node in the order of their first rank.
func (c *Costs) onePool() Pool {
	p := Pool{Device: "any"}
	for _, of := range c.Pools {
		p.Ranks = append(p.Ranks, of.Ranks...)
	}
	slices.SortStableFunc(p.Ranks, func(a, b []int) int { return a[0] - b[0] })
	return p
}

// slowest is the class of any d devices, those of one node alone or any. Of
// several mechanisms of the same devices the first, which is the faster for long
// sequences, stands for all.
func (c *Costs) slowest(d int, one, recompute bool) (Class, curve, bool) {
	out := Class{Name: fmt.Sprint(d), Uses: []int{d}, One: one, Cap: mostTokens, Recompute: recompute}
	if recompute {
		out.Name += ", recompute"
	}
	var of curve
	known := make([]bool, len(c.Pools))
	var seen [][]int
	for i, k := range c.Classes {
		again := slices.ContainsFunc(seen, func(u []int) bool { return slices.Equal(u, k.Uses) })
		if k.Degree() != d || k.Recompute != recompute || one && !k.One || again {
			continue
		}
		seen = append(seen, k.Uses)
		for p, u := range k.Uses {
			known[p] = known[p] || u > 0
		}
		out.Base, out.Cap = max(out.Base, k.Base), min(out.Cap, k.Cap)
		of.slowest = append(of.slowest, c.curves[i])
	}
	return out, of, !slices.Contains(known, false)
}

package baseline

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// USPSubset is what people do when equal shares let fast devices wait for slow
// ones, or a slow network all of them: usp on a part of the cluster. It takes the
// best of all choices of device types, of as many devices of every node as the
// smallest has and of the largest nodes of one type. Ranks that are left out have neither
// tokens nor a share of the states.
type USPSubset struct{}

// Name implements strategy.Strategy.
func (USPSubset) Name() string { return "usp-subset" }

// Claims implements strategy.Strategy.
func (USPSubset) Claims() strategy.Claims {
	return strategy.Claims{Baseline: true, Doc: "usp on a part of the cluster: only some device types, as many devices of every node as the smallest has, or some nodes of one type"}
}

// Solve implements strategy.Strategy. On a single node of one device type there is no part
// to choose, nor where no part alone has laws of its links, and the error is an
// *IllegalError.
func (s USPSubset) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	parts, unpriced := parts(p)
	switch {
	case len(parts) == 0 && unpriced != nil:
		return strategy.Result{}, strategy.Illegal(s.Name(), "no part of the cluster can be priced alone: "+unpriced.Error())
	case len(parts) == 0:
		return strategy.Result{}, strategy.Illegal(s.Name(), "all devices are of one type on a single node, so nothing is left out")
	}
	m, err := analytic.New(p)
	if err != nil {
		return strategy.Result{}, err
	}
	c := strategy.NewContest(ctx, p, s.Name(), report)
	for _, part := range parts {
		for _, x := range Meshes(p, part.ranks) {
			x.try(p, c, m, " on "+part.name)
		}
	}
	return c.Result()
}

// clusterPart is some ranks of the cluster.
type clusterPart struct {
	name  string
	ranks []int
}

// parts lists the parts of the cluster that people choose, without repetition
// and without the whole. The error is a law that a part would need and nobody
// measured; the others stay.
func parts(p *strategy.Problem) (kept []clusterPart, unpriced error) {
	for _, x := range slices.Concat(partsByType(p), []clusterPart{evenNodes(p)}, largestNodes(p)) {
		same := func(o clusterPart) bool { return slices.Equal(o.ranks, x.ranks) }
		if len(x.ranks) == len(p.Ranks) || slices.ContainsFunc(kept, same) {
			continue
		}
		if err := p.Alone(x.ranks); err != nil {
			unpriced = err
			continue
		}
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
			all = append(all, partOf(p, t), partOf(p, slices.Delete(slices.Clone(types), i, i+1)...))
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
		all = append(all, partOf(p, some...))
	}
	return all
}

// partOf is the ranks of some device types.
func partOf(p *strategy.Problem, types ...string) clusterPart {
	x := clusterPart{name: "the " + strings.Join(types, " and ")}
	for r := range p.Ranks {
		if slices.Contains(types, p.Ranks[r].Device) {
			x.ranks = append(x.ranks, r)
		}
	}
	x.name = fmt.Sprintf("%s (%d of %d ranks)", x.name, len(x.ranks), len(p.Ranks))
	return x
}

// largestNodes is, of the nodes that have devices of one type alone, the largest, the two
// largest, four and so on, and all of them, type by type.
func largestNodes(p *strategy.Problem) []clusterPart {
	var all []clusterPart
	for _, t := range p.DeviceTypes() {
		nodes := slices.DeleteFunc(p.NodeRanks(), func(ranks []int) bool {
			return len(ranks) == 0 || slices.ContainsFunc(ranks, func(r int) bool { return p.Ranks[r].Device != t })
		})
		slices.SortStableFunc(nodes, func(a, b []int) int { return len(b) - len(a) })
		for n := 1; n < 2*len(nodes); n *= 2 {
			some := min(n, len(nodes))
			x := clusterPart{ranks: slices.Sorted(slices.Values(slices.Concat(nodes[:some]...)))}
			of := units.Count(len(p.Job.Cluster.Nodes), "node")
			if len(p.DeviceTypes()) > 1 {
				of += ", with " + t + " alone"
			}
			x.name = fmt.Sprintf("%d of %s (%d of %d ranks)", some, of, len(x.ranks), len(p.Ranks))
			all = append(all, x)
		}
	}
	return all
}

// evenNodes is the first devices of every node, as many as the smallest has.
func evenNodes(p *strategy.Problem) clusterPart {
	nodes := p.NodeRanks()
	least := len(p.Ranks)
	for _, ranks := range nodes {
		least = min(least, len(ranks))
	}
	var x clusterPart
	for _, ranks := range nodes {
		x.ranks = append(x.ranks, ranks[:least]...)
	}
	x.name = fmt.Sprintf("%d devices of every node (%d of %d ranks)", least, len(x.ranks), len(p.Ranks))
	return x
}

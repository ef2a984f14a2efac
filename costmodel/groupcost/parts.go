package groupcost

import (
	"context"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Part is some nodes of a cluster, as a job has them that is run on these alone: the
// model's states are sharded over their devices and exchanged among them. A further node
// shortens what the groups of a micro-batch take; but over a slow network the exchange may
// take longer by more.
type Part struct {
	Nodes   int // how many
	Devices int // how many they have
	// MicroBase, Fixed, Hidden and Behind are those that the part's costs have (see Costs).
	MicroBase, Fixed, Hidden, Behind units.Seconds

	of    *builder
	nodes []int // of the cluster, rising
}

// Parts lists the parts of the cluster that costs were made for, the one with most devices
// first: pool by pool, of the nodes that have no other devices the largest, the two largest,
// four and so on, and all of them; and where there are up to mostKinds kinds of nodes, all
// nodes but one of a kind, and all but those of a kind.
//
// There are none of costs of a published model, which says nothing of the exchange. A part
// without laws of its exchange is left out.
func (c *Costs) Parts() []Part {
	if c.from == nil {
		return nil
	}
	b := c.from.builder
	var all []Part
	for pool := range b.pools {
		pure := slices.DeleteFunc(b.fullest(pool), func(at int) bool {
			return b.job.Cluster.Nodes[b.nodes[pool][at]].Size() > len(b.pools[pool].Ranks[at])
		})
		for n := 1; n < 2*len(pure); n *= 2 {
			if some := pure[:min(n, len(pure))]; len(some) < len(b.job.Cluster.Nodes) {
				all = b.addPart(all, b.nodesOf(pool, some))
			}
		}
	}
	for _, nodes := range b.allBut() {
		if !slices.ContainsFunc(all, func(x Part) bool { return slices.Equal(x.nodes, nodes) }) {
			all = b.addPart(all, nodes)
		}
	}
	slices.SortStableFunc(all, func(x, y Part) int { return y.Devices - x.Devices })
	return all
}

// mostKinds bounds the kinds of nodes of which parts leave one out: each part may have to be
// priced, which takes about as long as the whole.
const mostKinds = 4

// allBut lists the nodes that are left without one of a kind, and without all of them.
func (b *builder) allBut() [][]int {
	nodes := b.job.Cluster.Nodes
	var kinds [][]int
	for n, x := range nodes {
		at := slices.IndexFunc(kinds, func(of []int) bool {
			y := nodes[of[0]]
			return x.Link == y.Link && x.NICs == y.NICs && slices.Equal(x.Devices, y.Devices)
		})
		if at < 0 {
			at, kinds = len(kinds), append(kinds, nil)
		}
		kinds[at] = append(kinds[at], n)
	}
	if len(kinds) < 2 || len(kinds) > mostKinds {
		return nil
	}
	var all [][]int
	for _, of := range kinds {
		for _, out := range [][]int{of[len(of)-1:], of} {
			var rest []int
			for n := range nodes {
				if !slices.Contains(out, n) {
					rest = append(rest, n)
				}
			}
			all = append(all, rest)
		}
	}
	return all
}

// nodesOf are the cluster's nodes, rising, at some places of a pool.
func (b *builder) nodesOf(pool int, places []int) []int {
	var nodes []int
	for _, at := range places {
		nodes = append(nodes, b.nodes[pool][at])
	}
	slices.Sort(nodes)
	return nodes
}

// addPart adds some nodes, rising, unless nothing is known of their exchange.
func (b *builder) addPart(all []Part, nodes []int) []Part {
	x := Part{Nodes: len(nodes), of: b, nodes: nodes}
	for _, n := range nodes {
		x.Devices += b.job.Cluster.Nodes[n].Size()
	}
	over, err := b.q.Overheads(x.job())
	if err != nil {
		return all
	}
	x.MicroBase, x.Fixed, x.Hidden, x.Behind = over.MicroBatch, over.Step, over.Hidden, over.Behind
	return append(all, x)
}

// job is the job on the part's nodes.
func (x Part) job() costmodel.Job {
	j := x.of.job
	j.Cluster.Nodes = nil
	for _, n := range x.nodes {
		j.Cluster.Nodes = append(j.Cluster.Nodes, x.of.job.Cluster.Nodes[n])
	}
	return j
}

// Cluster is the part's nodes.
func (x Part) Cluster() costmodel.Cluster { return x.job().Cluster }

// Costs are those of the part alone. Their ranks are the whole cluster's.
//
// Errors: those of FromLaws, such as *NoRoomError.
func (x Part) Costs(ctx context.Context) (*Costs, error) {
	c, err := FromLaws(ctx, x.of.q, x.job(), x.of.o)
	if err != nil {
		return nil, err
	}
	var ranks []int // of the cluster, by rank of the part
	for r, rank := range x.of.ranks {
		if _, has := slices.BinarySearch(x.nodes, rank.Node); has {
			ranks = append(ranks, r)
		}
	}
	pools := slices.Clone(c.Pools) // the builder has its own
	for i := range pools {
		pools[i].Ranks = slices.Clone(pools[i].Ranks)
		for n, node := range pools[i].Ranks {
			pools[i].Ranks[n] = nil
			for _, r := range node {
				pools[i].Ranks[n] = append(pools[i].Ranks[n], ranks[r])
			}
		}
	}
	c.Pools = pools
	return c, nil
}

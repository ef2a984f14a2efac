package groupcost

import (
	"context"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Part is some nodes of a cluster, or of nodes with several device types the devices of some, as a
// job has them that is run on these alone: the model's states are sharded over their devices and
// exchanged among them. A further node shortens what the groups of a micro-batch take; but over a
// slow network the exchange may take longer by more, as it may with one slow device.
type Part struct {
	Nodes   int // how many it has devices in
	Devices int // how many those are
	// MicroBase, Fixed, Hidden and Behind are those that the part's costs have (see Costs).
	MicroBase, Fixed, Hidden, Behind units.Seconds

	of    *builder
	ranks []int // of the cluster, rising
}

// Parts lists the parts of the cluster that costs were made for, the one with most devices
// first: pool by pool, of the nodes that have no other devices the largest, the two largest,
// four and so on, and all of them; where there are up to mostKinds kinds of nodes, all nodes but
// one of a kind, and all but those of a kind; and where nodes have several device types, the devices
// of one type (see mixed).
//
// There are none of costs of a published model, which says nothing of the exchange. A part
// without laws of its exchange is left out.
func (c *Costs) Parts() []Part {
	if c.from == nil {
		return nil
	}
	b := c.from.builder
	var all []Part
	add := func(ranks []int) {
		if len(ranks) < len(b.ranks) && !slices.ContainsFunc(all, func(x Part) bool { return slices.Equal(x.ranks, ranks) }) {
			all = b.addPart(all, ranks)
		}
	}
	for pool := range b.pools {
		pure := slices.DeleteFunc(b.fullest(pool), func(at int) bool { return b.shared(pool, at) })
		for n := 1; n < 2*len(pure); n *= 2 {
			add(b.ranksOf(pool, pure[:min(n, len(pure))]))
		}
	}
	for _, nodes := range b.allBut() {
		add(b.ranksWhere(func(x costmodel.Rank) bool { return slices.Contains(nodes, x.Node) }))
	}
	for _, ranks := range b.mixed() {
		add(ranks)
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

// mixed lists, where nodes have devices of 2 to mostKinds types, the ranks that are left where those of
// some types take no part: the devices of a pool in its largest node that others share, the two
// largest, four and so on, and all of them; all devices of a type; and all but those of a type.
func (b *builder) mixed() [][]int {
	var types []string
	for _, x := range b.pools {
		if !slices.Contains(types, x.Device) {
			types = append(types, x.Device)
		}
	}
	var all [][]int
	for pool := range b.pools {
		places := b.fullest(pool)
		if !slices.ContainsFunc(places, func(at int) bool { return b.shared(pool, at) }) {
			continue
		}
		for n := 1; n < 2*len(places); n *= 2 {
			all = append(all, b.ranksOf(pool, places[:min(n, len(places))]))
		}
	}
	if len(all) == 0 || len(types) > mostKinds {
		return nil
	}
	for _, t := range types {
		all = append(all,
			b.ranksWhere(func(x costmodel.Rank) bool { return x.Device != t }),
			b.ranksWhere(func(x costmodel.Rank) bool { return x.Device == t }))
	}
	return all
}

// shared says that a node, at a place of a pool, has devices of other pools.
func (b *builder) shared(pool, at int) bool {
	return b.job.Cluster.Nodes[b.nodes[pool][at]].Size() > len(b.pools[pool].Ranks[at])
}

// ranksOf are the ranks of a pool, rising, at some of its places.
func (b *builder) ranksOf(pool int, places []int) []int {
	var ranks []int
	for _, at := range places {
		ranks = append(ranks, b.pools[pool].Ranks[at]...)
	}
	slices.Sort(ranks)
	return ranks
}

// ranksWhere are those of the cluster, rising, of which something is true.
func (b *builder) ranksWhere(is func(costmodel.Rank) bool) []int {
	var ranks []int
	for r, x := range b.ranks {
		if is(x) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// addPart adds some ranks, rising, unless nothing is known of their exchange.
func (b *builder) addPart(all []Part, ranks []int) []Part {
	x := Part{Devices: len(ranks), of: b, ranks: ranks}
	for i, r := range ranks {
		if i == 0 || b.ranks[r].Node != b.ranks[ranks[i-1]].Node {
			x.Nodes++
		}
	}
	over, err := b.q.Overheads(x.job())
	if err != nil {
		return all
	}
	x.MicroBase, x.Fixed, x.Hidden, x.Behind = over.MicroBatch, over.Step, over.Hidden, over.Behind
	return append(all, x)
}

// job is the job on the part's devices.
func (x Part) job() costmodel.Job {
	j := x.of.job
	j.Cluster.Nodes = nil
	r := 0 // of the cluster
	for _, node := range x.of.job.Cluster.Nodes {
		var kept []op.Member
		for _, m := range node.Devices {
			n := 0
			for range m.Count {
				if _, has := slices.BinarySearch(x.ranks, r); has {
					n++
				}
				r++
			}
			if m.Count = n; n > 0 {
				kept = append(kept, m)
			}
		}
		if node.Devices = kept; len(kept) > 0 {
			j.Cluster.Nodes = append(j.Cluster.Nodes, node)
		}
	}
	return j
}

// Cluster is the part's devices.
func (x Part) Cluster() costmodel.Cluster { return x.job().Cluster }

// Costs are those of the part alone. Their ranks are the whole cluster's.
//
// Errors: those of FromLaws, such as *NoRoomError.
func (x Part) Costs(ctx context.Context) (*Costs, error) {
	c, err := FromLaws(ctx, x.of.q, x.job(), x.of.o)
	if err != nil {
		return nil, err
	}
	pools := slices.Clone(c.Pools) // the builder has its own
	for i := range pools {
		pools[i].Ranks = slices.Clone(pools[i].Ranks)
		for n, node := range pools[i].Ranks {
			pools[i].Ranks[n] = nil
			for _, r := range node {
				pools[i].Ranks[n] = append(pools[i].Ranks[n], x.ranks[r])
			}
		}
	}
	c.Pools = pools
	return c, nil
}

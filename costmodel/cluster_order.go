package costmodel

import (
	"cmp"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// DevicePace is what sets a device type apart where a cluster's order is sought: the seconds that it
// takes over linear work and over attention, and its memory.
type DevicePace struct {
	Linear, Attention float64
	Memory            units.Bytes
}

// compare puts the type first that search should meet first.
func (a DevicePace) compare(b DevicePace) int {
	return cmp.Or(cmp.Compare(a.Linear, b.Linear), cmp.Compare(a.Attention, b.Attention), cmp.Compare(b.Memory, a.Memory))
}

// Ordered is the cluster in an order which does not depend on how it lists its devices, and, by
// rank there, the rank that it is here; no ranks where they are the same. Searches end, and ties
// are broken, by what they meet first, so that the plans of two lists of the same nodes would
// differ.
//
// It sorts nodes, and the device types within them, fast devices before slow ones, of equally
// fast ones those with more memory, then small nodes before large ones, then fast links before
// slow ones: what they are called counts last. Paces are by device type, and link is what a
// message inside a node takes, in seconds.
func (c Cluster) Ordered(paces map[string]DevicePace, link func(node int) float64) (Cluster, []int) {
	byPace := func(a, b op.Member) int {
		return cmp.Or(paces[a.Device].compare(paces[b.Device]), strings.Compare(a.Device, b.Device), cmp.Compare(a.Count, b.Count))
	}
	nodes, first := make([]listedNode, len(c.Nodes)), 0
	for i, n := range c.Nodes {
		nodes[i] = listedNode{Node: n, first: first, link: link(i)}
		nodes[i].sort(byPace)
		first += n.Size()
	}
	slices.SortStableFunc(nodes, func(a, b listedNode) int {
		return cmp.Or(
			paces[a.Devices[0].Device].compare(paces[b.Devices[0].Device]),
			cmp.Compare(a.Size(), b.Size()),
			slices.CompareFunc(a.Devices, b.Devices, byPace),
			cmp.Compare(a.link, b.link),
			cmp.Compare(a.NICs, b.NICs),
			strings.Compare(a.Link, b.Link),
		)
	})
	out, listed := c, []int(nil)
	out.Nodes = nil
	for _, n := range nodes {
		out.Nodes, listed = append(out.Nodes, n.Node), append(listed, n.ranks...)
	}
	if slices.IsSorted(listed) {
		return c, nil
	}
	return out, listed
}

// listedNode is a node and its ranks.
type listedNode struct {
	Node
	first int // its first rank as the cluster lists it
	ranks []int
	link  float64 // what a message inside it takes, in seconds
}

// sort puts the node's device types, and its ranks with them, in an order.
func (n *listedNode) sort(by func(a, b op.Member) int) {
	from, next := map[string]int{}, n.first
	for _, m := range n.Devices {
		from[m.Device], next = next, next+m.Count
	}
	n.Devices = slices.SortedFunc(slices.Values(n.Devices), by)
	for _, m := range n.Devices {
		for i := range m.Count {
			n.ranks = append(n.ranks, from[m.Device]+i)
		}
	}
}

package solver

import (
	"cmp"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// ordered is the problem that strategies solve: the same devices in an order which does not
// depend on how the cluster lists them. Searches end, and ties are broken, by what they meet
// first, so that the plans of two lists of the same nodes would differ, by a few per cent
// where many layouts are nearly as fast.
type ordered struct {
	*strategy.Problem
	listed []int // by rank of Problem, that rank as the cluster lists it; nil where they are the same
	place  func(listed int) string
}

// inOrder is the problem that strategies solve. It sorts nodes, and the device types within
// them, fast devices before slow ones, of equally fast ones those with more memory, then small
// nodes before large ones, then fast links before slow ones: what they are called counts last.
func (p *Problem) inOrder() (ordered, error) {
	m, err := analytic.New(p.posed)
	if err != nil {
		return ordered{}, err
	}
	paces := p.paces(m)
	byPace := func(a, b op.Member) int {
		return cmp.Or(paces[a.Device].compare(paces[b.Device]), strings.Compare(a.Device, b.Device), cmp.Compare(a.Count, b.Count))
	}
	nodes := make([]listedNode, len(p.Job.Cluster.Nodes))
	for r, k := range p.posed.Ranks {
		if n := &nodes[k.Node]; n.Devices == nil {
			n.Node, n.first, n.link = p.Job.Cluster.Nodes[k.Node], r, p.linkPace(m, k.Node)
		}
	}
	for i := range nodes {
		nodes[i].sort(byPace)
	}
	sorted := slices.SortedStableFunc(slices.Values(nodes), func(a, b listedNode) int {
		return cmp.Or(
			paces[a.Devices[0].Device].compare(paces[b.Devices[0].Device]),
			cmp.Compare(a.Size(), b.Size()),
			slices.CompareFunc(a.Devices, b.Devices, byPace),
			cmp.Compare(a.link, b.link),
			cmp.Compare(a.NICs, b.NICs),
			strings.Compare(a.Link, b.Link),
		)
	})
	o := ordered{place: p.posed.Place}
	c := p.Job.Cluster
	c.Nodes = nil
	for _, n := range sorted {
		c.Nodes, o.listed = append(c.Nodes, n.Node), append(o.listed, n.ranks...)
	}
	if slices.IsSorted(o.listed) {
		return ordered{Problem: p.posed}, nil
	}
	o.Problem, err = p.posed.On(c)
	return o, err
}

// listedNode is a node and its ranks.
type listedNode struct {
	costmodel.Node
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

// pace is what sets a device type apart: the seconds that it takes over a layer's linear work
// and attention on half of the sequence, and its memory.
type pace struct {
	linear, attention float64
	memory            units.Bytes
}

// compare puts the type first that search should meet first.
func (a pace) compare(b pace) int {
	return cmp.Or(cmp.Compare(a.linear, b.linear), cmp.Compare(a.attention, b.attention), cmp.Compare(b.memory, a.memory))
}

// paces are those of each device type.
func (p *Problem) paces(m *analytic.Model) map[string]pace {
	paces := map[string]pace{}
	for r, k := range p.posed.Ranks {
		if _, known := paces[k.Device]; !known {
			own := m.Block(analytic.Block{Type: m.TypeOf[r], Heads: p.Job.Model.QHeads, KVHeads: p.Job.Model.KVHeads, Q: p.half()})
			paces[k.Device] = pace{
				linear: m.LinearTime(m.TypeOf[r], p.half()), attention: own.Forward + own.Backward,
				memory: p.Predictor.DeviceMemory(p.Job, k.Device).Capacity,
			}
		}
	}
	return paces
}

// linkPace is what a node's devices take to pass the keys of half of the sequence on, in seconds.
func (p *Problem) linkPace(m *analytic.Model, node int) float64 {
	j := p.Job
	keys := float64(p.half()) * float64(j.Model.KVHeads*j.Model.HeadDim) * float64(j.DType.Size())
	return m.Inside[node].Seconds(op.KindSendRecv, keys)
}

func (p *Problem) half() units.Tokens { return max(1, p.Job.SeqLen/2) }

// ofListed is a layout of ranks as the cluster lists them, as one of this problem.
func (o ordered) ofListed(l costmodel.Layout) costmodel.Layout {
	if o.listed == nil {
		return l
	}
	to := make([]int, len(o.listed))
	for r, as := range o.listed {
		to[as] = r
	}
	return l.Relabelled(to)
}

// listAll gives attempts the ranks of the cluster as it is listed.
func (o ordered) listAll(found []strategy.Attempt) {
	if o.listed == nil {
		return
	}
	for i := range found {
		a := &found[i]
		if a.Illegal != "" {
			continue
		}
		a.Layout, a.Step = a.Layout.Relabelled(o.listed), a.Step.Relabelled(o.listed)
		if a.MemErr != nil {
			e := *a.MemErr
			e.Rank = o.listed[e.Rank]
			e.Place = o.place(e.Rank)
			a.MemErr = &e
		}
	}
}

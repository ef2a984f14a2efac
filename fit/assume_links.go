package fit

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// aStep is the interval of one collective from another over the same wires.
const aStep = 1.5

// The classes of links that AssumeLinks makes up.
const (
	// NetworkLink is the link between nodes, at the rate of the slowest network adapter in
	// the group.
	NetworkLink = "network_by_datasheet"
	// DeviceLink is the link between equal devices of a node, at the rate of the
	// device-to-device link in their datasheet.
	DeviceLink = "device_link_by_datasheet"
	// HostBusLink is the link between unlike devices of a node, through the host.
	HostBusLink = "host_bus_by_datasheet"
)

// assumeCollectives fills in the collectives that a group was not measured with
// and that a step or a baseline needs, from one that it was: what crosses the
// busiest port tells the time of either. Where any library was measured with a
// collective on the same GPU models over the same link class, none is assumed.
func assumeCollectives(p *costmodel.Profile, g op.GroupType) {
	if g.Nodes != 1 {
		return
	}
	base := baseOf(p, g)
	if base == nil {
		return
	}
	from := *base // laws move as more are added
	for _, k := range costmodel.StepCollectives() {
		already := slices.ContainsFunc(p.Laws, func(l costmodel.Law) bool { return l.Group == g.Name && l.Op == k })
		if !already && !measuredOver(p, g, k) {
			p.Laws = append(p.Laws, asCollective(from, g, k))
		}
	}
}

// baseOf is the law that a group's other collectives are assumed from: of the
// one that moves bytes most as they do.
func baseOf(p *costmodel.Profile, g op.GroupType) *costmodel.Law {
	for _, k := range []op.Kind{op.KindAllGather, op.KindReduceScatter, op.KindAllToAll, op.KindAllReduce} {
		if l := likeliest(p, g, k); l != nil {
			return l
		}
	}
	return nil
}

// asCollective is a collective's law as that of another: curves are of the bytes
// through the busiest port, so only the range of messages changes.
func asCollective(l costmodel.Law, g op.GroupType, k op.Kind) costmodel.Law {
	curve := *l.Curve
	curve.HalfWidths = nil // those of what was measured
	share := portShare(l.Op, g.Ranks()) / portShare(k, g.Ranks())
	return costmodel.Law{
		Op: k, Group: g.Name, Curve: &curve, Scale: l.Scale, Port: l.Port, From: l.From,
		Range:   []costmodel.AxisRange{{Axis: op.CoordNames(k)[0], Min: max(1, l.Range[0].Min*share), Max: max(1, l.Range[0].Max*share)}},
		Spread:  costmodel.Spread{Lo: min(l.Spread.Lo, 1/aStep), Hi: max(l.Spread.Hi, aStep)},
		Assumed: fmt.Sprintf("not measured: as long as the same group's %s that moves as many bytes through its busiest port", l.Op),
	}
}

// portShare is what share of a message's bytes crosses the busiest port of n
// ranks; an uneven all-to-all's axis is those bytes themselves.
func portShare(k op.Kind, n int) float64 {
	if k == op.KindAllToAllV {
		return 1
	}
	const large = 1 << 40 // where the rounding of chunks is nothing
	return float64(op.Volume(op.OfMessage(k, op.Message{Group: n, Bytes: large}))) / large
}

// likeliest is the group's law of a collective that stands for all element
// types: without one, 16 bits, or whichever comes first.
func likeliest(p *costmodel.Profile, g op.GroupType, k op.Kind) *costmodel.Law {
	order := []op.DType{"", op.BF16, op.F16}
	place := func(d op.DType) int {
		if i := slices.Index(order, d); i >= 0 {
			return i
		}
		return len(order)
	}
	var best *costmodel.Law
	for i := range p.Laws {
		l := &p.Laws[i]
		if l.Group == g.Name && l.Op == k && l.Assumed == "" && (best == nil || place(l.Variant.DType) < place(best.Variant.DType)) {
			best = l
		}
	}
	return best
}

// measuredOver says whether a collective has a law on this link class among the
// GPU models of a group, in whatever library and size of group.
func measuredOver(p *costmodel.Profile, g op.GroupType, k op.Kind) bool {
	return slices.ContainsFunc(p.Groups, func(o op.GroupType) bool {
		if o.Link != g.Link || !alikeModels(o, g) || o.Nodes != 1 {
			return false
		}
		return slices.ContainsFunc(p.Laws, func(l costmodel.Law) bool { return l.Group == o.Name && l.Op == k && l.Assumed == "" })
	})
}

func alikeModels(a, b op.GroupType) bool { return slices.Equal(models(a.Members), models(b.Members)) }

// models lists the GPU models among members, sorted, each once.
func models(members []op.Member) []string {
	var names []string
	for _, m := range members {
		names = append(names, costmodel.ModelOf(m.Device))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// AssumeLinks completes a cluster with links that nobody measured: it names the link
// classes that the cluster leaves open, between nodes and between unlike devices of a
// node, and adds their groups and assumed laws to the profile. The names of the cluster
// must be those of device types (see costmodel.Cluster.Resolve).
//
// Own is what of the profile its user measured. A class over which it has collectives
// between nodes of the cluster's devices is the network, and gets laws only of what it
// lacks. Where datasheets are silent too, its only class stands for an open one, as it does
// in Resolve.
//
// Errors name the device whose datasheet lacks a rate, or the classes among which nothing
// decides, and the flag that chooses a link class.
func AssumeLinks(p, own *costmodel.Profile, c costmodel.Cluster) (costmodel.Cluster, error) {
	out := c
	out.Nodes = slices.Clone(c.Nodes)
	for i := range out.Nodes {
		n := &out.Nodes[i]
		if n.Link != "" || ranksOf(n.Devices) < 2 {
			continue
		}
		if n.Link = linkOf(p, n.Devices); n.Link != "" {
			continue
		}
		if err := assumeInside(p, n); err != nil {
			if n.Link = onlyClass(own, n.Devices); n.Link == "" {
				return c, &costmodel.FieldError{Field: fmt.Sprintf("nodes[%d].link", i), Err: choosing(err, own, "--link")}
			}
		}
	}
	if len(out.Nodes) < 2 {
		return out, nil
	}
	if err := assumeBetween(p, own, &out); err != nil {
		return c, &costmodel.FieldError{Field: "network", Err: err}
	}
	return out, nil
}

// assumeInside makes up the link between the devices of a node: like devices
// have their own, unlike ones share their host's bus.
func assumeInside(p *costmodel.Profile, n *costmodel.Node) error {
	class, of := HostBusLink, func(s op.Sheet) float64 { return s.HostPerS }
	if len(models(n.Devices)) == 1 {
		class, of = DeviceLink, func(s op.Sheet) float64 { return max(s.LinkPerS, s.HostPerS) }
	}
	rate, err := slowest(p, n.Devices, of)
	if err != nil {
		return err
	}
	n.Link = class
	assumeWire(p, costmodel.AssumedWire{
		Class: class, Members: n.Devices, Nodes: 1, Latency: costmodel.BusLatency,
		One: units.BytesPerS(rate), All: units.BytesPerS(rate),
		Port: known(op.GroupType{Members: n.Devices}.Port(func(device string) op.Port {
			return op.Port{PerS: units.BytesPerS(of(sheetOf(p.Devices, device))), InNetwork: true}
		})),
	})
	return nil
}

func ranksOf(members []op.Member) int { return op.GroupType{Members: members}.Ranks() }

// linkOf is the link class that most groups of these GPU models were measured
// on; "" where there is none.
func linkOf(p *costmodel.Profile, members []op.Member) string {
	count := map[string]int{}
	best := ""
	for _, g := range p.Groups {
		if g.Nodes == 1 && slices.Equal(models(g.Members), models(members)) {
			count[g.Link]++
			if best == "" || cmp.Or(cmp.Compare(count[g.Link], count[best]), cmp.Compare(best, g.Link)) > 0 {
				best = g.Link
			}
		}
	}
	return best
}

// slowest is the least rate that the datasheets of members give.
func slowest(p *costmodel.Profile, members []op.Member, rate func(op.Sheet) float64) (float64, error) {
	least := math.Inf(1)
	for _, m := range members {
		own := rate(sheetOf(p.Devices, m.Device))
		if own == 0 {
			return 0, fmt.Errorf("no link between %s and others was measured, and its datasheet names no rate", m.Device)
		}
		least = min(least, own)
	}
	return least, nil
}

// assumeNetwork makes up the links between nodes: among all devices, and among every
// choice of device types or nodes whose adapters or inner links are faster, for a group that
// has none of the slowest goes at its own rate.
func assumeNetwork(p *costmodel.Profile, c costmodel.Cluster, add func(costmodel.AssumedWire)) error {
	var whole costmodel.AssumedWire
	var parts [][]costmodel.Node
	for _, part := range c.TypesTogether() {
		parts = append(parts, part.Nodes)
	}
	for i, nodes := range append(parts, c.FasterTogether(p)...) {
		w, err := networkOf(p, nodes, c.Network)
		if err != nil {
			return err
		}
		if i == 0 {
			whole = w
		}
		if i == 0 || w.One > whole.One || w.All > whole.All {
			add(w)
		}
	}
	return nil
}

// networkOf is the link between nodes. A hop crosses one adapter, and so does each
// rank's share of an all-to-all. Other collectives leave a node through all its adapters
// at once, as far as the links inside it go.
func networkOf(p *costmodel.Profile, nodes []costmodel.Node, class string) (costmodel.AssumedWire, error) {
	var all []op.Member
	one, together := math.Inf(1), math.Inf(1)
	for _, n := range nodes {
		net, err := slowest(p, n.Devices, func(s op.Sheet) float64 { return s.NetPerS })
		if err != nil {
			return costmodel.AssumedWire{}, err
		}
		inside, err := slowest(p, n.Devices, func(s op.Sheet) float64 { return max(s.LinkPerS, s.NetPerS) })
		if err != nil {
			return costmodel.AssumedWire{}, err
		}
		one = min(one, net)
		together = min(together, inside, net*float64(ranksOf(n.Devices)))
		all = append(all, n.Devices...)
	}
	w := costmodel.AssumedWire{
		Class: class, Members: op.Merged(all), Nodes: len(nodes), Latency: costmodel.NetLatency,
		One: units.BytesPerS(one), All: units.BytesPerS(max(one, together)),
	}
	w.Port = portOf(p.Devices, op.NewGroupType(w.Members, w.Nodes, w.Class))
	return w, nil
}

// bySheets says whose rate an assumed link has; see costmodel.AssumedWire.
const bySheets = "the slowest datasheet rate of its members"

// assumeWire adds a link nobody measured, unless its group is there.
func assumeWire(p *costmodel.Profile, w costmodel.AssumedWire) {
	w.By = bySheets
	g, laws := w.Laws()
	if slices.ContainsFunc(p.Groups, func(o op.GroupType) bool { return o.Name == g.Name }) {
		return
	}
	p.Groups = append(p.Groups, g)
	p.Laws = append(p.Laws, laws...)
}

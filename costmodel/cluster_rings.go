package costmodel

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// leaves is the rate at which the ranks of a node send to other nodes in one ring, in one
// direction and bytes/s: through all its network cards at once, as far as the links inside it
// go. Of a network that the cluster states no rate of it is that of datasheets, 0 where one
// is silent.
func (c Cluster) leaves(devices []op.DeviceType, n Node) units.BytesPerS {
	l, ok := c.stated(c.Network)
	if !ok {
		card := networkRate(devices, n.Devices)
		inside := slowestSheet(devices, n.Devices, func(s op.Sheet) float64 { return max(s.LinkPerS, s.NetPerS) })
		return units.BytesPerS(min(inside, card*float64(n.Size())))
	}
	together := float64(l.Rate) * float64(cmp.Or(n.NICs, n.Size()))
	if inside := c.insideOf(devices, n); inside > 0 {
		together = min(together, inside)
	}
	return max(l.Rate, units.BytesPerS(together))
}

// FasterTogether lists the nodes that send to others faster than the slowest of the cluster
// does, in one ring: those as fast as one of them, for every rate there is, the most first. A
// plan may leave the slower ones out. Nodes alone have no network.
func (c Cluster) FasterTogether(p *Profile) [][]Node {
	rates := make([]units.BytesPerS, len(c.Nodes))
	for i, n := range c.Nodes {
		rates[i] = c.leaves(p.Devices, n)
	}
	var out [][]Node
	known := slices.Compact(slices.Sorted(slices.Values(rates)))
	for _, rate := range known[min(1, len(known)):] {
		var nodes []Node
		for i, n := range c.Nodes {
			if rates[i] >= rate {
				nodes = append(nodes, n)
			}
		}
		if len(nodes) > 1 {
			out = append(out, nodes)
		}
	}
	return out
}

// NodeRates is how fast each node of a cluster sends to others in one ring, in one direction
// and bytes/s.
func (q *Predictor) NodeRates(c Cluster) []units.BytesPerS {
	rates := make([]units.BytesPerS, len(c.Nodes))
	for i, n := range c.Nodes {
		rates[i] = c.leaves(q.sheets, n)
	}
	return rates
}

// Across is Over of a collective over a network among members on nodes of which the slowest
// sends at such a rate in one ring (NodeRates). A law that is assumed of a ring is of the
// nodes it was made for; where the slowest of these is not as fast as that of the members'
// nodes, another with its rate takes the law's place, or the fastest of those that are slower.
//
// Errors: those of Over.
func (q *Predictor) Across(link string, kind op.Kind, members []op.Member, slowest units.BytesPerS) (law *Law, factor float64, err error) {
	law, factor, err = q.Over(link, kind, members)
	if err != nil || law.Assumed == "" || rateApart(q.ringRate(law), slowest) == 0 {
		return law, factor, err
	}
	want := ranksOf(members)
	var best *Law
	better := func(l *Law) bool {
		away := func(l *Law) int {
			return 2*abs(q.named[l.Group].Ranks()-want) - min(1, q.named[l.Group].Ranks()/max(1, want))
		}
		return best == nil || cmp.Or(rateApart(q.ringRate(l), q.ringRate(best)), cmp.Compare(away(best), away(l))) > 0
	}
	for _, l := range q.RingLaws(link, kind, slowest) {
		if better(l) {
			best = l
		}
	}
	if best == nil {
		return law, factor, nil
	}
	return best, 1, nil
}

// RingLaws lists the assumed laws of a collective in one ring over a network that are no
// faster than such a rate.
func (q *Predictor) RingLaws(link string, kind op.Kind, atMost units.BytesPerS) []*Law {
	var all []*Law
	for _, w := range q.wired[wireLaw{wireOf{link, kind}, op.Variant{}}] {
		if rate := q.ringRate(w.law); rate > 0 && rateApart(rate, atMost) <= 0 {
			all = append(all, w.law)
		}
	}
	return all
}

// ringRate is the rate that a law was assumed by of all cards of a node in one ring (see
// AssumedWire.Laws); 0 of any other law.
func (q *Predictor) ringRate(l *Law) units.BytesPerS {
	switch l.Op {
	case op.KindAllReduce, op.KindAllGather, op.KindReduceScatter:
	default:
		return 0
	}
	if l.Assumed == "" || l.Curve == nil || l.Curve.Form != AlphaBeta || len(l.Curve.Pieces) != 1 || q.named[l.Group].Nodes < 2 {
		return 0
	}
	return units.BytesPerS(1 / (wireShare * l.Curve.Pieces[0].Beta.Value))
}

// rateApart compares rates, but for what rounding may do.
func rateApart(a, b units.BytesPerS) int {
	if math.Abs(float64(a-b)) <= 1e-9*math.Abs(float64(b)) {
		return 0
	}
	return cmp.Compare(a, b)
}

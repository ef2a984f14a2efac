package bound

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// perByte is the least seconds a byte of any link that the ranks of a scope use: of a
// lone device's node, or one with no other device of the scope, there is none.
func (f *floors) perByte(k op.Kind, s scope) float64 {
	return f.perByteAt(k, s, func(costmodel.Node) bool { return true })
}

// perByteOf is that of the ranks of a device type: the link of a node they are on, or the
// network.
func (f *floors) perByteOf(device string, k op.Kind, s scope) float64 {
	return f.perByteAt(k, s, func(n costmodel.Node) bool {
		return slices.ContainsFunc(n.Devices, func(m op.Member) bool { return m.Device == device && m.Count > 0 })
	})
}

// perByteAt is that of the ranks on some nodes.
//
// All-to-alls of a group on several nodes move over both at once, so that their bytes together
// take no less than over two ports side by side.
func (f *floors) perByteAt(k op.Kind, s scope, on func(costmodel.Node) bool) float64 {
	least := math.Inf(1)
	for i, node := range f.job.Cluster.Nodes {
		if node.Link != "" && s.within(node) > 1 && (s.node < 0 || s.node == i) && on(node) {
			least = min(least, f.perByteOver(node.Link, k))
		}
	}
	if s.node < 0 {
		far := f.perByteOver(f.job.Cluster.Network, k)
		if least = min(least, far); k == op.KindAllToAll && least < far {
			least = 1 / (1/least + 1/far)
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// within is how many devices of a node a scope has.
func (s scope) within(n costmodel.Node) int {
	all := 0
	for _, m := range n.Devices {
		if s.counts[m.Device] > 0 {
			all += m.Count
		}
	}
	return all
}

// perByteOver is the least seconds a byte on the busiest port of a link class.
func (f *floors) perByteOver(link string, k op.Kind) float64 {
	key := linkUse{link, k}
	if b, ok := f.bytes[key]; ok {
		return b
	}
	j := f.job
	most := 4 * units.Bytes(j.SeqLen) * units.Bytes((j.Model.QHeads+2*j.Model.KVHeads)*j.Model.HeadDim)
	if link == j.Cluster.Network { // where ranks share cards, a message takes as long as all of a node's
		largest := 1
		for _, n := range j.Cluster.Nodes {
			largest = max(largest, n.Size())
		}
		most = most.Times(int64(largest))
		if k == op.KindAllToAll { // and may count for those inside a node as well
			most = most.Times(mostAbroad)
		}
	}
	least := math.Inf(1)
	largest := f.largestOn(link)
	for n := 2; n <= min(largest, eachCount); n++ {
		for _, u := range f.lawsAmong(scope{counts: f.ranks}, link, k, n) {
			least = min(least, u.factor*u.law.Factor()*float64(u.law.Curve.FloorPerByte(most)))
		}
	}
	if largest > eachCount {
		for _, l := range f.lawsOver(link, k) {
			least = min(least, l.Factor()*float64(l.Curve.FloorPerByte(most)))
		}
	}
	if math.IsInf(least, 1) {
		least = 0
	}
	f.bytes[key] = least
	return least
}

// mostAbroad bounds costmodel.Predictor.AbroadFactor: with k nodes it is less than k/(k-1).
const mostAbroad = 2

// largestOn is the most ranks that a link class holds together.
func (f *floors) largestOn(link string) int {
	if link == f.job.Cluster.Network {
		return f.size
	}
	largest := 2
	for _, n := range f.job.Cluster.Nodes {
		if n.Link == link {
			largest = max(largest, n.Size())
		}
	}
	return largest
}

// linkUse is a collective over a link class.
type linkUse struct {
	link string
	kind op.Kind
}

// lawUse is a law and the factor by which it is slowed.
type lawUse struct {
	law    *costmodel.Law
	factor float64
}

// lawsAmong lists the laws that the predictor may answer with for n ranks of a
// scope.
func (f *floors) lawsAmong(s scope, link string, k op.Kind, n int) []lawUse {
	own := f.lawsOfTypes(s, link, k)
	var all []lawUse
	for _, name := range f.names {
		if s.counts[name] == 0 || own != nil {
			continue
		}
		if u := f.lawOfEqual(link, k, op.Member{Device: name, Count: n}); u.law != nil {
			all = append(all, u)
		}
	}
	if len(s.counts) < 2 {
		return all
	}
	if own == nil {
		own = f.lawsOver(link, k)
	}
	// Of unlike members any measured group may stand in, as it is if it has as many.
	stand := f.standsIn(link, k)
	for _, l := range own {
		factor := stand
		if f.groups[l.Group].Ranks() == n {
			factor = 1
		}
		all = append(all, lawUse{l, factor})
	}
	return all
}

// lawsOfTypes lists the laws of groups of just the scope's types, which are unlike
// and all at work: where there are any, and no choice of element types, the
// predictor looks no further. It is nil where it may.
func (f *floors) lawsOfTypes(s scope, link string, k op.Kind) []*costmodel.Law {
	if !s.exact || len(s.counts) < 2 {
		return nil
	}
	var own []*costmodel.Law
	all := f.lawsOver(link, k)
	for _, l := range all {
		if l.Variant != all[0].Variant {
			return nil
		}
		if f.ofTypes(f.groups[l.Group], s) {
			own = append(own, l)
		}
	}
	return own
}

// ofTypes says whether a group has all device types of a scope and no others.
func (f *floors) ofTypes(g op.GroupType, s scope) bool {
	types := map[string]bool{}
	for _, m := range g.Members {
		types[m.Device] = true
		if s.counts[m.Device] == 0 {
			return false
		}
	}
	return len(types) == len(s.counts)
}

// equalUse is a collective over a link class by equal members.
type equalUse struct {
	linkUse
	members op.Member
}

// lawOfEqual is the law that the predictor answers with for equal members, none
// if it has none. Scopes share many of these questions.
func (f *floors) lawOfEqual(link string, k op.Kind, m op.Member) lawUse {
	key := equalUse{linkUse{link, k}, m}
	u, ok := f.equal[key]
	if !ok {
		if l, factor, err := f.predictor.Over(link, k, []op.Member{m}); err == nil {
			u = lawUse{l, factor}
		}
		f.equal[key] = u
	}
	return u
}

// lawsOver lists the laws of a collective over a link class; where it has no
// reduce_scatter, of the all_reduce that stands in for it.
func (f *floors) lawsOver(link string, k op.Kind) []*costmodel.Law {
	all, ok := f.linkLaws[linkUse{link, k}]
	if ok {
		return all
	}
	for i := range f.profile.Laws {
		if l := &f.profile.Laws[i]; l.Group != "" && l.Op == k && f.groups[l.Group].Link == link {
			all = append(all, l)
		}
	}
	if len(all) == 0 && k == op.KindReduceScatter {
		all = f.lawsOver(link, op.KindAllReduce)
	}
	f.linkLaws[linkUse{link, k}] = all
	return all
}

// standsIn is the factor by which a law is slowed that stands in for members that
// nobody measured: asked of a group that there cannot be.
func (f *floors) standsIn(link string, k op.Kind) float64 {
	if factor, ok := f.stands[linkUse{link, k}]; ok {
		return factor
	}
	members := make([]op.Member, 0, len(f.names))
	for _, name := range f.names {
		members = append(members, op.Member{Device: name, Count: costmodel.MaxRanks})
	}
	_, factor, err := f.predictor.Over(link, k, members)
	if err != nil {
		factor = 1
	}
	f.stands[linkUse{link, k}] = factor
	return factor
}

package fit

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// otherSizeWidth is sameLinkWidth where the lender was measured in groups of another size. Laws
// of groups of 2 and 4 GPUs of the reference profiles are off those of twice as many by 10 to
// 25 % in the median and 31 to 42 % in nine of ten messages of 4 KiB to 512 MiB. Moved to three
// to five points of these they are no nearer, for they bend elsewhere, and 0.85 to 0.96 of the
// messages lie within this width.
const otherSizeWidth = 0.4

// lentLinks makes the law of a collective of too few points from that of the most similar
// GPUs with the same links, in groups of the nearest size that have one: moved to the points'
// median, and as wide as they are off beside what the lender's may be. It is nil where nobody
// lends.
func (d *Data) lentLinks(s Stratum, points []Point, lenders []*costmodel.Profile) *costmodel.Law {
	i := slices.IndexFunc(d.Groups, func(g op.GroupType) bool { return g.Name == s.On })
	if i < 0 || len(points) == 0 || len(oneNode(d.Groups[i:i+1], models(d.Groups[i].Members)[0])) == 0 {
		return nil
	}
	own := d.Groups[i]
	of, size := nearestLinks(s, own, d.device(own.Members[0].Device), lenders)
	if of == nil {
		return nil
	}
	carried, width := *of, sameLinkWidth
	if size != own.Ranks() {
		width = otherSizeWidth
		share := portShare(s.Op, size) / portShare(s.Op, own.Ranks()) // curves are of the bytes through the busiest port
		carried.Range = []costmodel.AxisRange{{Axis: of.Range[0].Axis, Min: of.Range[0].Min * share, Max: of.Range[0].Max * share}}
	}
	carried.Variant = s.Variant
	carried.Range = hullWith(carried.Range, hull(s.Op, points))
	if len(points) >= fewToMove {
		carried = *moved(&carried, points)
	}
	far := 0.0
	for _, p := range points {
		far = max(far, math.Abs(math.Log(p.Seconds/float64(carried.Seconds(p.Shape)))))
	}
	if len(points) < fewToMove {
		far += unmoved * width // as of a law of calls: see unmoved
	}
	lent := lentCollective(&carried, s.On, max(width, far))
	lent.From, lent.Port = of.Group, nil // the lender's rate was moved too
	if port, odd := (library{group: own, strata: []Stratum{s}}).port(d.Devices); odd == "" {
		lent.Port = port
	}
	return lent
}

// nearestLinks finds the law of a collective that may be lent to a group, and the size of the
// group that it was measured in; nil where there is none.
func nearestLinks(s Stratum, own op.GroupType, dev op.DeviceType, lenders []*costmodel.Profile) (best *costmodel.Law, size int) {
	from, model := linkLender(dev, lenders)
	if from == nil {
		return nil, 0
	}
	apart := func(n int) int { return max(n-own.Ranks(), own.Ranks()-n) }
	for _, g := range oneNode(from.Groups, model) {
		for i := range from.Laws {
			l := &from.Laws[i]
			lends := g.Link == own.Link && measuredOn(g, l) && l.Op == s.Op && asLong(l.Variant.DType, s.Variant.DType)
			if lends && (best == nil || apart(g.Ranks()) < apart(size)) {
				best, size = l, g.Ranks()
			}
		}
	}
	return best, size
}

// asLong says that elements are of one size, as far as they are known: of messages only
// that counts, and of reductions it is most of it.
func asLong(a, b op.DType) bool { return a == "" || b == "" || a.Size() == b.Size() }

package fit

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// sameLinkWidth is what a collective is off by, as the half width of a 90 % interval of the
// log, that is carried over to GPUs whose architecture and whose links' datasheet rate are
// the same. Laws of NCCL 2.27 on a B200 are off those of NCCL 2.23 on a GB200 by 1 to 7 %,
// medians of messages of 64 KiB to 1 GiB by collective and group, and by 22 % at most; the
// datasheet's rate is by 21 to 73 %. Links of another rate or architecture are not lent:
// those of A100, H100 and B200 for each other are off by 16 to 93 % in the median, and no
// nearer by the ratio of their rates.
const sameLinkWidth = 0.15

// sameLink is by how much the datasheet rates of links may differ that are the same.
const sameLink = 0.01

// LendLinks adds the collectives among a node's GPUs that nobody measured in groups of a
// size of a device type of a profile, or of any of its GPU model: those of the lender whose
// GPUs are most similar among those with the same links. Law.From names the group that each
// comes from, and the interval is wider than that one's. A model that has groups over another
// class of links is lent none: its links are others than its datasheet says.
func LendLinks(p *costmodel.Profile, lenders ...*costmodel.Profile) {
	for _, d := range p.Devices { // the first of a model's that is lent to leaves the others nothing to lack
		if from, lender := linkLender(d, lenders); from != nil {
			lendLinks(p, d, from, lender)
		}
	}
}

// oneNode lists the groups of one GPU model alone within a node.
func oneNode(groups []op.GroupType, model string) (all []op.GroupType) {
	for _, g := range groups {
		if of := models(g.Members); g.Nodes == 1 && len(of) == 1 && of[0] == model {
			all = append(all, g)
		}
	}
	return all
}

// linkLender is the profile and the GPU model in it whose collectives a device type may
// borrow; nil where none that was measured has the same links.
func linkLender(to op.DeviceType, lenders []*costmodel.Profile) (best *costmodel.Profile, model string) {
	least := math.Inf(1)
	for _, p := range lenders {
		for _, g := range p.Groups {
			of := models(g.Members)
			if g.Nodes != 1 || len(of) != 1 || !slices.ContainsFunc(p.Laws, func(l costmodel.Law) bool { return measuredOn(g, &l) }) {
				continue
			}
			k := slices.IndexFunc(p.Devices, func(d op.DeviceType) bool { return d.Name == g.Members[0].Device })
			if k < 0 || !sameLinks(p.Devices[k], to) {
				continue
			}
			if far := distance(p.Devices[k], to); far < least {
				best, model, least = p, of[0], far
			}
		}
	}
	return best, model
}

// sameLinks says that the kernels of a library and the links of their own that they use are
// the same on two device types. Of those that have none, messages go over the bus of whatever
// host they are in, and some may not pass it without its memory.
func sameLinks(lender, to op.DeviceType) bool {
	x, y := lender.Sheet.LinkPerS, to.Sheet.LinkPerS
	return x > lender.Sheet.HostPerS && math.Abs(x-y) <= sameLink*x && sameKernels(lender, to)
}

// lendLinks adds the measured collectives of a GPU model's groups in a node.
func lendLinks(p *costmodel.Profile, to op.DeviceType, from *costmodel.Profile, model string) {
	own := oneNode(p.Groups, costmodel.ModelOf(to.Name))
	has := slices.Clone(p.Laws) // before any is lent
	for _, g := range oneNode(from.Groups, model) {
		if len(own) > 0 && !slices.ContainsFunc(own, func(o op.GroupType) bool { return o.Link == g.Link }) {
			continue
		}
		lent := op.NewGroupType([]op.Member{{Device: stackOf(to, own), Count: g.Ranks()}}, 1, g.Link)
		known := slices.ContainsFunc(p.Groups, func(o op.GroupType) bool { return o.Name == lent.Name })
		for _, l := range from.Laws {
			if !measuredOn(g, &l) || collects(has, own, g, l.Op) || answers(p, lent.Name, &l) {
				continue
			}
			if !known {
				p.Groups, known = append(p.Groups, lent), true
			}
			p.Laws = append(p.Laws, *lentCollective(&l, lent.Name, sameLinkWidth))
		}
	}
}

// stackOf is the device type whose groups a GPU model's own collectives are of, so that those
// that are lent stand beside them; without any the one that borrows.
func stackOf(to op.DeviceType, own []op.GroupType) string {
	if len(own) == 0 {
		return to.Name
	}
	return own[0].Members[0].Device
}

// collects says whether a GPU model has a law of a collective in some library, in groups of
// this size and class, whatever its element type: planners take that of 16 bits first, and
// what was measured in another is nearer than what is lent.
func collects(has []costmodel.Law, own []op.GroupType, g op.GroupType, k op.Kind) bool {
	return slices.ContainsFunc(own, func(o op.GroupType) bool {
		return o.Link == g.Link && o.Ranks() == g.Ranks() && slices.ContainsFunc(has, func(l costmodel.Law) bool { return l.Group == o.Name && l.Op == k })
	})
}

// measuredOn says that a law is a group's own: not assumed, nor lent to it.
func measuredOn(g op.GroupType, l *costmodel.Law) bool {
	return l.Group == g.Name && l.Assumed == "" && l.From == ""
}

// answers says whether a group has a law of the same collective and variant: of two
// libraries that a lender measured, one lends.
func answers(p *costmodel.Profile, group string, l *costmodel.Law) bool {
	return slices.ContainsFunc(p.Laws, func(o costmodel.Law) bool { return o.Group == group && o.Op == l.Op && o.Variant == l.Variant })
}

// lentCollective is a collective's law as that of another group, which is off by this half
// width of a log beside what the law itself is.
func lentCollective(l *costmodel.Law, group string, width float64) *costmodel.Law {
	lent, curve := *l, *l.Curve
	curve.HalfWidths = slices.Clone(curve.HalfWidths)
	for i, half := range curve.HalfWidths {
		curve.HalfWidths[i] = math.Hypot(half, width)
	}
	wider := func(end float64) float64 { return costmodel.CombineFactors(end, math.Exp(width)) }
	lent.Spread = costmodel.Spread{Lo: 1 / wider(1/l.Spread.Lo), Hi: wider(l.Spread.Hi)}
	lent.Group, lent.From, lent.Curve, lent.Width = group, l.Group, &curve, widened(l.Width, width)
	lent.Fit, lent.Held, lent.Rivals = costmodel.FitError{}, costmodel.FitError{}, nil // of the lender's points
	return &lent
}

// widened are half widths by size, whose logarithms a field holds, with another beside them.
func widened(widths *costmodel.Field, width float64) *costmodel.Field {
	if widths == nil {
		return nil
	}
	f := *widths
	f.Values = slices.Clone(f.Values)
	for i, v := range f.Values {
		f.Values[i] = int16(math.Ceil(math.Log(math.Hypot(math.Exp(float64(v)*f.Step), width)) / f.Step))
	}
	return &f
}

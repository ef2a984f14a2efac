package fit

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// steps are the laws over the group's size of all collectives of a family, one
// for every variant: what the estimate says of a group twice and four times as
// large as the largest measured one.
func (t *familyFit) steps(device, link string) []costmodel.Steps {
	type way struct {
		kind    op.Kind
		variant op.Variant
	}
	var all []costmodel.Steps
	seen := map[way]bool{}
	for _, c := range t.curves {
		w := way{c.kind, c.variant}
		if seen[w] || !slices.Contains(messageKinds[:], c.kind) {
			continue
		}
		seen[w] = true
		s := t.stepsOf(c.kind, c.variant)
		s.Device, s.Link = device, link
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b costmodel.Steps) int {
		return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.Variant.String(), b.Variant.String()))
	})
	return all
}

func (t *familyFit) stepsOf(k op.Kind, v op.Variant) costmodel.Steps {
	s := costmodel.Steps{Op: k, Variant: v}
	least, most := math.Inf(1), math.Inf(-1) // log2 of a rank's chunk
	for _, c := range t.curves {
		if c.kind != k || c.variant != v {
			continue
		}
		s.Ranks = append(s.Ranks, c.ranks)
		apart := math.Log2(float64(c.ranks))
		least, most = min(least, slices.Min(c.octaves)-apart), max(most, slices.Max(c.octaves)-apart)
	}
	slices.Sort(s.Ranks)
	s.Ranks = slices.Compact(s.Ranks)
	n := 2 * s.Ranks[len(s.Ranks)-1]
	double, again := unmeasured(k, v, n), unmeasured(k, v, 2*n)
	near, far := t.parameters(double), t.parameters(again)
	// alpha is a straight line through the two, as far as it does not fall.
	s.PerRank = max(0, (math.Exp(far[logAlpha])-math.Exp(near[logAlpha]))/float64(n))
	s.Alpha = math.Exp(near[logAlpha]) - s.PerRank*float64(n-2)
	if least := math.Exp(near[logAlpha]) / 10; s.Alpha < least {
		s.Alpha, s.PerRank = least, (math.Exp(near[logAlpha])-least)/float64(n-2)
	}
	s.PerByte = math.Exp(near[logBeta]) / double.wire
	s.PerRoot = math.Exp(near[logKappa]) * math.Sqrt(math.Exp(near[logAlpha]+near[logBeta]))
	s.Chunks = t.chunks(double, near, max(0, least), most)
	s.Alpha, s.PerRank = rounded(s.Alpha, 5), rounded(s.PerRank, 5)
	s.PerByte, s.PerRoot = rounded(s.PerByte, 5), rounded(s.PerRoot, 5)
	return s
}

// chunks tabulates what the residuals say of a group, by the bytes of a rank's
// chunk. Where measured sizes lie close together the estimate expects next to nothing of
// one that is left out, and a jump between two of them asks for twenty times that: this
// says nothing of a group that was not measured, of which the estimate expects little.
// Below the measured chunks it goes on as the measured groups' tables do (see placesBelow).
func (t *familyFit) chunks(c *sizeCurve, theta params, from, to float64) []costmodel.ChunkFactor {
	var rows []row
	apart := math.Log2(float64(c.ranks))
	first := math.Floor(from) + apart
	at := placesBelow(theta, first)
	for u := first; u <= math.Ceil(to)+apart+octavesBeyond; u++ {
		at = append(at, u)
	}
	for _, u := range at {
		if u < apart {
			continue // less than a byte a rank
		}
		mean, d := t.log(c, theta, u)
		physics, _ := theta.log(u)
		factor := min(untoldFactor, widening(t.off, c.kind, u))
		if u < first {
			factor = max(factor, t.belowFactor(first))
		}
		rows = append(rows, row{u - apart, mean - physics, min(widest, d.half(factor))})
	}
	var all []costmodel.ChunkFactor
	for _, r := range thinned(rows, t.tolerance()) {
		bytes := units.Bytes(math.Round(math.Exp2(r.u)))
		if len(all) > 0 && bytes <= all[len(all)-1].Bytes {
			continue
		}
		all = append(all, costmodel.ChunkFactor{Bytes: bytes, Factor: rounded(math.Exp(r.log), 4), Half: rounded(r.half, 3)})
	}
	return all
}

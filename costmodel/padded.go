package costmodel

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

const (
	// paddedSpread widens, either way, the interval of a law that stands in for a
	// narrower head: some kernels have tiles of that very width and take less.
	paddedSpread = 1.3
	// NarrowTime is the time of a GPU's kernel with heads half as wide over that with whole
	// ones, of causal blocks with heads of 64 and 128 elements: kernels have tiles of both
	// widths. On the five GPU types that both were measured on, at 1k to 16k tokens, it runs
	// from 0.43 to 0.86: half the arithmetic, but as many exponentials. NarrowSpread is the
	// 90 % interval about it, either way.
	NarrowTime, NarrowSpread = 0.62, 1.6
)

// padded is the law of attention with heads of a width that nobody measured: that
// of the next wider ones, to whose width kernels fill the narrower up, or NarrowTime of that
// where they are twice as wide. It is marked as assumed, and made once. nil where no wider
// head, up to twice as wide, was measured.
func (q *Predictor) padded(on string, kind op.Kind, v op.Variant) *Law {
	if kind != op.KindAttnFwd && kind != op.KindAttnBwd {
		return nil
	}
	key := lawKey{kind, v, on}
	if l, ok := q.made.Load(key); ok {
		return l.(*Law)
	}
	for wide := v.HeadDim + 1; wide <= 2*v.HeadDim; wide++ {
		k := key
		k.variant.HeadDim = wide
		l, ok := q.laws[k]
		if !ok {
			continue
		}
		narrow := *l
		narrow.Variant, narrow.Width = v, nil
		spread := paddedSpread
		narrow.Assumed = fmt.Sprintf("heads of %d elements were not measured: they are taken to be filled up to %d, which were", v.HeadDim, wide)
		if wide == 2*v.HeadDim && l.Linear == nil { // the features of a linear law hold the width
			narrow.Scale, spread = l.Factor()*NarrowTime, NarrowSpread
			narrow.Assumed = fmt.Sprintf("heads of %d elements were not measured: %v times those of %d, as on other GPU types", v.HeadDim, NarrowTime, wide)
		}
		narrow.Spread = Spread{Lo: 1 / CombineFactors(1/l.Spread.Lo, spread), Hi: CombineFactors(l.Spread.Hi, spread)}
		if l.Assumed != "" || l.From != "" {
			narrow.Doubts = l.PassedOn()
		}
		narrow.Doubts = append(slices.Clone(narrow.Doubts), Doubt{fmt.Sprintf("heads of %d elements on %s", v.HeadDim, on), spread})
		made, _ := q.made.LoadOrStore(key, &narrow)
		return made.(*Law)
	}
	return nil
}

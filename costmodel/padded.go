package costmodel

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// paddedSpread widens, either way, the interval of a law that stands in for a
// narrower head: some kernels have tiles of that very width and take less.
const paddedSpread = 1.3

// padded is the law of attention with heads of a width that nobody measured: that
// of the next wider ones, to whose width kernels fill the narrower up. It is
// marked as assumed, and made once. nil where no wider head, up to twice as wide,
// was measured.
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
		narrow.Spread = Spread{Lo: 1 / CombineFactors(1/l.Spread.Lo, paddedSpread), Hi: CombineFactors(l.Spread.Hi, paddedSpread)}
		if l.Assumed != "" || l.From != "" {
			narrow.Doubts = l.PassedOn()
		}
		narrow.Doubts = append(slices.Clone(narrow.Doubts), Doubt{fmt.Sprintf("heads of %d elements on %s", v.HeadDim, on), paddedSpread})
		narrow.Assumed = fmt.Sprintf("heads of %d elements were not measured: they are taken to be filled up to %d, which were", v.HeadDim, wide)
		made, _ := q.made.LoadOrStore(key, &narrow)
		return made.(*Law)
	}
	return nil
}

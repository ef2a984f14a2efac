package evenkeel

import (
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
)

// ringTable is the attention of some heads on a grid of lengths: by the number of
// the queries' length, and by that of the keys' plus withKeys, blocks; none of them
// is negative but where it is not known yet.
type ringTable [][]analytic.Times

// Of a row of a ringTable: the block of a group alone, that of its own keys in a
// ring, and from withKeys on those of others.
const (
	loneBlock = iota
	ownBlock
	withKeys
)

// at is a block's place in the table, grown if need be.
func (t *ringTable) at(q, k int) *analytic.Times {
	for len(*t) <= q {
		*t = append(*t, nil)
	}
	row := (*t)[q]
	for len(row) <= k {
		row = append(row, analytic.Times{Forward: -1, Backward: -1})
	}
	(*t)[q] = row
	return &row[k]
}

// gridOf is the nearest of four lengths a doubling, and its number.
func (e *estimator) gridOf(s float64) (at int, length float64) {
	at = int(math.Round(spanStep * math.Log2(max(2, s))))
	for at >= len(e.lengths) {
		e.lengths = append(e.lengths, math.Round(math.Exp2(float64(len(e.lengths))/spanStep)))
	}
	return at, e.lengths[at]
}

// spanStep is the number of lengths a doubling.
const spanStep = 4

// span is a length of queries and one of keys and values, and their places on the
// grid of lengths.
type span struct {
	q, k   float64
	qa, ka int
	qs, ks float64
}

func (e *estimator) spanOf(q, k float64) span {
	x := span{q: q, k: k}
	x.qa, x.qs = e.gridOf(q)
	x.ka, x.ks = e.gridOf(k)
	return x
}

// attention is what a device takes over its heads in a ring of n groups, its
// own with q tokens and the others with k each.
func (e *estimator) attention(dev, heads, n int, q, k float64) analytic.Times {
	return e.attentionOn(dev, heads, n, e.spanOf(q, k))
}

func (e *estimator) attentionOn(dev, heads, n int, x span) analytic.Times {
	if heads == 0 {
		return analytic.Times{}
	}
	own := ownBlock
	if n == 1 {
		own = loneBlock
	}
	t := e.block(dev, heads, x.qa, own)
	scale := x.q * x.q / (x.qs * x.qs)
	t.Forward, t.Backward = t.Forward*scale, t.Backward*scale
	if n > 1 {
		other := e.block(dev, heads, x.qa, withKeys+x.ka)
		scale = float64(n-1) * x.q * x.k / (x.qs * x.ks)
		t.Forward += other.Forward * scale
		t.Backward += other.Backward * scale
	}
	return t
}

// block is a block of the table, priced by the laws the first time.
func (e *estimator) block(dev, heads, q, k int) analytic.Times {
	t := e.rings[dev*(e.p.Job.Model.QHeads+1)+heads].at(q, k)
	if t.Forward >= 0 {
		return *t
	}
	length := func(at int) units.Tokens { return units.Tokens(math.Round(math.Exp2(float64(at) / spanStep))) }
	b := analytic.Block{Type: dev, Heads: heads, KVHeads: e.p.Job.Model.KVHeadsOf(0, heads), Q: length(q)}
	switch {
	case k == loneBlock:
		*t = e.m.WholeBlock(b)
	case k == ownBlock:
		*t = e.m.Block(b)
	default:
		b.KV = length(k - withKeys)
		*t = e.m.Block(b)
	}
	return *t
}

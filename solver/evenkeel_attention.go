package solver

import (
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// ringTable is the attention of some heads on a grid of lengths: by the number of
// the queries' length, and by that of the keys' plus withKeys, blocks; none of them
// is negative but where it is not known yet.
type ringTable [][]blockTime

// Of a row of a ringTable: the block of a group alone, that of its own keys in a
// ring, and from withKeys on those of others.
const (
	loneBlock = iota
	ownBlock
	withKeys
)

// at is a block's place in the table, grown if need be.
func (t *ringTable) at(q, k int) *blockTime {
	for len(*t) <= q {
		*t = append(*t, nil)
	}
	row := (*t)[q]
	for len(row) <= k {
		row = append(row, blockTime{-1, -1})
	}
	(*t)[q] = row
	return &row[k]
}

// gridOf is the nearest of four lengths a doubling, and its number.
func (e *estimator) gridOf(s float64) (at int, length float64) {
	at = int(math.Round(gridStep * math.Log2(max(2, s))))
	for at >= len(e.lengths) {
		e.lengths = append(e.lengths, math.Round(math.Exp2(float64(len(e.lengths))/gridStep)))
	}
	return at, e.lengths[at]
}

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
func (e *estimator) attention(dev, heads, n int, q, k float64) blockTime {
	return e.attentionOn(dev, heads, n, e.spanOf(q, k))
}

func (e *estimator) attentionOn(dev, heads, n int, x span) blockTime {
	if heads == 0 {
		return blockTime{}
	}
	own := ownBlock
	if n == 1 {
		own = loneBlock
	}
	t := e.block(dev, heads, x.qa, own)
	scale := x.q * x.q / (x.qs * x.qs)
	t.forward, t.backward = t.forward*scale, t.backward*scale
	if n > 1 {
		other := e.block(dev, heads, x.qa, withKeys+x.ka)
		scale = float64(n-1) * x.q * x.k / (x.qs * x.ks)
		t.forward += other.forward * scale
		t.backward += other.backward * scale
	}
	return t
}

// block is a block of the table, priced by the laws the first time.
func (e *estimator) block(dev, heads, q, k int) blockTime {
	t := e.rings[dev*(e.p.Job.Model.QHeads+1)+heads].at(q, k)
	if t.forward >= 0 {
		return *t
	}
	length := func(at int) units.Tokens { return units.Tokens(math.Round(math.Exp2(float64(at) / gridStep))) }
	b := blockKey{dev: dev, heads: heads, kvHeads: e.p.Job.Model.KVHeadsOf(0, heads), q: length(q)}
	switch {
	case k == loneBlock:
		*t = e.m.wholeBlock(b)
	case k == ownBlock:
		*t = e.m.block(b)
	default:
		b.kv = length(k - withKeys)
		*t = e.m.block(b)
	}
	return *t
}

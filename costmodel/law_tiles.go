package costmodel

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// tilesBefore is the time of attention's forward pass at the end of the tile before that which its
// last tokens lie in, in seconds, before lower bounds; 0 where it can be no more than that of the
// shape itself, whose correction's logarithm is log.
//
// A correction is the same in all of a tile, and so changes at its first token, where it may fall
// by what the core rises up to the tile's last one. The core rises by little at the first token
// where it packs query heads into tiles, or where bytes or keys decide; more tokens would take less
// time there. Keys count apart where a law has an axis of them. Where the law states a change of
// kernel in between, or splits keys among other numbers of units, it may fall. Backward kernels do
// take less at some odd lengths: held so, laws were up to twice as far off what was measured of
// them on an H200.
func (l *Law) tilesBefore(s op.Shape, log float64) float64 {
	tile := units.Tokens(l.Correction.Tile)
	if tile == 0 || l.Attention == nil {
		return 0
	}
	var a op.Attention
	switch v := s.(type) {
	case op.AttnFwd:
		a = v.Attention
	case *op.AttnFwd:
		a = v.Attention
	default:
		return 0
	}
	most := 0.0
	see := func(q, kv units.Tokens) {
		before := a
		before.QLen, before.KVLen = q, kv
		if l.Correction.switches(&before, &a) || l.Attention.Split(before) != l.Attention.Split(a) {
			return
		}
		if at := l.Correction.attentionLog(&before); at > log {
			most = max(most, l.Factor()*l.Attention.Seconds(before, false)*math.Exp(at))
		}
	}
	q, kv := wholeTiles(a.QLen, tile), a.KVLen
	switch {
	case l.Correction.has("kv_len"):
		if kv = wholeTiles(a.KVLen, tile); q < a.QLen && kv < a.KVLen && a.Mask != op.Diag {
			see(a.QLen, kv)
			see(q, a.KVLen)
		}
	case a.KVLen == a.QLen:
		kv = q
	}
	if q < a.QLen || kv < a.KVLen {
		see(q, kv)
	}
	return most
}

// switches says whether a field states a change of kernel between two lengths of attention.
func (f *Field) switches(less, more *op.Attention) bool {
	for i := range f.Switches {
		w := &f.Switches[i]
		if InTiles(w.Axis) && attentionAxis(w.Axis, less) < w.To && attentionAxis(w.Axis, more) > w.From {
			return true
		}
	}
	return false
}

// wholeTiles is a length without the tokens of its last tile, where that is neither whole nor
// the first.
func wholeTiles(n, tile units.Tokens) units.Tokens {
	if n <= tile {
		return n
	}
	return n / tile * tile
}

// has says whether a field has an axis.
func (f *Field) has(axis string) bool {
	for i := range f.Axes {
		if f.Axes[i].Name == axis {
			return true
		}
	}
	return false
}

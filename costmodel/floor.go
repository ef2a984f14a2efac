package costmodel

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// FloorPerPair is the least seconds a (query, key) pair that a law of attention
// charges, all heads together, over all blocks of a shape's mask with at most
// `most` queries and keys, the other axes fixed; as makes its op of a shape.
//
// The blocks are cut into boxes of lengths at the nodes of the law's correction.
// In a box the body charges at least what bodyPerPair says of its largest block,
// and the correction is at least what Field.Least says; so is their product.
func (l *Law) FloorPerPair(a op.Attention, most units.Tokens, as func(op.Attention) op.Featured) float64 {
	ends := l.boxes(float64(most), "q_len", "kv_len", "tokens")
	block := func(q, kv float64) op.Attention {
		b := a
		b.QLen, b.KVLen = units.Tokens(q), units.Tokens(kv)
		return b
	}
	least := math.Inf(1)
	for i := 1; i < len(ends); i++ {
		for j := 1; j < len(ends); j++ {
			if a.Mask == op.Diag && i != j {
				continue
			}
			hi := block(ends[i], ends[j])
			floor := l.bodyPerPair(as(hi)) * math.Exp(l.Correction.Least(as(block(ends[i-1], ends[j-1])), as(hi)))
			least = min(least, floor)
		}
	}
	return least * l.scale()
}

// FloorPerToken is the least seconds a token that a law of a matrix product
// charges over all shapes with at most the given one's tokens, its other axes
// fixed. It goes from box to box as FloorPerPair does.
func (l *Law) FloorPerToken(g op.GEMM) float64 {
	ends := l.boxes(float64(g.M), "m")
	at := func(m float64) op.GEMM {
		s := g
		s.M = units.Tokens(m)
		return s
	}
	// A single row has a kernel of its own.
	least := float64(l.Seconds(at(1)))
	for i := 1; i < len(ends); i++ {
		lo, hi := at(ends[i-1]), at(ends[i])
		least = min(least, l.scale()*l.bodyPerToken(lo, hi)*math.Exp(l.Correction.Least(lo, hi)))
	}
	return least
}

// scale is Scale with its default.
func (l *Law) scale() float64 {
	if l.Scale == 0 {
		return 1
	}
	return l.Scale
}

// Factor is what a law multiplies its body by at every shape.
func (l *Law) Factor() float64 { return l.scale() }

// boxes are the whole numbers from 1 to most at which an axis of the correction
// has a node, both ends included: between two of them the correction is smooth.
func (l *Law) boxes(most float64, axes ...string) []float64 {
	ends := []float64{1, most}
	if l.Correction != nil {
		for _, a := range l.Correction.Axes {
			if !slices.Contains(axes, a.Name) {
				continue
			}
			for _, x := range a.Nodes {
				if x = math.Floor(x); x > 1 && x < most {
					ends = append(ends, x)
				}
			}
		}
	}
	slices.Sort(ends)
	if ends = slices.Compact(ends); len(ends) == 1 {
		ends = append(ends, most) // of one token only
	}
	return ends
}

// bodyPerPair is a floor of the body's seconds a pair over all blocks no longer
// on either axis than the given one.
//
// Of a Linear, each feature divided by the pairs is least at the largest block,
// and so is their sum: the launch, rows (proportional to queries) and bytes (an
// affine function of queries and keys) fall with either length; FLOPs are
// constant; the tail, what uneven tasks cost, is none at some sizes and left out.
func (l *Law) bodyPerPair(s op.Featured) float64 {
	a, backward := attentionOf(s)
	if l.Attention != nil {
		return l.Attention.floorPerPair(a, backward)
	}
	return l.Linear.evenly(s) / (a.Pairs() * float64(a.Blocks()))
}

func attentionOf(s op.Shape) (a op.Attention, backward bool) {
	switch v := s.(type) {
	case op.AttnFwd:
		return v.Attention, false
	case op.AttnBwd:
		return v.Attention, true
	}
	panic("costmodel: " + string(s.Kind()) + " has no pairs")
}

// floorPerPair leaves out all but launches, tiles and tasks, each of which is a
// bound of its own (softMax is no less than its larger part):
//
//   - tiles cover the unmasked pairs of all query heads, so that the mean unit
//     has at least q_heads pairs / (tile_rows tile_keys P) of them;
//   - tasks cover the query rows (backward, the keys) of all heads, and the
//     busiest unit has at least the mean; rows over pairs fall with either length;
//   - launches over pairs do too.
//
// A call that is slowed for lasting takes longer than all that.
func (c *AttentionCore) floorPerPair(a op.Attention, backward bool) float64 {
	rows := float64(a.QLen)
	if backward {
		rows = float64(a.KVLen)
	}
	heads, pairs := float64(a.QHeads)*float64(a.Blocks()), a.Pairs()*float64(a.Blocks())
	each := heads / float64(c.TileRows) / float64(c.Parallel)
	tiles := c.Tile * each / float64(c.TileKeys) * a.Pairs()
	return (c.Launch + c.SideLaunch + tiles + c.Task*each*rows) / pairs
}

// bodyPerToken is a floor of the body's seconds a token from lo to hi tokens.
//
// Of a Linear, every feature divided by m never rises with m, so the largest m
// is the cheapest: the launch falls as 1/m; FLOPs/m is constant in every pass;
// the result has m n, m k or, in wgrad, k n elements, which over m are constant
// or fall; bytes are affine in m with a constant of at least 0. The tail, what
// uneven tasks cost, is none at some sizes and is left out.
func (l *Law) bodyPerToken(lo, hi op.GEMM) float64 {
	if l.GEMM != nil {
		return l.GEMM.floorPerToken(lo, hi)
	}
	return l.Linear.evenly(hi) / float64(hi.M)
}

// evenly is what the law charges for a shape without its tail.
func (l *Linear) evenly(s op.Featured) float64 {
	f := s.Features(l.Parallel)
	return l.Launch.Value + l.PerFLOP.Value*(f.FLOPs-f.Tail) + l.PerRow.Value*f.Rows + l.PerByte.Value*f.Bytes
}

// floorPerToken is the cheapest tile of the menu without the wait for whole
// waves: u tiles an SM take at least u (1 + u/crowd) times a tile's, and u is at
// least rows cols / (tm tn SMs), more splits only add to it. Rows, or in wgrad
// the inner length, are the tokens; both tiles and steps are at least in
// proportion to them, and u/crowd is at least that of the fewest. The norm with
// the time of the bytes is no less than either, and the bytes are no fewer than
// at the fewest tokens. The joining of splits, the conversion to 8 bits and
// sustained power only add.
func (c *GEMMCore) floorPerToken(lo, hi op.GEMM) float64 {
	few, many := gemmShapeOf(lo), gemmShapeOf(hi)
	m := float64(hi.M)
	_, _, step := c.sizes()
	menu := math.Inf(1)
	for i := range c.Tiles {
		t := &c.Tiles[i]
		start, each := c.tile(t)
		u := many.rows * math.Ceil(many.cols/t.Cols) / t.Rows / float64(c.Parallel)
		fewest := few.rows * math.Ceil(few.cols/t.Cols) / t.Rows / float64(c.Parallel)
		menu = min(menu, u*(1+fewest*c.crowd(t))*(start+many.inner/step*each))
	}
	floor := (c.Launch + max(menu, c.bytes(few)/c.MemPerS)) / m
	if many.rows == 1 {
		floor = min(floor, c.VLaunch/m)
	}
	return floor
}

// Least is a floor of the correction's logarithm over all shapes whose axes lie
// between those of lo and hi. Between nodes the field is linear along each axis,
// so that its least is at a node or an end of the box; beyond them it decays
// towards none.
func (f *Field) Least(lo, hi op.Shape) float64 {
	if f == nil {
		return 0
	}
	var places [maxFieldAxes][]cell
	beyond := false
	for i := range f.Axes {
		a, b := f.coord(i, lo), f.coord(i, hi)
		var out, over float64
		places[i] = make([]cell, 2, 2+len(f.Axes[i].Nodes))
		places[i][0], out = f.Axes[i].locate(a)
		places[i][1], over = f.Axes[i].locate(b)
		for n, x := range f.Axes[i].Nodes {
			if a < x && x < b {
				places[i] = append(places[i], cell{n, 0})
			}
		}
		beyond = beyond || out > 0 || over > 0
	}
	least := f.lowest(places[:len(f.Axes)], nil)
	if beyond {
		least = min(least, 0)
	}
	return least * f.Step
}

// lowest is the least of the field over every combination of places.
func (f *Field) lowest(places [][]cell, chosen []cell) float64 {
	if len(chosen) == len(places) {
		return f.blend(chosen, 0, 0)
	}
	least := math.Inf(1)
	for _, c := range places[len(chosen)] {
		least = min(least, f.lowest(places, append(chosen, c)))
	}
	return least
}

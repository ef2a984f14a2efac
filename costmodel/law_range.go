package costmodel

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// rangeSlack is how far outside its range, in doublings, a law's predictions still count as
// interpolated: measured grids are sparse, and their corners are rarely among the points.
const rangeSlack = 0.25

// batchAxis is the index of the batch among attention's axes (op.Coords).
const batchAxis = 4

// Cells are what the arithmetic of a shape at these coordinates grows with: rows times columns
// times inner length of a matrix product, and pairs of a query and a key, masked or not, of
// all query heads and blocks of attention. Other ops have none (0).
func Cells(k op.Kind, at op.Coords) float64 {
	switch k {
	case op.KindGEMM:
		return at[0] * at[1] * at[2]
	case op.KindAttnFwd, op.KindAttnBwd:
		return at[0] * at[1] * at[2] * at[batchAxis]
	}
	return 0
}

// cellsBeyond is how many doublings of an axis the cells of a shape lie outside the measured
// ones: those of attention grow with the square of its lengths. A range of every axis has
// corners where nothing was measured, for lack of time or memory: laws of products of at
// most 2^32 cells held half of the larger ones in their intervals, on an H100 and an A100. Of
// 21 laws of attention fitted to at most a sixteenth of the cells, intervals held 0.12 to 0.99
// of the larger calls inside every axis' range, 0.82 in the median, and hold 0.54 to 1.00, 0.89.
func (l *Law) cellsBeyond(at op.Coords) float64 {
	over := Cells(l.Op, at) / l.MaxCells
	if !(over > 1) {
		return 0
	}
	if l.Op == op.KindGEMM {
		return math.Log2(over)
	}
	return math.Log2(over) / 2
}

// Beyond is how far a shape lies outside the measured range on its worst axis, in
// doublings (log2 of the ratio to the nearer end), or by its cells; 0 inside. Query heads that
// share a KV head as none did that was measured lie outside too (see ratiosApart), and unequal
// lengths where only equal ones were (see lengthsApart).
func (l *Law) Beyond(s op.Shape) float64 {
	located, ok := s.(op.Located)
	if !ok {
		return 0
	}
	at := located.Coords()
	worst := 1.0
	for i, r := range l.Range {
		worst = max(worst, r.Min/at[i], at[i]/r.Max)
	}
	if len(l.Range) == batchAxis { // a law without that axis was measured at a batch of one
		worst = max(worst, at[batchAxis])
	}
	apart := max(l.ratiosApart(s), l.lengthsApart(s))
	if l.MaxCells > 0 {
		apart = max(apart, l.cellsBeyond(at))
	}
	if worst == 1 {
		return apart // usually 0, without a logarithm an axis
	}
	return max(apart, math.Log2(worst))
}

package fit

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// mostHeadroom is how many times its datasheet's peak a board reaches at most, of those that are
// sold clocked beyond it.
const mostHeadroom = 1.3

// peakOf is a rate of arithmetic that a device does not exceed in a compute op of a variant, by
// its datasheet. It is 0 where this states none of that precision, where a point is faster, so
// that the datasheet is not of this board, and of ops that compute little. Points alone tell no
// such rate: where all are bound by memory or launches, longer calls are faster many times over.
//
// Points that are bound by memory say nothing of the arithmetic: from an H100's products of up
// to 256 rows larger ones were predicted at 2.4 times its peak.
func peakOf(dev op.DeviceType, k op.Kind, v op.Variant, points []Point) units.FLOPsPerS {
	if spec, err := op.Lookup(k); err != nil || spec.Class != op.Compute {
		return 0
	}
	sheet := dev.Sheet.BF16PerS
	switch v.DType {
	case op.FP8:
		sheet = dev.Sheet.FP8PerS
	case op.I8:
		sheet = 0
	}
	peak := mostHeadroom * sheet
	for _, p := range points {
		if float64(p.Shape.Work().FLOPs) > peak*p.Seconds {
			return 0
		}
	}
	return units.FLOPsPerS(peak)
}

// mostCells is the most costmodel.Cells of any point.
func mostCells(k op.Kind, points []Point) float64 {
	most := 0.0
	for _, p := range points {
		most = max(most, costmodel.Cells(k, p.Shape.(op.Located).Coords()))
	}
	return most
}

package fit

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// beyondFastest is how many times the fastest rate that was measured a device may reach whose
// peak nobody states: calls that are half launch and half arithmetic come to half of what
// longer ones reach.
const beyondFastest = 2

// peakOf is a rate of arithmetic that a device does not exceed in an op of a variant: its
// datasheet's, with op.PeakSlack, unless a point is faster, or none is stated: then
// beyondFastest times the fastest point. It is 0 of ops that compute little, and where nothing
// is known.
//
// Points that are bound by memory say nothing of the arithmetic: from an H100's products of up
// to 256 rows larger ones were predicted at three times its peak. And of few points on a busy
// processor a fit may explain all time by bytes.
func peakOf(dev op.DeviceType, k op.Kind, v op.Variant, points []Point) units.FLOPsPerS {
	if spec, err := op.Lookup(k); err != nil || spec.Class != op.Compute {
		return 0
	}
	sheet, fastest := op.PeakSlack*dev.Sheet.PeakPerS(v.DType), 0.0
	for _, p := range points {
		fastest = max(fastest, float64(p.Shape.Work().FLOPs)/p.Seconds)
	}
	if sheet > fastest {
		return units.FLOPsPerS(sheet)
	}
	return units.FLOPsPerS(beyondFastest * fastest)
}

// mostCells is the most costmodel.Cells of any point.
func mostCells(k op.Kind, points []Point) float64 {
	most := 0.0
	for _, p := range points {
		most = max(most, costmodel.Cells(k, p.Shape.(op.Located).Coords()))
	}
	return most
}

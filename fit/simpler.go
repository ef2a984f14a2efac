package fit

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// simple is a form of law that planners use instead of ours, kept to show what
// the parts of ours buy.
type simple struct {
	name string
	fit  func([]Point) (func(op.Shape) float64, error)
}

// simpler lists what is compared with the law of an op on a device.
func simpler(dev op.DeviceType, k op.Kind) []simple {
	switch FamilyOf(k) {
	case FamilyAttention, FamilyGEMM:
		all := []simple{fitted(linearForm("a + b FLOPs", 1, []int{0, 1}))}
		if dev.Sheet.MemoryPerS > 0 {
			all = append(all, roofline(dev))
		}
		return append(all, simple{tableForm, interpolated})
	}
	return []simple{fitted(curveForms()[0]), {tableForm, sizeTable}}
}

func fitted(f form) simple {
	return simple{f.name, func(points []Point) (func(op.Shape) float64, error) {
		law, err := f.fit(points)
		return func(s op.Shape) float64 { return float64(law.Seconds(s)) }, err
	}}
}

// roofline is launch + max(FLOPs/rate, bytes/bandwidth) with the launch and the
// two rates that suit the points best, found by trying shares of the datasheet.
func roofline(dev op.DeviceType) simple {
	return simple{"roofline", func(points []Point) (func(op.Shape) float64, error) {
		if len(points) == 0 {
			return nil, errors.New("no points")
		}
		launch := slices.MinFunc(points, func(a, b Point) int { return cmp.Compare(a.Seconds, b.Seconds) }).Seconds
		peak := dev.Sheet.PeakPerS(points[0].Shape.Variant().DType)
		if !(peak > 0) {
			return nil, fmt.Errorf("%s: its datasheet has no peak rate of these numbers", dev.Name)
		}
		predict := func(w op.Work, compute, memory float64) float64 {
			return launch + max(float64(w.FLOPs)/(compute*peak), float64(w.Bytes())/(memory*dev.Sheet.MemoryPerS))
		}
		compute, memory := bestShares(points, predict)
		return func(s op.Shape) float64 { return predict(s.Work(), compute, memory) }, nil
	}}
}

// bestShares tries shares of a datasheet's two rates and returns those under which the
// predictions are nearest to the points, in the sum of |log(predicted/measured)|.
func bestShares(points []Point, predict func(w op.Work, compute, memory float64) float64) (compute, memory float64) {
	works := make([]op.Work, len(points))
	for i, p := range points {
		works[i] = p.Shape.Work()
	}
	least := math.Inf(1)
	for c := 0.05; c <= 1; c += 0.05 {
		for b := 0.1; b <= 1.01; b += 0.1 {
			loss := 0.0
			for i, p := range points {
				loss += math.Abs(math.Log(predict(works[i], c, b) / p.Seconds))
			}
			if loss < least {
				compute, memory, least = c, b, loss
			}
		}
	}
	return compute, memory
}

package fit

import (
	"errors"
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

// simpler lists what is compared with the law of an op.
func simpler(dev op.DeviceType, k op.Kind, points []Point) []simple {
	table := simple{"log-log table", interpolated}
	switch FamilyOf(k) {
	case FamilyAttention, FamilyGEMM:
		all := []simple{fitted(linearForm("a + b FLOPs", 1, []int{0, 1}))}
		if dev.Sheet.MemoryPerS > 0 {
			all = append(all, roofline(dev))
		}
		return append(all, table)
	}
	return []simple{fitted(curveForms()[0]), table}
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
		launch := points[0].Seconds
		for _, p := range points {
			launch = min(launch, p.Seconds)
		}
		peak := dev.Sheet.PeakPerS(points[0].Shape.Variant().DType)
		best, least := func(op.Shape) float64 { return launch }, math.Inf(1)
		for c := 0.05; c <= 1; c += 0.05 {
			for b := 0.1; b <= 1.01; b += 0.1 {
				predict := func(s op.Shape) float64 {
					w := s.Work()
					return launch + max(float64(w.FLOPs)/(c*peak), float64(w.Bytes())/(b*dev.Sheet.MemoryPerS))
				}
				loss := 0.0
				for _, p := range points {
					loss += math.Abs(math.Log(predict(p.Shape) / p.Seconds))
				}
				if loss < least {
					best, least = predict, loss
				}
			}
		}
		return best, nil
	}}
}

// interpolated is the table that most tools carry: log time between the nearest
// measured shapes, weighted by the inverse square of their distance in octaves,
// beyond the table at the nearest shape's rate of work.
func interpolated(points []Point) (func(op.Shape) float64, error) {
	if len(points) == 0 {
		return nil, errors.New("no points")
	}
	places := make([][]float64, len(points))
	for i, p := range points {
		places[i] = octaves(p.Shape)
	}
	return func(s op.Shape) float64 {
		const nearest = 4
		x := octaves(s)
		type hit struct {
			d float64
			i int
		}
		var hits []hit
		for i, y := range places {
			d := 0.0
			for a := range x {
				d += (x[a] - y[a]) * (x[a] - y[a])
			}
			if len(hits) < nearest || d < hits[len(hits)-1].d {
				hits = append(hits, hit{d, i})
				slices.SortFunc(hits, func(a, b hit) int {
					if a.d != b.d {
						if a.d < b.d {
							return -1
						}
						return 1
					}
					return a.i - b.i
				})
				hits = hits[:min(len(hits), nearest)]
			}
		}
		sum, weight := 0.0, 0.0
		for _, h := range hits {
			p := points[h.i]
			w := 1 / (h.d + 1e-9)
			sum += w * (math.Log(p.Seconds) + math.Log(size(s)/size(p.Shape)))
			weight += w
		}
		return math.Exp(sum / weight)
	}, nil
}

// size is the work that a table scales its times by.
func size(s op.Shape) float64 {
	if w := s.Work(); w.FLOPs > 0 {
		return float64(w.FLOPs)
	}
	return float64(op.Volume(s))
}

func octaves(s op.Shape) []float64 {
	at := s.(op.Located).Coords()
	x := make([]float64, len(at))
	for i, v := range at {
		x[i] = math.Log2(max(v, 1))
	}
	return x
}

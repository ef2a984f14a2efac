package fit

import (
	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// fitLinear estimates the five non-negative coefficients of a compute law.
func fitLinear(law *costmodel.Law, parallel int, points []Point) error {
	sum, err := linearSum(parallel, points, numFeatures)
	if err != nil {
		return err
	}
	ci, err := sum.intervals()
	if err != nil {
		return err
	}
	law.Linear = &costmodel.Linear{
		Parallel: parallel,
		Launch:   ci[0], PerFLOP: ci[1], PerRow: ci[2], PerByte: ci[3], PerTail: ci[4],
	}
	predictor := func(columns int) func([]Point) (func(op.Shape) float64, error) {
		return func(train []Point) (func(op.Shape) float64, error) {
			sum, err := linearSum(parallel, train, columns)
			if err != nil {
				return nil, err
			}
			return func(s op.Shape) float64 { f := features(parallel, s); return sum.at(f[:columns]) }, nil
		}
	}
	logs := crossValidate(points, predictor(numFeatures))
	law.Spread = spread(logs)
	law.Rivals = []costmodel.Rival{
		{Form: "linear", Median: medianError(logs), Chosen: true},
		// What most planners use, for comparison.
		{Form: "launch + FLOPs", Median: medianError(crossValidate(points, predictor(2)))},
	}
	return nil
}

// numFeatures is the number of columns: one of ones and the op.Features, in
// the order of costmodel.LinearNames.
const numFeatures = 5

func features(parallel int, s op.Shape) [numFeatures]float64 {
	f := s.(op.Featured).Features(parallel)
	return [numFeatures]float64{1, f.FLOPs, f.Rows, f.Bytes, f.Tail}
}

// linearSum fits the first so many features to the points' times.
func linearSum(parallel int, points []Point, columns int) (*costSum, error) {
	rows := mat.NewDense(len(points), columns, nil)
	for i, p := range points {
		f := features(parallel, p.Shape)
		rows.SetRow(i, f[:columns])
	}
	return fitSum(rows, seconds(points))
}

func seconds(points []Point) []float64 {
	y := make([]float64, len(points))
	for i, p := range points {
		y[i] = p.Seconds
	}
	return y
}

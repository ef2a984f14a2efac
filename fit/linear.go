package fit

import (
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// linearForm is a law of the given features, by their places in
// costmodel.LinearNames.
func linearForm(name string, parallel int, columns []int) form {
	return form{name, func(points []Point) (costmodel.Law, error) {
		l, err := linear(parallel, points, columns)
		return costmodel.Law{Linear: l}, err
	}}
}

// usedColumns are the features that an op has at all.
func usedColumns(parallel int, points []Point) []int {
	var used []int
	for j := range numFeatures {
		if slices.ContainsFunc(points, func(p Point) bool { return features(parallel, p.Shape)[j] > 0 }) {
			used = append(used, j)
		}
	}
	return used
}

// linear fits non-negative coefficients of some features; the others are 0.
func linear(parallel int, points []Point, columns []int) (*costmodel.Linear, error) {
	rows := mat.NewDense(len(points), len(columns), nil)
	for i, p := range points {
		f := features(parallel, p.Shape)
		for k, j := range columns {
			rows.Set(i, k, f[j])
		}
	}
	sum, err := fitSum(rows, seconds(points))
	if err != nil {
		return nil, err
	}
	ci, err := sum.intervals()
	if err != nil {
		return nil, err
	}
	var all [numFeatures]costmodel.Coef
	for k, j := range columns {
		all[j] = ci[k]
	}
	return &costmodel.Linear{
		Parallel: parallel, Launch: all[0], PerFLOP: all[1], PerRow: all[2], PerByte: all[3], PerTail: all[4],
	}, nil
}

// numFeatures is the number of columns: one of ones and the op.Features, in
// the order of costmodel.LinearNames.
const numFeatures = 5

func features(parallel int, s op.Shape) [numFeatures]float64 {
	f := s.(op.Featured).Features(parallel)
	return [numFeatures]float64{1, f.FLOPs, f.Rows, f.Bytes, f.Tail}
}

func seconds(points []Point) []float64 {
	y := make([]float64, len(points))
	for i, p := range points {
		y[i] = p.Seconds
	}
	return y
}

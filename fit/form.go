package fit

import (
	"errors"
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// form is one way to draw a law through points: it fills in the law's Linear
// or Curve.
type form struct {
	name string
	fit  func([]Point) (costmodel.Law, error)
}

// forms are the candidates for an op's law, from the simplest on, and those
// that are fitted for comparison only: what most planners use.
func forms(spec op.Spec, parallel int, points []Point) (candidates, compared []form) {
	switch spec.Class {
	case op.Compute:
		return []form{linearForm("linear", parallel, usedColumns(parallel, points))},
			[]form{linearForm("launch + FLOPs", parallel, []int{0, 1})}
	case op.Bandwidth:
		return append([]form{linearForm("linear", parallel, usedColumns(parallel, points))}, curveForms()[1:]...),
			curveForms()[:1]
	}
	return curveForms(), nil
}

// choose picks the simplest candidate whose cross-validated error is within one
// standard error of the best one's (Breiman et al. 1984), fits it to all points
// and fills the law's form, spread and rivals in.
func choose(law *costmodel.Law, candidates, compared []form, points []Point) error {
	logs := make([][]float64, len(candidates))
	best, limit := math.Inf(1), math.Inf(1)
	for i, f := range candidates {
		logs[i] = f.crossValidate(points)
		if mean, se := meanError(logs[i]); mean < best {
			best, limit = mean, mean+se
		}
	}
	chosen := false
	for i, f := range candidates {
		mean, _ := meanError(logs[i])
		if math.IsInf(mean, 1) {
			continue
		}
		take := !chosen && mean <= limit
		if take {
			l, err := f.fit(points)
			if err != nil {
				return err
			}
			law.Linear, law.Curve, law.Spread = l.Linear, l.Curve, spread(logs[i])
			chosen = true
		}
		law.Rivals = append(law.Rivals, costmodel.Rival{Form: f.name, Median: medianError(logs[i]), Chosen: take})
	}
	if !chosen {
		return errors.New("no form of law can be fitted to these points")
	}
	for _, f := range compared {
		if l := f.crossValidate(points); !math.IsInf(medianError(l), 1) {
			law.Rivals = append(law.Rivals, costmodel.Rival{Form: f.name, Median: medianError(l)})
		}
	}
	return nil
}

// crossValidate predicts every point from a fit to the other folds and returns
// log(measured/predicted), one a point; NaN where a fold cannot be fitted.
func (f form) crossValidate(points []Point) []float64 {
	const k = 8
	fold := folds(points, k)
	logs := make([]float64, len(points))
	for n := range k {
		var train []Point
		for i, p := range points {
			if fold[i] != n {
				train = append(train, p)
			}
		}
		law, err := f.fit(train)
		for i, p := range points {
			switch {
			case fold[i] != n:
			case err != nil:
				logs[i] = math.NaN()
			default:
				logs[i] = math.Log(p.Seconds / float64(law.Seconds(p.Shape)))
			}
		}
	}
	return logs
}

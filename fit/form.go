package fit

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// form is one way to draw a law through points: it fills in the law's body.
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
	case op.Transfer:
		// One engine copies at one rate: pieces would only follow the noise.
		return curveForms()[:1], curveForms()[1:]
	}
	return collectiveForms(), nil
}

// choose picks the simplest candidate that is not worse than the best one by
// more than a standard error in cross-validation, fits it to all points and
// fills the law's form, spread and rivals in.
//
// The error is that of the difference, point by point (Breiman et al. 1984 take
// that of the best one's mean): what makes a point hard for one form makes it
// hard for the other, and with a dozen points the unpaired error hid factors of
// three between forms.
func choose(law *costmodel.Law, candidates, compared []form, points []Point) error {
	logs := make([][]float64, len(candidates))
	best := -1
	some := sample(points, enoughToCompare)
	for i, f := range candidates {
		logs[i] = f.crossValidate(some)
		if whole(logs[i]) && (best < 0 || excess(logs[i], logs[best]).mean < 0) {
			best = i
		}
	}
	if best < 0 {
		return errors.New("no form of law can be fitted to these points")
	}
	chosen := false
	for i, f := range candidates {
		if !whole(logs[i]) {
			continue
		}
		over := excess(logs[i], logs[best])
		take := !chosen && over.mean <= over.se
		if take {
			l, err := f.fit(points)
			if err != nil {
				return err
			}
			law.Linear, law.Curve, law.Attention, law.Spread = l.Linear, l.Curve, l.Attention, spread(logs[i])
			law.Width = widthsBySize(some, logs[i])
			chosen = true
		}
		law.Rivals = append(law.Rivals, costmodel.Rival{Form: f.name, Median: medianError(logs[i]), Chosen: take})
	}
	compare(law, compared, points)
	return nil
}

// widthsBySize are the widths of a law by op.Volume, from its errors at points that it was
// not fitted to: nil where these are too few, and of attention and products, whose errors
// follow other sizes.
func widthsBySize(points []Point, logs []float64) *costmodel.Field {
	if len(points) < fewToRefit || math.IsNaN(costmodel.AxisOf(costmodel.VolumeAxis, points[0].Shape)) {
		return nil
	}
	shape := fieldShape{width: []string{costmodel.VolumeAxis}}
	return shape.widths(points, unseenErrors{logs: logs}, 0.9)
}

// enoughToCompare points say how good a form is that is only fitted to be
// compared with.
const enoughToCompare = 400

// compare adds forms to a law's rivals without choosing among them.
func compare(law *costmodel.Law, compared []form, points []Point) {
	points = sample(points, enoughToCompare)
	for _, f := range compared {
		if l := f.crossValidate(points); whole(l) {
			law.Rivals = append(law.Rivals, costmodel.Rival{Form: f.name, Median: medianError(l)})
		}
	}
}

// whole says that every fold could be fitted.
func whole(logs []float64) bool { return !slices.ContainsFunc(logs, math.IsNaN) }

// difference is a mean with its standard error.
type difference struct{ mean, se float64 }

// excess is by how much the errors of one form exceed those of another on the
// same points.
func excess(logs, than []float64) difference {
	d := make([]float64, len(logs))
	for i := range logs {
		d[i] = math.Abs(logs[i]) - math.Abs(than[i])
	}
	mean, sd := stat.MeanStdDev(d, nil)
	return difference{mean, sd / math.Sqrt(float64(len(d)))}
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

// sample takes n points by their rank, which looks at nothing measured.
func sample(points []Point, n int) []Point {
	if len(points) <= n {
		return points
	}
	points = slices.Clone(points)
	slices.SortFunc(points, func(a, b Point) int { return cmp.Compare(a.rank, b.rank) })
	return points[:n]
}

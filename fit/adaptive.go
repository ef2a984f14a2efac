package fit

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// FewestPoints is the least number of points that a law is fitted to.
const FewestPoints = fewestToFit

// Adaptive chooses the points of a calibration by the law that those measured
// so far give: it implements profile.Chooser.
//
// A family begins at its ends. Of the further points a quarter are those that
// take most of the expected error out of the whole family per second of
// measuring, where the error of a law is a random field: what its coefficients
// leave open, and the covariance by which its correction is learnt (see
// fieldShape). That is the A-optimal design of a Gaussian process, taken greedily
// (Krause, Singh and Guestrin 2008 compare such criteria). Half are those
// farthest from all that was chosen, against what that process leaves out, and a
// quarter are taken at random, so that cross-validation sees the family as it is.
// On others' tables of attention more of the first kind did worse: the law errs
// most in ways that it does not know of.
//
// Every shape of a family counts the same, as in the errors that check reports:
// what a planner asks for is in the family's range, whose calls are as long as
// the time allows.
type Adaptive struct{}

// Next implements profile.Chooser.
func (Adaptive) Next(r profile.Round) []int {
	if len(r.Pool) == 0 || r.Want == 0 {
		return nil
	}
	d := newDesign(r)
	left := r.Left
	var chosen []int
	take := func(c int) {
		left -= d.candidates[c].cost
		chosen = append(chosen, d.candidates[c].index)
		d.observe(c)
	}
	if len(r.Done) == 0 {
		for c := range d.ends {
			if len(chosen) < r.Want && d.candidates[c].cost <= left {
				take(c)
			}
		}
	}
	picks := []func(units.Seconds) int{d.best, d.farthest, d.any, d.farthest}
	for len(chosen) < r.Want {
		c := picks[(len(r.Done)+len(chosen))%len(picks)](left)
		if c < 0 {
			break
		}
		take(c)
	}
	return chosen
}

// soFar is the core of the law that the points so far give; nil where they give
// none.
func soFar(r profile.Round) *costmodel.Law {
	if len(r.Done) < fewestToFit {
		return nil
	}
	points := make([]Point, len(r.Done))
	for i, m := range r.Done {
		key := profile.NewSpot("", m.Shape).Key("")
		points[i] = Point{Shape: m.Shape, Key: key, Seconds: float64(m.Seconds), rank: rank(0, key), visits: []float64{float64(m.Seconds)}}
	}
	law, err := coreLaw(r.Device, points)
	if err != nil {
		return nil
	}
	return law
}

// coreLaw is the simplest law of an op that points give, without a correction.
func coreLaw(dev op.DeviceType, points []Point) (*costmodel.Law, error) {
	k := points[0].Shape.Kind()
	law := &costmodel.Law{Op: k, Variant: points[0].Shape.Variant()}
	if core, ok := coreOf(k, dev); ok {
		fitted, err := core.fit(dev, points, nil)
		if err == nil {
			law.Attention, law.GEMM = fitted.Attention, fitted.GEMM
		}
		return law, err
	}
	spec, err := op.Lookup(k)
	if err != nil {
		return nil, err
	}
	candidates, _ := forms(spec, max(1, dev.Parallel), points)
	fitted, err := candidates[0].fit(points)
	law.Linear, law.Curve = fitted.Linear, fitted.Curve
	return law, err
}

// designShape is the covariance of a family's errors over its shapes: that of
// its correction, or where it has none one over the axes of op.Coords, which a
// lattice without axes stands for.
func designShape(shapes []op.Shape) fieldShape {
	switch k := shapes[0].Kind(); k {
	case op.KindAttnFwd, op.KindAttnBwd:
		points := make([]Point, len(shapes))
		for i := range shapes {
			points[i].Shape = shapes[i]
		}
		return attentionField(points, 0)
	case op.KindGEMM:
		return gemmField()
	default:
		lengths := make([]float64, len(op.CoordNames(k)))
		for i := range lengths {
			lengths[i] = 6
		}
		return fieldShape{lattices: []lattice{{lengths: lengths, amp: 0.1}}}
	}
}

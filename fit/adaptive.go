package fit

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// FewestPoints is the least number of points that a law is fitted to.
const FewestPoints = fewestToFit

// Adaptive chooses the next points of a calibration by the laws that the points so far
// give. It implements profile.Chooser.
//
// A family of shapes begins with its extremes. Of the further points,
//
//   - a quarter are those that reduce the expected error over the whole family the most
//     per second of measuring. The error of a law is modelled as a random field: the
//     uncertainty of its coefficients plus the covariance by which its correction is
//     learnt (see fieldShape). This is the A-optimal design of a Gaussian process, chosen
//     greedily (Krause, Singh and Guestrin 2008 compare such criteria).
//   - half are those farthest from all points chosen so far, which guards against what
//     that model leaves out.
//   - a quarter are random, so that cross-validation sees the family as it is.
//
// On published tables of attention times a larger share of the first kind gave larger
// errors, since laws err most in ways that the model does not know of.
//
// All shapes of a family count the same, as in the errors that check reports: a planner
// may ask for any of them.
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

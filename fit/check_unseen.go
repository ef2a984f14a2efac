package fit

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Unseen returns the points of a data set that a profile's laws were not fitted to, and
// how many others there are: a profile's own points may come in another file than the one
// it was fitted to, such as a second import of the same table, or of a part of it.
//
// Where the profile's own recordings are at hand (own, else nil), a point is known by its
// shape and time. Without them whole laws are told by their errors, and of what else has a
// law nothing is known but the time: what was measured after the profile's newest recording
// began is news. Points that may be either are kept, and marked, so that a report says so.
func (d *Data) Unseen(p *costmodel.Profile, own *Data) (points []Point, known int) {
	if own != nil {
		points = own.unequal(d.Points, Options{Seed: p.Holdout.Seed, Share: p.Holdout.Share})
		return points, len(d.Points) - len(points)
	}
	seen, told := d.toldByErrors(p)
	since := d.since(p.Created)
	for _, x := range d.Points {
		if seen[x.Key] {
			continue
		}
		x.doubtful = !since && slices.ContainsFunc(p.Laws, func(l costmodel.Law) bool {
			return l.Fit.Points > 0 && stratumOf(x).of(&l) && !told[stratumOf(x).String()]
		})
		points = append(points, x)
	}
	return points, len(seen)
}

func stratumOf(x Point) Stratum {
	return Stratum{On: x.On, Op: x.Shape.Kind(), Variant: x.Shape.Variant()}
}

// unequal are the points that equal none which a hold-out of this data set leaves to the
// fit. One that another measurement happens to equal in every digit cannot be told from it.
func (d *Data) unequal(points []Point, o Options) []Point {
	times := map[string][]float64{}
	for _, s := range d.Strata() {
		fitted, _ := s.split(o)
		for _, x := range fitted {
			times[x.Key] = slices.Sorted(slices.Values(x.visits))
		}
	}
	return slices.DeleteFunc(slices.Clone(points), func(x Point) bool {
		return slices.ContainsFunc(x.visits, func(v float64) bool {
			_, found := slices.BinarySearch(times[x.Key], v)
			return found
		})
	})
}

// toldByErrors are the keys of the points that laws were fitted to, and the names of the
// strata that are whole laws' own.
//
// A law's own points are told by its errors: those that the hold-out leaves to
// the fit and those that it sets aside give the law's two summaries again, to
// the digits that their sums round to. Other measurements of the very same
// shapes do not. A borrowed law has no errors of its own, only their number:
// its points are known if those of another law of the set are.
func (d *Data) toldByErrors(p *costmodel.Profile) (seen, told map[string]bool) {
	seen, told = map[string]bool{}, map[string]bool{}
	known := false
	for _, s := range d.Strata() {
		fitted, held := s.split(Options{Seed: p.Holdout.Seed, Share: p.Holdout.Share})
		i := slices.IndexFunc(p.Laws, func(l costmodel.Law) bool { return s.of(&l) })
		if i < 0 || !sameErrors(p.Laws[i].Fit, judge(&p.Laws[i], fitted)) || !sameErrors(p.Laws[i].Held, judge(&p.Laws[i], held)) {
			continue
		}
		known = known || p.Laws[i].Fit.Points > 0
		told[s.String()] = true
		for _, x := range fitted {
			seen[x.Key] = true
		}
	}
	if !known {
		return nil, nil
	}
	return seen, told
}

// since says whether all of it was measured by recordings that began after a time; what was
// imported does not tell when it was measured.
func (d *Data) since(created string) bool {
	before, err := time.Parse(time.RFC3339, created)
	return err == nil && !d.undated && d.oldest.After(before)
}

// date notes when a recording began.
func (d *Data) date(created string, imported bool) {
	began, err := time.Parse(time.RFC3339, created)
	d.undated = d.undated || err != nil || imported
	if d.oldest.IsZero() || began.Before(d.oldest) {
		d.oldest = began
	}
}

// doubt says why of some points it cannot be told whether laws were fitted to them.
func doubt(p *costmodel.Profile, points int) string {
	where := "the profile names no recording"
	if len(p.Inputs) > 0 {
		var names []string
		for _, in := range p.Inputs {
			names = append(names, in.Path)
		}
		where = fmt.Sprintf("the recordings that the profile was fitted to are not where it names them (%s); put them there", strings.Join(names, ", "))
	}
	return fmt.Sprintf("whether laws were fitted to %s cannot be told, and errors of such points are smaller than of others: %s, or check what was measured since", units.Count(points, "point"), where)
}

// of says whether a law is the stratum's.
func (s Stratum) of(l *costmodel.Law) bool {
	return l.On() == s.On && l.Op == s.Op && l.Variant == s.Variant
}

// sameDigits is how far two sums of the same numbers lie apart at most.
const sameDigits = 1e-9

// fewestDigits is how many significant digits of errors a profile ever told: some have four.
const fewestDigits = 4

// sameErrors says whether errors that a profile tells are those again that points give a law,
// in whole or to as few digits as profiles before told them.
func sameErrors(said, again costmodel.FitError) bool {
	same := func(x, y float64) bool { return math.Abs(x-y) <= sameDigits+math.Abs(y-rounded(y, fewestDigits)) }
	return said.Points == again.Points && said.Outside == again.Outside &&
		same(said.Median, again.Median) && same(said.P90, again.P90) && same(said.P95, again.P95) && same(said.Bias, again.Bias)
}

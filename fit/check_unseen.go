package fit

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
)

// Unseen returns the points of a data set that a profile's laws were not fitted
// to, and to how many laws the others belong: a profile's own points may come in
// another file than the one it was fitted to, such as a second import of the same
// table, which differs in its time of creation.
//
// A law's own points are told by its errors: those that the hold-out leaves to
// the fit and those that it sets aside give the law's two summaries again, to
// the digits that their sums round to. Other measurements of the very same
// shapes do not. A borrowed law has no errors of its own, only their number:
// its points are known if those of another law of the set are.
func (d *Data) Unseen(p *costmodel.Profile) (points []Point, known int) {
	seen := map[string]bool{}
	for _, s := range d.Strata() {
		fitted, held := s.split(Options{Seed: p.Holdout.Seed, Share: p.Holdout.Share})
		i := slices.IndexFunc(p.Laws, func(l costmodel.Law) bool { return s.of(&l) })
		if i < 0 || !sameErrors(Judge(&p.Laws[i], fitted), p.Laws[i].Fit) || !sameErrors(Judge(&p.Laws[i], held), p.Laws[i].Held) {
			continue
		}
		if p.Laws[i].Fit.Points > 0 {
			known++
		}
		for _, x := range fitted {
			seen[x.Key] = true
		}
	}
	if known == 0 {
		return d.Points, 0
	}
	return slices.DeleteFunc(slices.Clone(d.Points), func(x Point) bool { return seen[x.Key] }), known
}

// of says whether a law is the stratum's.
func (s Stratum) of(l *costmodel.Law) bool {
	return l.On() == s.On && l.Op == s.Op && l.Variant == s.Variant
}

// sameDigits is how far two sums of the same numbers lie apart at most.
const sameDigits = 1e-9

func sameErrors(a, b costmodel.FitError) bool {
	same := func(x, y float64) bool { return math.Abs(x-y) <= sameDigits }
	return a.Points == b.Points && a.Outside == b.Outside &&
		same(a.Median, b.Median) && same(a.P90, b.P90) && same(a.P95, b.P95) && same(a.Bias, b.Bias)
}

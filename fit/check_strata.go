package fit

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// CheckedStratum is the accuracy of a profile on the points of one op on one device type
// or group signature, in one band of sizes, whose predictions have the same source:
// points outside the measured range, or predicted by another device's law, are strata of
// their own and never averaged with points inside. Errors are |log(predicted/measured)|.
//
// Where a stratum holds several variants, those with enough points are also judged alone,
// as Parts. Strata with too few points are also judged rolled up: with "all" in place of
// their band, or of their op where several ops are taken together.
type CheckedStratum struct {
	Family  Family           `json:"family"`
	On      string           `json:"on"`
	Op      op.Kind          `json:"op"`
	Band    string           `json:"band"`
	Source  costmodel.Source `json:"source"`
	Part    bool             `json:"part,omitzero"`    // one variant of the stratum before it
	Variant op.Variant       `json:"variant,omitzero"` // of a part
	// several is set on what is rolled up beside others of the same name under other
	// limits, so that its name tells which of them it is.
	several bool

	Points   int     `json:"points"`
	Median   float64 `json:"median"`
	MAPE     float64 `json:"mape"` // mean absolute error
	P95      float64 `json:"p95"`
	Bias     float64 `json:"bias_log_predicted_over_measured"` // median of log(predicted/measured): positive if predictions are too long
	Coverage float64 `json:"coverage"`                         // share inside the 90 % interval
	// Upper are the upper 95 % bounds of these statistics, to which limits apply;
	// absent with fewer than MinPoints points.
	Upper *StratumUpper `json:"upper95,omitempty"`
	// Floor is the error that a perfect law would show, from the scatter of repeated visits.
	Floor *StratumFloor `json:"floor,omitempty"`

	LimitID string       `json:"limit_id,omitzero"` // ID of the StratumLimit that applies
	Limit   StratumBound `json:"limit,omitzero"`
	Least   float64      `json:"least_coverage,omitzero"` // of Upper.Coverage, where the stratum has a limit
	Reason  string       `json:"reason,omitzero"`         // why the limit is what it is
	Verdict Verdict      `json:"verdict"`
	Broken  []string     `json:"broken,omitempty"` // the limits that are exceeded, with their numbers
}

// StratumUpper are upper 95 % bounds of a stratum's statistics, by bootstrap but for
// Coverage, whose bound is by Wilson's score.
type StratumUpper struct {
	Median   float64 `json:"median"`
	MAPE     float64 `json:"mape"`
	P95      float64 `json:"p95"`
	Bias     float64 `json:"abs_bias"` // of the absolute bias
	Coverage float64 `json:"coverage"`
}

// StratumFloor is the error that a perfect law would show: the measured time it is
// compared with is a median of visits, which do not repeat exactly.
type StratumFloor struct {
	Points int     `json:"points"` // points with more than one visit
	MAPE   float64 `json:"mape"`
	P95    float64 `json:"p95"`
}

// Title names the op and the band of a stratum: "attn_fwd 4k-16k", and of one
// that is rolled up "attn_fwd, all bands" or "attention, all ops and bands", with
// "of attention-short" where the ops and bands of other limits are rolled up beside it.
func (s *CheckedStratum) Title() string {
	name := fmt.Sprintf("%s %s", s.Op, s.Band)
	switch {
	case s.Op == All:
		name = string(s.Family) + ", all ops and bands"
	case s.Band == All:
		name = string(s.Op) + ", all bands"
	}
	if s.several {
		name += " of " + s.LimitID
	}
	return name
}

// String names the stratum as reports do: "attn_fwd 4k-16k on h100_sxm".
func (s *CheckedStratum) String() string {
	name := s.Title() + " on " + s.On
	if s.Source != costmodel.Interpolated {
		name += ", " + string(s.Source)
	}
	if s.Part {
		name += " (" + s.Variant.String() + ")"
	}
	return name
}

// strata judges the pairs of a report stratum by stratum.
func (r *Report) strata(f *Limits, groups []op.GroupType) {
	pairs := ordered(r.Pairs)
	var strands []strand
	for stratum := range runs(pairs, sameStratum) {
		whole := newStratum(stratum, f, groups)
		r.Strata = append(r.Strata, whole)
		strands = append(strands, strand{whole, placeOf(whole.On, groups), stratum})
		if sameVariant(stratum[0], stratum[len(stratum)-1]) {
			continue
		}
		for part := range runs(stratum, sameVariant) {
			if len(part) < MinPoints {
				continue
			}
			own := newStratum(part, f, groups)
			own.Part, own.Variant = true, part[0].Variant
			r.Strata = append(r.Strata, own)
		}
	}
	r.Strata = append(r.Strata, rollUps(strands, f, groups)...)
}

// ordered sorts pairs by stratum and, within one, by variant. What they are
// sorted by is worked out once a pair, since there may be a hundred thousand.
func ordered(pairs []Pair) []Pair {
	type keyed struct {
		family, band int
		variant      string
		pair         *Pair
	}
	keys := make([]keyed, len(pairs))
	for i := range pairs {
		p := &pairs[i]
		keys[i] = keyed{familyPlace(p.Family), bandPlace(p.Op, p.Band), p.Variant.String(), p}
	}
	slices.SortStableFunc(keys, func(a, b keyed) int {
		return cmp.Or(
			cmp.Compare(a.family, b.family), cmp.Compare(a.pair.On, b.pair.On), cmp.Compare(a.pair.Op, b.pair.Op),
			cmp.Compare(a.band, b.band), cmp.Compare(a.pair.source(), b.pair.source()), cmp.Compare(a.variant, b.variant))
	})
	sorted := make([]Pair, len(pairs))
	for i, k := range keys {
		sorted[i] = *k.pair
	}
	return sorted
}

func familyPlace(f Family) int { return slices.Index(Families(), f) }

func sameStratum(a, b Pair) bool {
	return a.On == b.On && a.Op == b.Op && a.Band == b.Band && a.source() == b.source()
}

func sameVariant(a, b Pair) bool { return a.Variant == b.Variant }

func newStratum(pairs []Pair, f *Limits, groups []op.GroupType) CheckedStratum {
	p := pairs[0]
	s := CheckedStratum{Family: p.Family, On: p.On, Op: p.Op, Band: p.Band, Source: p.source(), Points: len(pairs)}
	logs := make([]float64, len(pairs))
	inside := 0
	for i, p := range pairs {
		logs[i] = -p.Log()
		if p.Inside() {
			inside++
		}
	}
	slices.Sort(logs)
	e := errorsOf(logs)
	s.Median, s.MAPE, s.P95, s.Bias = e.median, e.mean, e.p95, e.bias
	s.Coverage = float64(inside) / float64(len(pairs))
	s.Floor = floorOf(pairs)
	s.limited(f, groupNamed(groups, p.On))
	if len(pairs) >= MinPoints {
		u := upperBounds(logs)
		s.Upper = &StratumUpper{Median: u.median, MAPE: u.mean, P95: u.p95, Bias: u.bias, Coverage: stats.ShareUpper(inside, len(pairs))}
	}
	s.judge()
	return s
}

// CoverageID stands for the ID of a limit where that of coverage alone applies: no entry of
// the limits matches the stratum.
const CoverageID = "coverage"

// limited sets the limits that apply to a stratum. One without an entry, as of laws that were
// borrowed or assumed, is held to its own intervals where there are points enough: nothing
// limits its errors, but what it promises may not be wrong.
func (s *CheckedStratum) limited(f *Limits, group op.GroupType) {
	covered := f.Covered()
	switch limit := f.of(s, group); {
	case limit != nil:
		s.LimitID, s.Limit, s.Reason = limit.ID, limit.StratumBound, limit.Reason
		if s.Limit != (StratumBound{}) {
			s.Least = covered.Least
		}
	case covered.Least > 0 && s.Points >= MinPoints:
		s.LimitID, s.Least, s.Reason = CoverageID, covered.Least, covered.Reason
	}
}

// judged says whether any limit applies.
func (s *CheckedStratum) judged() bool { return s.Limit != StratumBound{} || s.Least > 0 }

func groupNamed(groups []op.GroupType, name string) op.GroupType {
	for _, g := range groups {
		if g.Name == name {
			return g
		}
	}
	return op.GroupType{}
}

// judge sets the verdict once the statistics are there. A limit below the noise of the
// data (Floor) is raised to it where enough points were repeated to know it, since no law
// can be better than what it is compared with.
func (s *CheckedStratum) judge() {
	switch {
	case !s.judged():
		s.Verdict = Ungated
		return
	case s.Upper == nil:
		s.Verdict = Insufficient
		return
	}
	var known, seen StratumFloor
	if s.Floor != nil {
		seen = *s.Floor
	}
	needed := repeatsNeeded(s.Points)
	if seen.Points >= needed {
		known = seen
	}
	for _, c := range []struct {
		name                             string
		value, upper, limit, floor, seen float64
	}{
		{"MAPE", s.MAPE, s.Upper.MAPE, s.Limit.MAPE, known.MAPE, seen.MAPE},
		{"P95", s.P95, s.Upper.P95, s.Limit.P95, known.P95, seen.P95},
		{"|bias|", math.Abs(s.Bias), s.Upper.Bias, s.Limit.Bias, 0, 0},
	} {
		if c.limit == 0 || c.upper <= max(c.limit, c.floor) {
			continue
		}
		text := above(c.name, c.value, c.upper, c.limit)
		switch {
		case c.floor > c.limit:
			text += ", noise of the repeats " + exactly(c.floor)
		case c.seen > c.limit:
			text += fmt.Sprintf(", noise of the repeats %s, which does not count: %d of %s repeated, %d tell it", exactly(c.seen), seen.Points, units.Count(s.Points, "point"), needed)
		}
		s.Broken = append(s.Broken, text)
	}
	if s.Upper.Coverage < s.Least {
		s.Broken = append(s.Broken, tooNarrow(s.Coverage, s.Upper.Coverage, s.Least))
	}
	s.Verdict = Pass
	if len(s.Broken) > 0 {
		s.Verdict = Fail
	}
}

// above says that a bound is above its limit.
func above(name string, value, upper, limit float64) string {
	return fmt.Sprintf("%s %s, upper bound %s, limit %s", name, exactly(value), exactly(upper), exactly(limit))
}

// tooNarrow says that the 90 % interval holds fewer points than it must. What scatters
// among repeats is no excuse: an interval is of measured times, and has to count it in.
func tooNarrow(coverage, upper, least float64) string {
	return fmt.Sprintf("inside the 90 %% interval %s, upper bound %s, at least %s: it is too narrow for these errors", exactly(coverage), exactly(upper), exactly(least))
}

// exactly prints a share with the digits that tell a bound from its limit.
func exactly(f float64) string { return fmt.Sprintf("%.2f %%", 100*f) }

// Excess is the largest of a stratum's bounds as a share of its limit: above 1
// where one is broken, 0 where none is judged. Of coverage it is the share that lies
// outside the interval that counts. It orders strata from worst to best.
func (s *CheckedStratum) Excess() float64 {
	if s.Upper == nil {
		return 0
	}
	worst := 0.0
	if s.Least > 0 {
		worst = (1 - s.Upper.Coverage) / (1 - s.Least)
	}
	for _, c := range [][2]float64{{s.Upper.MAPE, s.Limit.MAPE}, {s.Upper.P95, s.Limit.P95}, {s.Upper.Bias, s.Limit.Bias}} {
		if c[1] > 0 {
			worst = max(worst, c[0]/c[1])
		}
	}
	return worst
}

// repeatsNeeded is how many points of a stratum must have been repeated for their scatter to
// be its floor: as many as a stratum needs for a verdict, and of few points a quarter, which
// is five of the fewest that are judged. The floor is a median, which is that of the disturbed
// points where they are half of the repeated ones: one that was repeated because it was
// disturbed must not excuse a thousand that were not. A calibration repeats a quarter to a
// half of its points.
func repeatsNeeded(points int) int { return min(MinPoints, (points+3)/4) }

// floorOf estimates what repeats scatter in a stratum. Of a point whose k
// visits have the sample deviation d in logs, the median of the visits has about
// d/sqrt(k); the median over points keeps a few disturbed ones from raising the
// floor for all. A perfect law's errors are then the magnitudes of a normal
// variable, whose mean is sqrt(2/pi) and whose 95 % quantile 1.96 deviations.
//
// The median of sample deviations of few visits lies below the true one, of two
// by a third; d is divided by it, which is the root of the median of chi squared
// over its n = k-1 degrees, (1-2/(9n))^3 (Wilson and Hilferty 1931).
func floorOf(pairs []Pair) *StratumFloor {
	var scatter []float64
	for _, p := range pairs {
		if p.Visits > 1 {
			low := math.Pow(1-2/(9*float64(p.Visits-1)), 1.5)
			scatter = append(scatter, p.Noise/low/math.Sqrt(float64(p.Visits)))
		}
	}
	if len(scatter) == 0 {
		return nil
	}
	sigma := stats.Median(scatter)
	return &StratumFloor{Points: len(scatter), MAPE: math.Sqrt(2/math.Pi) * sigma, P95: 1.96 * sigma}
}

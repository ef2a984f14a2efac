package fit

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"gonum.org/v1/gonum/stat"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// Family is a group of ops that are judged together.
type Family string

// The families. Copies between host and device count as bandwidth.
const (
	FamilyAttention  Family = "attention"
	FamilyGEMM       Family = "gemm"
	FamilyBandwidth  Family = "bandwidth"
	FamilyCollective Family = "collective"
	FamilyLayer      Family = "layer" // whole layers against the sum of their parts' laws
)

// Families lists the families in the order in which they are reported.
func Families() []Family {
	return []Family{FamilyAttention, FamilyGEMM, FamilyBandwidth, FamilyCollective, FamilyLayer}
}

// FamilyOf sorts an op into its family; ops that measure no time have none.
func FamilyOf(k op.Kind) Family {
	spec, err := op.Lookup(k)
	switch {
	case err != nil || spec.Measures != op.Time:
		return ""
	case k == op.KindGEMM:
		return FamilyGEMM
	case spec.Class == op.Compute:
		return FamilyAttention
	case spec.Class == op.Collective:
		return FamilyCollective
	case spec.Class == op.Composed:
		return FamilyLayer
	}
	return FamilyBandwidth
}

// Verdict of a stratum.
type Verdict string

// The verdicts.
const (
	Pass         Verdict = "pass"
	Fail         Verdict = "fail"
	Insufficient Verdict = "insufficient" // fewer than MinPoints points: no judgement
	Ungated      Verdict = "ungated"      // no limit applies to the stratum
)

// MinPoints is the least number of points for which a verdict is given.
const MinPoints = 20

// AllDevices stands for the devices or groups of a family together.
const AllDevices = "all"

// Row is the accuracy of one family of ops on all its devices or groups together, or on
// one of them (Part). A part with enough points is judged on its own too, so that a bad
// device does not hide among good ones.
type Row struct {
	Family  Family  `json:"family"`
	On      string  `json:"on"`
	Part    bool    `json:"part"`
	Limit   Limit   `json:"limit"`
	Verdict Verdict `json:"verdict"`
	// FitError has the bias of a law, log(measured/predicted). Its sign is opposite to
	// that of CheckedStratum.Bias.
	costmodel.FitError
	// MedianUpper and P90Upper are the upper 95 % bootstrap bounds, to which limits apply,
	// so that a lucky draw does not pass.
	MedianUpper float64 `json:"median_upper95"`
	P90Upper    float64 `json:"p90_upper95"`
	// CoverageUpper is the upper 95 % bound of Coverage, by Wilson's score.
	CoverageUpper float64  `json:"coverage_upper95"`
	Least         float64  `json:"least_coverage"`   // limit of CoverageUpper; 0 is none
	Broken        []string `json:"broken,omitempty"` // the limits that are exceeded, with their numbers
}

// Pair is one point with its prediction.
type Pair struct {
	Family  Family         `json:"family"`
	On      string         `json:"on"` // device type or group signature
	Op      op.Kind        `json:"op"`
	Variant op.Variant     `json:"variant,omitzero"` // the axes that select the law
	Shape   jsontext.Value `json:"shape,omitzero"`   // all axes of the op
	Band    string         `json:"band"`             // of the shape's size: see BandsOf
	// Measured is the median of the point's visits; Noise is the sample deviation
	// of their logs, 0 with one visit.
	Measured float64            `json:"measured_s"`
	Visits   int                `json:"visits"`
	Noise    float64            `json:"noise_log,omitzero"`
	Estimate costmodel.Estimate `json:"predicted"` // with the ends of its 90 % interval, and what it rests on
}

func newPair(x Point, est costmodel.Estimate) Pair {
	return Pair{
		Family: FamilyOf(x.Shape.Kind()), On: x.On, Op: x.Shape.Kind(), Variant: x.Shape.Variant(),
		Shape: profile.NewSpot(x.On, x.Shape).Raw, Band: BandOf(x.Shape),
		Measured: x.Seconds, Visits: max(1, len(x.visits)), Noise: repeatNoise(x.visits), Estimate: est,
	}
}

// repeatNoise is the sample deviation of the logs of visits; 0 for fewer than two.
func repeatNoise(visits []float64) float64 {
	if len(visits) < 2 {
		return 0
	}
	logs := make([]float64, len(visits))
	for i, v := range visits {
		logs[i] = math.Log(v)
	}
	return stat.StdDev(logs, nil)
}

// source is what the prediction rests on as strata tell it apart: a point that
// the profile measured itself lies inside its law's range.
func (p Pair) source() costmodel.Source {
	if p.Estimate.Source == costmodel.Measured {
		return costmodel.Interpolated
	}
	return p.Estimate.Source
}

// Log is log(measured/predicted): positive where the law is too optimistic.
func (p Pair) Log() float64 { return math.Log(p.Measured / float64(p.Estimate.Mid)) }

// Inside says whether the measured time lies in the 90 % interval.
func (p Pair) Inside() bool {
	return p.Measured >= float64(p.Estimate.Lo) && p.Measured <= float64(p.Estimate.Hi)
}

// Report is the accuracy of a profile on points it was not fitted to.
type Report struct {
	Simulated bool             `json:"simulated"`
	Limits    int              `json:"limits_revision"` // of the limits document that was applied
	Covered   CoverageLimit    `json:"coverage_limit"`  // of the rows, and of the strata that have a limit or enough points
	Strict    bool             `json:"strict,omitzero"` // what could not be judged fails as well
	Rows      []Row            `json:"rows"`            // families of ops, on all devices and on each
	Strata    []CheckedStratum `json:"strata"`
	Drift     *DriftReport     `json:"drift,omitempty"`
	Missing   []string         `json:"missing,omitempty"` // ops of the recording without a law, or composed of such
	Warnings  []string         `json:"warnings,omitempty"`
	Pairs     []Pair           `json:"pairs"`
	Doubtful  int              `json:"perhaps_fitted_points,omitzero"` // of the pairs: see Data.Unseen
	Imported  []string         `json:"imported,omitempty"`             // devices and groups of the pairs of which nothing was measured here

	Calibration string `json:"-"` // flags with which calibrate adds to what the profile was fitted to, for advice
}

// LongAttention keeps the points of attention whose queries or keys are at
// least so many tokens: what long contexts are made of. Errors of short calls,
// which launches dominate, would hide theirs.
func LongAttention(points []Point, least units.Tokens) []Point {
	return slices.DeleteFunc(slices.Clone(points), func(p Point) bool {
		located, ok := p.Shape.(op.Located)
		if !ok || FamilyOf(p.Shape.Kind()) != FamilyAttention {
			return true
		}
		at := located.Coords()
		return max(at[0], at[1]) < float64(least)
	})
}

// Failed says whether any family or stratum is above its limits, or the machine
// drifted; strict counts families that could not be judged, and ops without a
// law, as failures too. Strata that could not be judged are in Undecided.
func (r *Report) Failed(strict bool) bool {
	if r.Drift != nil && r.Drift.Verdict == Drifted {
		return true
	}
	if slices.ContainsFunc(r.Strata, func(s CheckedStratum) bool { return s.Verdict == Fail }) {
		return true
	}
	for _, row := range r.Rows {
		if row.Verdict == Fail || strict && row.Verdict == Insufficient && !row.Part {
			return true
		}
	}
	return strict && len(r.Missing) > 0
}

// Refused is the verdict that was asked for: Failed and, where it was asked for strictly,
// strata that could not be judged. All forms of the report and the exit code go by it.
func (r *Report) Refused() bool {
	return r.Failed(r.Strict) || r.Strict && len(r.Undecided()) > 0
}

// Undecided names the strata that have a limit and too few points for a verdict.
func (r *Report) Undecided() []string {
	var names []string
	for i := range r.Strata {
		if s := &r.Strata[i]; s.Verdict == Insufficient {
			names = append(names, s.String())
		}
	}
	return names
}

// MedianError is the median of |log(measured/predicted)| over all points, NaN
// without any.
func (r *Report) MedianError() float64 {
	if len(r.Pairs) == 0 {
		return math.NaN()
	}
	errs := make([]float64, len(r.Pairs))
	for i, p := range r.Pairs {
		errs[i] = math.Abs(p.Log())
	}
	return stats.Median(errs)
}

// Check compares measured points with a profile's predictions, by family of ops
// and by stratum, and judges the errors by limits. The laws must not have been fitted to
// the points: see Data.Held for a profile's own recordings and Data.Unseen for others.
//
// Errors: a device type that the profile knows under the same name but with another
// fingerprint, or not one point that has a law.
func Check(p *costmodel.Profile, d *Data, points []Point, limits *Limits) (*Report, error) {
	if err := sameDevices(p, d); err != nil {
		return nil, err
	}
	r := &Report{Simulated: p.Simulated || d.Simulated, Limits: limits.Revision, Covered: limits.Covered()}
	q := costmodel.NewCallPredictor(p)
	for _, x := range points {
		est, err := d.predict(q, x)
		if err != nil {
			if name := unpredicted(x, err); FamilyOf(x.Shape.Kind()) != "" && !slices.Contains(r.Missing, name) {
				r.Missing = append(r.Missing, name)
			}
			continue
		}
		if mid := float64(est.Mid); !(mid > 0) || math.IsInf(mid, 0) {
			return nil, fmt.Errorf("%s on %s: the law predicts %v s for %s, which is no time: the profile is damaged; fit it again: evenkeel fit", x.Shape.Kind(), x.On, mid, profile.NewSpot(x.On, x.Shape).Raw)
		}
		r.Pairs = append(r.Pairs, newPair(x, est))
		if d.origins.foreign(x.On) && !slices.Contains(r.Imported, x.On) {
			r.Imported = append(r.Imported, x.On)
		}
		if x.doubtful {
			r.Doubtful++
		}
	}
	if len(r.Pairs) == 0 {
		return nil, nothingJudged(p, d, points, r.Missing)
	}
	r.rows(limits)
	r.strata(limits, slices.Concat(d.Groups, p.Groups))
	if r.Doubtful > 0 {
		r.Warnings = append(r.Warnings, doubt(p, r.Doubtful))
	}
	r.Warnings = append(r.Warnings, d.warnings()...)
	return r, nil
}

// firstFew names a few and counts the others: a recording of many libraries has dozens.
func firstFew(names []string) string {
	const few = 4
	if more := len(names) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), more)
	}
	return strings.Join(names, ", ")
}

// nothingJudged says why not one of the points could be compared with a law: the ops
// without one are missing.
func nothingJudged(p *costmodel.Profile, d *Data, points []Point, missing []string) error {
	switch {
	case len(missing) > 0:
		var on []string
		for i := range p.Laws {
			if name := p.Laws[i].On(); !slices.Contains(on, name) {
				on = append(on, name)
			}
		}
		return fmt.Errorf("none of the %d points has a law in the profile: it has no %s; its laws are on %s; fit a profile from a recording of this machine: evenkeel calibrate", len(points), firstFew(missing), cmp.Or(firstFew(on), "nothing"))
	case d.TooFast > 0 && len(d.Points) == 0:
		return fmt.Errorf("nothing to judge: %s", d.beyondDevice())
	case d.Torn > 0 && len(d.Points) == 0:
		return fmt.Errorf("nothing to judge: no point was read, and the last line of %s was cut off: if a copy broke off there, copy the file again", units.Count(d.Torn, "recording"))
	case len(d.Points) > 0 && len(points) == 0:
		return noneSetAside(p, d)
	}
	way := measureMore
	if d.origins.allForeign() {
		way = "import more: evenkeel import"
	}
	return fmt.Errorf("nothing to judge: of %s, those set aside before the fit where the profile was fitted to them, none is of an op that check knows; %s", units.Count(len(points), "point"), way)
}

// noneSetAside says why every point of the recordings is one that the laws were fitted to. Where
// the profile set points aside, they are in what was cut off, or in another recording.
func noneSetAside(p *costmodel.Profile, d *Data) error {
	held, way := 0, "check another recording: evenkeel calibrate"
	for i := range p.Laws {
		held += p.Laws[i].Held.Points + p.Laws[i].Held.Outside
	}
	if d.origins.allForeign() {
		way = "check another recording: evenkeel import"
	}
	if held > 0 {
		way = "check all that the profile was fitted to, or " + way
	} else {
		way = "fit with more points and a --holdout above 0, or " + way
	}
	if d.Torn > 0 {
		way = fmt.Sprintf("the last line of %s was cut off: if a copy broke off there, copy the file again; else %s", units.Count(d.Torn, "recording"), way)
	}
	if held > 0 {
		return fmt.Errorf("nothing to judge: the laws were fitted to all %s of the recordings: none of the %d that were set aside is among them; %s", units.Count(len(d.Points), "point"), held, way)
	}
	return fmt.Errorf("nothing to judge: the laws were fitted to every point of the recordings: none was set aside; %s", way)
}

// unpredicted names a point's op without a law, a composed one with the laws
// that its parts lack.
func unpredicted(x Point, err error) string {
	name := fmt.Sprintf("%s on %s", x.Shape.Kind(), x.On)
	var parts *costmodel.MissingPartsError
	if !errors.As(err, &parts) {
		return name
	}
	return name + ", whose parts need " + parts.Laws()
}

func (r *Report) rows(limits *Limits) {
	slices.SortStableFunc(r.Pairs, func(a, b Pair) int {
		return cmp.Or(cmp.Compare(familyPlace(a.Family), familyPlace(b.Family)), cmp.Compare(a.On, b.On))
	})
	sameFamily := func(a, b Pair) bool { return a.Family == b.Family }
	samePlace := func(a, b Pair) bool { return a.On == b.On }
	least := limits.Covered().Least
	for family := range runs(r.Pairs, sameFamily) {
		limit := limits.OfFamily(family[0].Family)
		if samePlace(family[0], family[len(family)-1]) {
			r.Rows = append(r.Rows, newRow(family, limit, least))
			continue
		}
		all := newRow(family, limit, least)
		all.On = AllDevices
		r.Rows = append(r.Rows, all)
		for part := range runs(family, samePlace) {
			row := newRow(part, limit, least)
			row.Part = true
			r.Rows = append(r.Rows, row)
		}
	}
}

// runs cuts sorted pairs where two neighbours are not the same.
func runs(pairs []Pair, same func(a, b Pair) bool) iter.Seq[[]Pair] {
	return func(yield func([]Pair) bool) {
		for i := 0; i < len(pairs); {
			j := i + 1
			for j < len(pairs) && same(pairs[i], pairs[j]) {
				j++
			}
			if !yield(pairs[i:j]) {
				return
			}
			i = j
		}
	}
}

func newRow(pairs []Pair, limit Limit, least float64) Row {
	row := Row{Family: pairs[0].Family, On: pairs[0].On, Limit: limit, Least: least, Verdict: Insufficient}
	var logs []float64
	inside := 0
	for _, p := range pairs {
		if p.source() != costmodel.Interpolated {
			row.Outside++
			continue
		}
		logs = append(logs, p.Log())
		if p.Inside() {
			inside++
		}
	}
	row.Points = len(logs)
	if row.Points == 0 {
		return row
	}
	slices.Sort(logs)
	summarise(&row.FitError, logs)
	row.Coverage = float64(inside) / float64(row.Points)
	upper := upperBounds(logs)
	row.MedianUpper, row.P90Upper = upper.median, upper.p90
	row.CoverageUpper = stats.ShareUpper(inside, row.Points)
	row.judge()
	return row
}

// judge sets the verdict of a row with enough points once its numbers are there.
func (r *Row) judge() {
	if r.Points < MinPoints {
		return
	}
	for _, c := range []struct {
		name                string
		value, upper, limit float64
	}{{"median", r.Median, r.MedianUpper, r.Limit.Median}, {"p90", r.P90, r.P90Upper, r.Limit.P90}} {
		if c.upper > c.limit {
			r.Broken = append(r.Broken, above(c.name, c.value, c.upper, c.limit))
		}
	}
	if r.CoverageUpper < r.Least {
		r.Broken = append(r.Broken, tooNarrow(r.Coverage, r.CoverageUpper, r.Least))
	}
	r.Verdict = Pass
	if len(r.Broken) > 0 {
		r.Verdict = Fail
	}
}

// predict asks for a point's time: of a collective in its group, which need not
// be one that was fitted, and of a device type without such a law by the laws that others
// lent its model where nobody had measured it (Borrowed).
func (d *Data) predict(q *costmodel.Predictor, x Point) (costmodel.Estimate, error) {
	if i := slices.IndexFunc(d.Groups, func(g op.GroupType) bool { return g.Name == x.On }); i >= 0 {
		return q.TimeIn(d.Groups[i], x.Shape)
	}
	est, err := q.Time(x.On, x.Shape)
	if err != nil {
		if lent, none := q.Time(costmodel.ModelOf(x.On)+"/"+costmodel.BorrowedStack, x.Shape); none == nil {
			return lent, nil
		}
	}
	return est, err
}

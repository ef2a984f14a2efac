package fit

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Limit is what a stratum's errors may be at most, as |log(measured/predicted)|.
type Limit struct {
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
}

// Limits gives every family of ops its limit.
type Limits map[Family]Limit

// DefaultLimits are the limits of `check` when none are given. They apply to
// upper bounds, which with the few dozen points of a minute's calibration lie
// well above the estimates (results/evidence/cpu), and are set so that such a
// calibration of a quiet machine passes while a law that is off by a tenth
// fails. A longer calibration deserves a --max-error of its own.
func DefaultLimits() Limits {
	return Limits{
		FamilyAttention:  {Median: 0.08, P90: 0.30},
		FamilyGEMM:       {Median: 0.08, P90: 0.30},
		FamilyBandwidth:  {Median: 0.10, P90: 0.50},
		FamilyCollective: {Median: 0.20, P90: 0.60},
		FamilyLayer:      {Median: 0.10, P90: 0.30},
	}
}

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
	Insufficient Verdict = "insufficient" // fewer than MinPoints: nothing is said
)

// MinPoints is the least number of points that a verdict is given on.
const MinPoints = 20

// AllDevices stands for the devices or groups of a family together.
const AllDevices = "all"

// Row is one stratum of a report: a family on all its devices (or groups)
// together or, as a Part of that, on one of them. A part with enough points of
// its own is judged alone too, so that a bad device does not hide among good
// ones.
type Row struct {
	Family  Family  `json:"family"`
	On      string  `json:"on"`
	Part    bool    `json:"part"`
	Limit   Limit   `json:"limit"`
	Verdict Verdict `json:"verdict"`
	costmodel.FitError
	// MedianUpper and P90Upper are the upper 95 % bootstrap bounds, which the
	// limits apply to, so that a lucky draw does not pass.
	MedianUpper float64 `json:"median_upper95"`
	P90Upper    float64 `json:"p90_upper95"`
}

// Pair is one point with its prediction.
type Pair struct {
	Family   Family             `json:"family"`
	On       string             `json:"on"`
	Op       op.Kind            `json:"op"`
	Measured float64            `json:"measured_s"`
	Estimate costmodel.Estimate `json:"predicted"`
}

// Log is log(measured/predicted): positive where the law is too optimistic.
func (p Pair) Log() float64 { return math.Log(p.Measured / float64(p.Estimate.Mid)) }

// Inside says whether the measured time lies in the 90 % interval.
func (p Pair) Inside() bool {
	return p.Measured >= float64(p.Estimate.Lo) && p.Measured <= float64(p.Estimate.Hi)
}

// Report is the accuracy of a profile on points it was not fitted to.
type Report struct {
	Simulated bool     `json:"simulated"`
	Rows      []Row    `json:"rows"`
	Missing   []string `json:"missing,omitempty"` // ops of the recording without a law, or composed of such
	Warnings  []string `json:"warnings,omitempty"`
	Pairs     []Pair   `json:"pairs"`
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

// Failed says whether any stratum is above its limits; strict counts families
// that could not be judged, and ops without a law, as failures too.
func (r *Report) Failed(strict bool) bool {
	for _, row := range r.Rows {
		if row.Verdict == Fail || strict && row.Verdict == Insufficient && !row.Part {
			return true
		}
	}
	return strict && len(r.Missing) > 0
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

// Check compares points with a profile's predictions, stratum by stratum. The
// points must not have been fitted: see Data.Held for a profile's own recordings.
//
// Errors: the points come from a device type that the profile knows under the
// same name but another fingerprint, or not one of them has a law.
func Check(p *costmodel.Profile, d *Data, points []Point, limits Limits) (*Report, error) {
	if err := sameDevices(p, d); err != nil {
		return nil, err
	}
	r := &Report{Simulated: p.Simulated || d.Simulated}
	q := costmodel.NewPredictor(p)
	for _, x := range points {
		est, err := q.Time(x.On, x.Shape)
		if err != nil {
			if name := unpredicted(x, err); FamilyOf(x.Shape.Kind()) != "" && !slices.Contains(r.Missing, name) {
				r.Missing = append(r.Missing, name)
			}
			continue
		}
		r.Pairs = append(r.Pairs, Pair{FamilyOf(x.Shape.Kind()), x.On, x.Shape.Kind(), x.Seconds, est})
	}
	if len(r.Pairs) == 0 {
		return nil, fmt.Errorf("none of the %d points has a law in the profile: it has no %v; fit a profile from a recording of this machine: evenkeel calibrate", len(points), r.Missing)
	}
	r.rows(limits)
	r.Warnings = append(r.Warnings, d.warnings()...)
	return r, nil
}

// unpredicted names a point's op without a law, a composed one with the laws
// that its parts lack.
func unpredicted(x Point, err error) string {
	name := fmt.Sprintf("%s on %s", x.Shape.Kind(), x.On)
	var parts *costmodel.MissingPartsError
	if !errors.As(err, &parts) {
		return name
	}
	var laws []string
	for _, m := range parts.Missing {
		laws = append(laws, strings.TrimSpace(fmt.Sprintf("%s %s", m.Op, m.Variant)))
	}
	return name + ", whose parts need " + strings.Join(laws, ", ")
}

func sameDevices(p *costmodel.Profile, d *Data) error {
	for _, dev := range d.Devices {
		for _, known := range p.Devices {
			if known.Name == dev.Name && known.Fingerprint != dev.Fingerprint {
				return fmt.Errorf("the profile's %s is another machine or software stack (%s, %s; the recording's is %s, %s): calibrate this one: evenkeel calibrate", dev.Name, known.Model, known.Stack, dev.Model, dev.Stack)
			}
		}
	}
	return nil
}

func (r *Report) rows(limits Limits) {
	place := map[Family]int{}
	for i, f := range Families() {
		place[f] = i
	}
	slices.SortStableFunc(r.Pairs, func(a, b Pair) int {
		return cmp.Or(cmp.Compare(place[a.Family], place[b.Family]), cmp.Compare(a.On, b.On))
	})
	sameFamily := func(a, b Pair) bool { return a.Family == b.Family }
	samePlace := func(a, b Pair) bool { return a.On == b.On }
	for family := range runs(r.Pairs, sameFamily) {
		limit := limits[family[0].Family]
		if samePlace(family[0], family[len(family)-1]) {
			r.Rows = append(r.Rows, newRow(family, limit))
			continue
		}
		all := newRow(family, limit)
		all.On = AllDevices
		r.Rows = append(r.Rows, all)
		for part := range runs(family, samePlace) {
			row := newRow(part, limit)
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

func newRow(pairs []Pair, limit Limit) Row {
	row := Row{Family: pairs[0].Family, On: pairs[0].On, Limit: limit, Verdict: Insufficient}
	var logs, errs []float64
	inside := 0
	for _, p := range pairs {
		if p.Estimate.Source != costmodel.Interpolated {
			row.Outside++
			continue
		}
		logs = append(logs, p.Log())
		errs = append(errs, math.Abs(p.Log()))
		if p.Inside() {
			inside++
		}
	}
	row.Points = len(logs)
	if row.Points == 0 {
		return row
	}
	summarise(&row.FitError, logs)
	row.Coverage = float64(inside) / float64(row.Points)
	const replicates, seed = 1000, 1
	row.MedianUpper = stats.UpperBound(stats.Bootstrap(errs, stats.Median, replicates, seed), 0.95)
	row.P90Upper = stats.UpperBound(stats.Bootstrap(errs, func(x []float64) float64 { return stats.Quantile(x, 0.9) }, replicates, seed), 0.95)
	if row.Points >= MinPoints {
		row.Verdict = Pass
		if row.MedianUpper > limit.Median || row.P90Upper > limit.P90 {
			row.Verdict = Fail
		}
	}
	return row
}

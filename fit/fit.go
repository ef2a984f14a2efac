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

// Options of a fit. The zero value is not valid; start from Defaults.
type Options struct {
	Seed  uint64  // of the hold-out
	Share float64 // of the points of each stratum that are set aside, 0 to below 1
	// Donors are laws of other GPUs. The law of a GPU with few points starts from that of
	// the most similar one, scaled by datasheet ratios.
	Donors []Donor
	// Lenders are profiles with collectives among other GPUs of a node. That of GPUs with
	// the same links is moved to the few points of one that has too few.
	Lenders []*costmodel.Profile
	// Report, unless nil, is called before the first law and after each with the number done
	// and the total, by one goroutine at a time.
	Report func(done, all int)
}

// Defaults sets a fifth of the points of each stratum aside.
func Defaults() Options { return Options{Seed: 1, Share: 0.2} }

// fewestToFit is the least number of points that a law is fitted to. With fewer, the law
// cannot be told from noise.
const fewestToFit = 6

// Fit estimates the laws of all devices and groups of a data set. A stratum whose law
// cannot be estimated is left out and named in the profile's warnings; whatever needs
// that law later fails with a *costmodel.MissingLawError.
//
// Errors: an invalid share, or a data set in which no law at all can be fitted.
func Fit(d *Data, o Options) (*costmodel.Profile, error) {
	if !(o.Share >= 0 && o.Share < 1) {
		return nil, fmt.Errorf("hold-out share %v: want 0 <= share < 1", o.Share)
	}
	p := &costmodel.Profile{
		Simulated: d.Simulated, Devices: slices.Clone(d.Devices), Groups: slices.Clone(d.Groups),
		Holdout: costmodel.Holdout{Seed: o.Seed, Share: o.Share}, Warnings: d.warnings(),
	}
	var tasks []*task
	var borrowed []costmodel.Law // whole, with no law of their own to compare with
	held := map[*task][]Point{}
	for _, s := range d.Strata() {
		fitted, kept := s.split(o)
		if len(fitted) < fewestToFit && d.donor(s, o.Donors) == nil {
			if lent := d.lentLinks(s, fitted, o.Lenders); lent != nil {
				lent.Fit, lent.Held = told(judge(lent, fitted)), told(judge(lent, kept))
				borrowed = append(borrowed, *lent)
				continue
			}
			few := fmt.Sprintf("%s: %s to fit, too few for a law (want %d)", s, units.Count(len(fitted), "point"), fewestToFit)
			if !d.origins.foreign(s.On) {
				few += "; a longer calibration adds points: evenkeel calibrate --fresh --budget 10m"
			}
			p.Warnings = append(p.Warnings, few)
			continue
		}
		if odd := d.oddTimes(s, o.Donors); odd != "" {
			p.Warnings = append(p.Warnings, odd)
		}
		if n := len(fitted); n > mostFitted {
			fitted = fewer(s.Op, fitted, mostFitted)
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s: fitted to %d of %s, chosen by hash, with the ends of every axis: more would tell the law little and take minutes; its errors are of all that were held out", s, mostFitted, units.Count(n, "point")))
		}
		t := &task{Stratum: s, points: fitted}
		tasks, held[t] = append(tasks, t), kept
	}
	together := estimateEach(d, tasks, o.Donors, o.reporting(len(tasks)))
	p.Steps, p.Warnings = together.steps, append(p.Warnings, together.warnings...)
	for _, t := range tasks {
		if t.err != nil {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s: %v", t.Stratum, t.err))
			continue
		}
		t.law.Fit, t.law.Held = told(judge(t.law, t.points)), told(judge(t.law, held[t]))
		for i := range t.law.Rivals {
			t.law.Rivals[i].Median = rounded(t.law.Rivals[i].Median, toldDigits)
		}
		p.Laws = append(p.Laws, *t.law)
	}
	p.Laws = append(p.Laws, borrowed...)
	d.facts(p)
	if len(p.Laws) == 0 {
		return nil, d.noLaw()
	}
	return p, nil
}

// mostFitted is the most points that one law is fitted to. Its form has some hundred
// coefficients at the most, and the time that forms and trees take to compare grows with
// the points: of 20,000 it is a minute on two cores, of a million half an hour.
const mostFitted = 20_000

// fewer leaves so many points of those that split leaves to fit: of every end of an axis
// one, and of the others those that come last, in the order of their hashes.
func fewer(k op.Kind, points []Point, most int) []Point {
	ends := map[int]bool{}
	for axis, r := range hull(k, points) {
		for _, end := range []float64{r.Min, r.Max} {
			for i := len(points) - 1; i >= 0; i-- {
				if points[i].Shape.(op.Located).Coords()[axis] == end {
					ends[i] = true
					break
				}
			}
		}
	}
	var few []Point
	others := 0
	for i := len(points) - 1; i >= 0; i-- {
		if !ends[i] && others == most-len(ends) {
			continue
		}
		if !ends[i] {
			others++
		}
		few = append(few, points[i])
	}
	slices.Reverse(few)
	return few
}

// reporting counts the laws that are done.
func (o Options) reporting(all int) (ready func()) {
	if o.Report == nil {
		return func() {}
	}
	done := 0
	o.Report(done, all)
	return func() {
		done++
		o.Report(done, all)
	}
}

// measureMore is the way out of too few points: the same command alone takes a recording
// whose budget is used up for complete, and fits it again.
const measureMore = "measure more: evenkeel calibrate --fresh --budget 10m"

// noLaw says what a data set lacks for any law.
func (d *Data) noLaw() error {
	way, most := measureMore, ""
	if strata := d.Strata(); len(strata) > 0 {
		s := slices.MaxFunc(strata, func(a, b Stratum) int { return cmp.Compare(len(a.Points), len(b.Points)) })
		way, most = d.origins.more(s.On, way), fmt.Sprintf(", and the most are %d, of %s", len(s.Points), s)
	}
	if beyond := d.beyondDevice(); beyond != "" {
		way = beyond
	}
	if d.Torn > 0 {
		way = fmt.Sprintf("the last line of %s was cut off: if a copy broke off there, copy the file again", units.Count(d.Torn, "recording"))
	}
	return &NoLawError{fmt.Sprintf("no law can be fitted from %s: a law needs %d of one op in one variant on one device or group%s", units.Count(len(d.Points), "point"), fewestToFit, most), way}
}

// NoLawError says that a data set has too few points of anything for a law.
type NoLawError struct{ What, WayOut string }

// Error says what there is and the way out.
func (e *NoLawError) Error() string { return e.What + "; " + e.WayOut }

// law fits a stratum with the estimator of its op's class. lent are points of other strata
// that may help it: see lentTo.
func (s Stratum) law(d *Data, points, lent []Point, sibling *costmodel.Field, donors []Donor) (*costmodel.Law, error) {
	law := &costmodel.Law{Op: s.Op, Variant: s.Variant, Range: hull(s.Op, points)}
	spec, err := op.Lookup(s.Op)
	if err != nil {
		return nil, err
	}
	if spec.Class == op.Collective {
		law.Group = s.On
	} else {
		law.Device = s.On
	}
	dev := d.device(s.On)
	candidates, compared := forms(spec, max(1, dev.Parallel), points)
	if core, ok := coreOf(s.Op, dev); ok {
		law.MaxCells = mostCells(s.Op, points)
		if err := core.law(law, dev, points, sibling, d.donor(s, donors)); err != nil {
			return nil, err
		}
		if len(points) >= fewestToFit {
			compare(law, append(compared, candidates...), points)
		}
		return law, nil
	}
	if packed(s.Op) && dev.Sheet != (op.Sheet{}) {
		candidates = append(candidates, packedForm(dev, s.Op == op.KindAttnVarlenBwd, lent))
	}
	return law, choose(law, candidates, compared, points)
}

// hull is the measured range of every axis; that of a batch only where there is one.
func hull(k op.Kind, points []Point) []costmodel.AxisRange {
	var axes []costmodel.AxisRange
	for i, name := range op.CoordNames(k) {
		r := costmodel.AxisRange{Axis: name, Min: math.Inf(1)}
		for _, p := range points {
			at := p.Shape.(op.Located).Coords()[i]
			r.Min, r.Max = min(r.Min, at), max(r.Max, at)
		}
		if name == "batch" && r.Max == 1 {
			continue
		}
		axes = append(axes, r)
	}
	return axes
}

// judge compares a law with points, which it may or may not have been fitted to. Points
// outside the law's range are counted and left out of the statistics, so that errors of
// extrapolation are never averaged with others.
func judge(law *costmodel.Law, points []Point) costmodel.FitError {
	var e costmodel.FitError
	var logs []float64
	inside := 0
	for _, p := range points {
		est := law.Predict(p.Shape)
		if est.Source != costmodel.Interpolated {
			e.Outside++
			continue
		}
		logs = append(logs, math.Log(p.Seconds/float64(est.Mid)))
		if p.Seconds >= float64(est.Lo) && p.Seconds <= float64(est.Hi) {
			inside++
		}
	}
	e.Points = len(logs)
	if e.Points > 0 {
		summarise(&e, logs)
		e.Coverage = float64(inside) / float64(e.Points)
	}
	return e
}

func summarise(e *costmodel.FitError, logs []float64) {
	errs := make([]float64, len(logs))
	for i, l := range logs {
		errs[i] = math.Abs(l)
	}
	e.Median, e.P90, e.P95 = stats.Median(errs), stats.Quantile(errs, 0.9), stats.Quantile(errs, 0.95)
	e.Bias = stats.Median(logs)
}

// toldDigits is how many significant digits a law keeps of its errors and of its rivals':
// they are shown, to two digits, and no time or interval follows from them. Four would round
// twice: 15.4988 % is told as 15.50 then and shown as 16 %.
const toldDigits = 6

func told(e costmodel.FitError) costmodel.FitError {
	for _, x := range []*float64{&e.Median, &e.P90, &e.P95, &e.Bias, &e.Coverage} {
		*x = rounded(*x, toldDigits)
	}
	return e
}

// folds assigns points to k folds by their keys, so that cross-validation is
// the same however the points are ordered.
func folds(points []Point, k int) []int {
	order := make([]int, len(points))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(points[a].rank, points[b].rank) })
	fold := make([]int, len(points))
	for place, i := range order {
		fold[i] = place % k
	}
	return fold
}

// spread is the 90 % interval of measured over predicted, from cross-validated
// residuals: the ceil((n+1) 0.9)-th smallest |log ratio| in both directions,
// the split-conformal quantile (Lei et al. 2018), which needs no distribution.
func spread(logs []float64) costmodel.Spread {
	var errs []float64
	for _, l := range logs {
		if !math.IsNaN(l) {
			errs = append(errs, math.Abs(l))
		}
	}
	if len(errs) == 0 {
		return costmodel.Spread{Lo: 0.5, Hi: 2}
	}
	slices.Sort(errs)
	rank := min(len(errs), int(math.Ceil(0.9*float64(len(errs)+1))))
	q := min(errs[rank-1], 10)
	return costmodel.Spread{Lo: math.Exp(-q), Hi: math.Exp(q)}
}

func medianError(logs []float64) float64 {
	errs := make([]float64, len(logs))
	for i, l := range logs {
		if math.IsNaN(l) {
			return math.Inf(1)
		}
		errs[i] = math.Abs(l)
	}
	return stats.Median(errs)
}

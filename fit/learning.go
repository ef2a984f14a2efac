package fit

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Curve is a learning curve: how the error on held-out points falls with the number of
// points that laws are fitted to. It tells beforehand whether a longer calibration would
// pay. Errors are |log(measured/predicted)|.
type Curve struct {
	Simulated bool          `json:"simulated"`
	Seed      uint64        `json:"holdout_seed"`
	Share     float64       `json:"holdout_share"`
	Repeats   int           `json:"repeats"`
	Families  []FamilyCurve `json:"families"`
	Warnings  []string      `json:"warnings,omitempty"`

	Calibration string `json:"-"` // flags with which calibrate adds to the recording, for advice
}

// FamilyCurve is the learning curve of one family of ops. Only laws with enough points
// for every step are in it: if the set of laws changed from step to step, the curve would
// show the difference between laws and not that between sizes.
type FamilyCurve struct {
	Family  Family      `json:"family"`
	Laws    int         `json:"laws"`
	Held    int         `json:"held_points"` // held-out points, the same at every step
	Steps   []CurveStep `json:"steps,omitempty"`
	Change  *Change     `json:"change,omitempty"` // absent with fewer than two steps
	Trend   Trend       `json:"trend,omitempty"`
	LeftOut []string    `json:"left_out,omitempty"` // laws that are not in the curve, and why
	// Imported says that nothing was measured here: more points can be imported only.
	Imported bool `json:"imported,omitzero"`
}

// CurveStep is the error of laws fitted to a random subset of their points.
type CurveStep struct {
	Points int     `json:"points"` // fitted points of every law
	Median Scatter `json:"median"`
	P90    Scatter `json:"p90"`
	// Outside is the share of held-out points that lie outside the range of the points
	// drawn. Unlike elsewhere they count in the errors: they are inside the range of all
	// points, and without them each step would be judged on different points.
	Outside float64 `json:"outside_share"`
}

// Scatter is the distribution of a statistic over the repeats: median, least and largest
// value.
type Scatter struct {
	Mid float64 `json:"mid"`
	Lo  float64 `json:"lo"`
	Hi  float64 `json:"hi"`
}

// Change is the ratio of the errors at the last step (To points) to those at the step
// nearest to half as many (From points), repeat by repeat; below 1 the error fell.
type Change struct {
	From   int     `json:"from_points"`
	To     int     `json:"to_points"`
	Median Scatter `json:"median_ratio"`
	P90    Scatter `json:"p90_ratio"`
	// MedianUpper is the upper 95 % bootstrap bound of the middle ratio of medians,
	// over the held-out points: a fall that another hold-out might not show is none.
	MedianUpper float64 `json:"median_ratio_upper95"`
}

// Trend says whether more points would make the laws of a family more accurate.
type Trend string

// The trends.
const (
	Falling Trend = "falling" // by a tenth or more, in every repeat and at the bootstrap bound
	Flat    Trend = "flat"    // by less than a tenth, or the error rose
	Unclear Trend = "unclear" // the fall may be chance, fewer than MinPoints are held out, or the sizes are too close
)

const (
	// leastStretch is how many times the points of the earlier step the last one
	// must have for their errors to say anything about a trend.
	leastStretch = 1.5
	// flatWithin is by how much a median error must fall over about a doubling of
	// the points to count as falling. Errors that are all of the coefficients fall
	// by 30 %, those that are all noise of the held-out points by nothing.
	flatWithin = 0.10
	// fewestToLearn is the least number of fitted points that a curve can be drawn
	// with: the first two steps of the ladder.
	fewestToLearn = 8
)

// LearningCurve sets the usual hold-out aside, fits the laws of every family to growing
// random subsets of the other points, and judges each fit on the held-out points. It is a
// pure function of its arguments.
//
// Each size is drawn repeats times, seeded by o.Seed. The subsets of one repeat are
// nested, so that steps are compared on the same draw. As sizes approach the number of
// points the subsets become the same: the scatter there is too narrow and does not
// describe another calibration.
//
// sizes are the numbers of points to fit, ascending. nil is 6, 8, 12, 16, 24, 32, 48 and
// so on, up to the number of points of the family's smallest law, ignoring laws with
// fewer than half of what the family's median law has.
//
// report, unless nil, is called after each law with the number done and the total, by one
// goroutine at a time.
//
// Errors: an invalid share or size, or no law with enough points for a curve.
func LearningCurve(d *Data, o Options, sizes []int, repeats int, report func(done, all int)) (*Curve, error) {
	if err := checkLearning(o, sizes, repeats); err != nil {
		return nil, err
	}
	c := &Curve{Simulated: d.Simulated, Seed: o.Seed, Share: o.Share, Repeats: repeats, Warnings: d.warnings()}
	all := d.learners(o)
	drawn := false
	total := 0
	for _, l := range all {
		if slices.Contains(Families(), FamilyOf(l.Op)) {
			total++
		}
	}
	done, counted := 0, sync.Mutex{}
	ready := func() {
		counted.Lock()
		defer counted.Unlock()
		if done++; report != nil {
			report(done, total)
		}
	}
	for _, f := range Families() {
		of := slices.DeleteFunc(slices.Clone(all), func(l learner) bool { return FamilyOf(l.Op) != f })
		if len(of) == 0 {
			continue
		}
		curve := learn(d, f, of, sizes, repeats, ready)
		drawn = drawn || len(curve.Steps) > 0
		c.Families = append(c.Families, curve)
	}
	if !drawn {
		return nil, c.undrawn(d, all, sizes)
	}
	return c, nil
}

func checkLearning(o Options, sizes []int, repeats int) error {
	switch {
	case !(o.Share > 0 && o.Share < 1):
		return fmt.Errorf("hold-out share %v: want 0 < share < 1: a learning curve is judged on points set aside", o.Share)
	case repeats < 1:
		return fmt.Errorf("repeats %d: want 1 or more", repeats)
	case sizes != nil && len(sizes) == 0:
		return errors.New("sizes: none; pass nil for the usual ones")
	}
	for i, n := range sizes {
		if n < fewestToFit || i > 0 && n <= sizes[i-1] {
			return fmt.Errorf("sizes %v: want ascending numbers of points from %d on, which is the fewest a law is fitted to", sizes, fewestToFit)
		}
	}
	return nil
}

// undrawn says what a data set lacks for a curve of any family.
func (c *Curve) undrawn(d *Data, all []learner, sizes []int) error {
	need, most, best, way := fewestToLearn, 0, "no op measures time", measureMore
	if len(sizes) > 0 {
		need = sizes[len(sizes)-1]
	}
	for _, l := range all {
		if len(l.fitted) > most {
			most, best, way = len(l.fitted), l.String(), d.origins.more(l.On, measureMore)
		}
	}
	if most >= need {
		return fmt.Errorf("no learning curve: none of the laws with %d points can be fitted and judged at every size: %s; %s", need, c.Families[0].LeftOut[0], way)
	}
	return fmt.Errorf("no learning curve: it needs a law with %d points besides those held out, and the most are %d (%s); %s", need, most, best, way)
}

// learner is a law to be: the points it may be fitted to, and those it is judged on.
type learner struct {
	Stratum
	seed         uint64
	fitted, held []Point
}

func (d *Data) learners(o Options) []learner {
	var all []learner
	for _, s := range d.Strata() {
		l := learner{Stratum: s, seed: o.Seed}
		l.fitted, l.held = s.split(o)
		all = append(all, l)
	}
	return all
}

// needed is how many fitted points a law must have to be in the curve.
func needed(of []learner, sizes []int) int {
	if len(sizes) > 0 {
		return sizes[len(sizes)-1]
	}
	var counts []float64
	for _, l := range of {
		counts = append(counts, float64(len(l.fitted)))
	}
	return max(fewestToLearn, int(math.Ceil(stats.Median(counts)/2)))
}

// ladder is the sizes of a curve up to most: powers of two and the steps half
// way between them, without one that is nearly the last.
func ladder(most int) []int {
	var sizes []int
	for n := fewestToFit; n*10 <= most*9; {
		sizes = append(sizes, n)
		if bits.OnesCount(uint(n)) == 1 {
			n = n * 3 / 2
		} else {
			n = n * 4 / 3
		}
	}
	return append(sizes, most)
}

// learn draws the curve of one family; ready is called after each of its laws.
func learn(d *Data, f Family, of []learner, sizes []int, repeats int, ready func()) FamilyCurve {
	c := FamilyCurve{Family: f, Trend: Unclear}
	c.Imported = !slices.ContainsFunc(of, func(l learner) bool { return !d.origins.foreign(l.On) })
	need := needed(of, sizes)
	of = slices.DeleteFunc(of, func(l learner) bool {
		short := len(l.fitted) < need
		if short {
			ready()
			c.LeftOut = append(c.LeftOut, fmt.Sprintf("%s: %s to fit, the curve needs %d", l, units.Count(len(l.fitted), "point"), need))
		}
		return short
	})
	if len(of) == 0 {
		return c
	}
	if sizes == nil {
		sizes = ladder(len(slices.MinFunc(of, func(a, b learner) int { return len(a.fitted) - len(b.fitted) }).fitted))
	}
	exams := c.pass(of, sitAll(d, of, sizes, repeats, ready))
	if len(exams) == 0 {
		return c
	}
	c.Laws = len(exams)
	c.steps(exams, sizes, repeats)
	return c
}

// pass keeps the exams of the laws that could be fitted at every size.
func (c *FamilyCurve) pass(of []learner, results []result) []exams {
	var all []exams
	for i, r := range results {
		if r.err != nil {
			c.LeftOut = append(c.LeftOut, fmt.Sprintf("%s: %v", of[i], r.err))
			continue
		}
		all = append(all, r.exams)
	}
	return all
}

// exam is what one fit predicted: the errors of the held-out points, and how
// many of them lie outside the range of the points that it was fitted to.
type exam struct {
	errs    []float64
	outside int
}

// exams are those of one law, by size and repeat.
type exams [][]exam

type result struct {
	exams exams
	err   error
}

// sitAll examines the laws side by side.
func sitAll(d *Data, of []learner, sizes []int, repeats int, ready func()) []result {
	results := make([]result, len(of))
	atOnce(of, func(i int, l learner) {
		results[i].exams, results[i].err = l.sit(d, sizes, repeats)
		ready()
	})
	return results
}

// sit fits a law to subsets of every size and judges each on the held-out points
// that lie inside the range of all its points.
func (l learner) sit(d *Data, sizes []int, repeats int) (exams, error) {
	whole, err := lawOf(d, l.Stratum, l.fitted)
	if err != nil {
		return nil, err
	}
	held := slices.DeleteFunc(slices.Clone(l.held), func(p Point) bool {
		return whole.Predict(p.Shape).Source != costmodel.Interpolated
	})
	if len(held) == 0 {
		return nil, errors.New("no point to judge it on is held out")
	}
	all := make(exams, len(sizes))
	for i, n := range sizes {
		for r := range repeats {
			law := whole
			if n < len(l.fitted) {
				if law, err = lawOf(d, l.Stratum, l.draw(n, r)); err != nil {
					return nil, fmt.Errorf("fitted to %d points: %w", n, err)
				}
			}
			e, err := examine(law, held)
			if err != nil {
				return nil, fmt.Errorf("fitted to %d points: %w", n, err)
			}
			all[i] = append(all[i], e)
		}
	}
	return all, nil
}

// draw takes n of the fitted points at random. Their order stays, so that all of
// them give the law of Fit to the last bit.
func (l learner) draw(n, repeat int) []Point {
	lots := make([]uint64, len(l.fitted))
	for i, p := range l.fitted {
		lots[i] = rank(l.seed, fmt.Sprintf("learning %d %s", repeat, p.Key))
	}
	last := slices.Sorted(slices.Values(lots))[n-1]
	var points []Point
	for i, p := range l.fitted {
		if lots[i] <= last {
			points = append(points, p)
		}
	}
	return points
}

func examine(law *costmodel.Law, held []Point) (exam, error) {
	var e exam
	for _, p := range held {
		est := law.Predict(p.Shape)
		err := math.Abs(math.Log(p.Seconds / float64(est.Mid)))
		if math.IsNaN(err) || math.IsInf(err, 0) {
			return exam{}, fmt.Errorf("it predicts %v s for %s", float64(est.Mid), p.Key)
		}
		e.errs = append(e.errs, err)
		if est.Source != costmodel.Interpolated {
			e.outside++
		}
	}
	return e, nil
}

// steps pools the exams of all laws, size by size.
func (c *FamilyCurve) steps(all []exams, sizes []int, repeats int) {
	errs := make([][][]float64, len(sizes)) // by size and repeat, of the held-out points in one order
	for i, n := range sizes {
		outside := 0
		for r := range repeats {
			var pooled []float64
			for _, e := range all {
				pooled = append(pooled, e[i][r].errs...)
				outside += e[i][r].outside
			}
			errs[i] = append(errs[i], pooled)
		}
		c.Held = len(errs[i][0])
		c.Steps = append(c.Steps, CurveStep{
			Points: n, Median: scatter(each(errs[i], stats.Median)), P90: scatter(each(errs[i], p90)),
			Outside: float64(outside) / float64(c.Held*repeats),
		})
	}
	c.change(errs)
}

func p90(errs []float64) float64 { return stats.Quantile(errs, 0.9) }

// each is a statistic of every repeat's errors.
func each(repeats [][]float64, statistic func([]float64) float64) []float64 {
	var out []float64
	for _, errs := range repeats {
		out = append(out, statistic(errs))
	}
	return out
}

func scatter(x []float64) Scatter { return Scatter{stats.Median(x), slices.Min(x), slices.Max(x)} }

// change compares the last step with the one nearest to half its points, on a
// logarithmic scale.
func (c *FamilyCurve) change(errs [][][]float64) {
	last := len(c.Steps) - 1
	if last < 1 {
		return
	}
	to := c.Steps[last].Points
	off := func(i int) float64 { return math.Abs(math.Log(2 * float64(c.Steps[i].Points) / float64(to))) }
	from := 0
	for i := range last {
		if off(i) < off(from) {
			from = i
		}
	}
	medians := func(step int) []float64 { return each(errs[step], stats.Median) }
	c.Change = &Change{
		From: c.Steps[from].Points, To: to, MedianUpper: upperRatio(errs[last], errs[from]),
		Median: scatter(ratios(medians(last), medians(from))), P90: scatter(ratios(each(errs[last], p90), each(errs[from], p90))),
	}
	c.Trend = c.trend()
}

func (c *FamilyCurve) trend() Trend {
	x := c.Change
	switch {
	case c.Held < MinPoints || float64(x.To) < leastStretch*float64(x.From):
		return Unclear
	case x.Median.Mid >= 1-flatWithin:
		return Flat
	case x.Median.Hi < 1 && x.MedianUpper < 1:
		return Falling
	}
	return Unclear
}

// upperRatio is the upper 95 % bound of the middle repeat's ratio of medians, over
// bootstrap draws of the held-out points: both steps are judged on the same draw.
func upperRatio(of, to [][]float64) float64 {
	const replicates, seed = 1000, 1
	at := func(errs []float64, index []int) float64 {
		drawn := make([]float64, len(index))
		for i, k := range index {
			drawn[i] = errs[k]
		}
		return stats.Median(drawn)
	}
	return stats.UpperBound(stats.BootstrapIndices(len(of[0]), func(index []int) float64 {
		medians := func(repeats [][]float64) []float64 {
			return each(repeats, func(errs []float64) float64 { return at(errs, index) })
		}
		return stats.Median(ratios(medians(of), medians(to)))
	}, replicates, seed), 0.95)
}

// ratios are those of errors; where both are 0 nothing changed.
func ratios(of, to []float64) []float64 {
	out := make([]float64, len(of))
	for i := range of {
		out[i] = max(of[i], leastError) / max(to[i], leastError)
	}
	return out
}

// leastError is below every error of a measurement: simulated times without
// noise are predicted to the last bit, and a ratio to 0 is no number.
const leastError = 1e-9

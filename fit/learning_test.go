package fit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/stats"
)

func curveOf(t *testing.T, d *fit.Data, sizes []int, repeats int) *fit.Curve {
	t.Helper()
	c, err := fit.LearningCurve(d, fit.Defaults(), sizes, repeats, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func familyOf(t *testing.T, c *fit.Curve, f fit.Family) fit.FamilyCurve {
	t.Helper()
	i := slices.IndexFunc(c.Families, func(x fit.FamilyCurve) bool { return x.Family == f })
	if i < 0 {
		t.Fatalf("no %s among %d families", f, len(c.Families))
	}
	return c.Families[i]
}

// noisy multiplies every time by a factor of its own, exp(N(0, sd)).
func noisy(d *fit.Data, sd float64, seed uint64) *fit.Data {
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range d.Points {
		d.Points[i].Seconds *= math.Exp(sd * rng.NormFloat64())
	}
	return d
}

// draws are learning curves of simulated devices of other seeds, with a tenth of
// noise on every point and a hold-out drawn anew, so that what they agree on is
// no luck of one of them. spoil, if there is one, does what it likes with the
// points before they are learnt from.
func draws(t *testing.T, n uint64, spoil func(*fit.Data, fit.Options)) []*fit.Curve {
	t.Helper()
	var all []*fit.Curve
	for seed := uint64(1); seed <= n; seed++ {
		spec := fmt.Sprintf("1xbig+1xsmall,seed=%d", seed)
		// Only what is judged is measured: another op would take of the budget.
		_, recording := recorded(t, spec, time.Minute, op.KindAttnFwd, op.KindAttnBwd, op.KindGEMM)
		d, o := noisy(dataOf(t, recording), 0.1, seed), fit.Defaults()
		o.Seed = seed
		if spoil != nil {
			spoil(d, o)
		}
		c, err := fit.LearningCurve(d, o, nil, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !c.Simulated || c.Repeats != 1 || c.Seed != seed || c.Share != o.Share {
			t.Errorf("head: %+v", c)
		}
		coherent(t, c)
		all = append(all, c)
	}
	return all
}

// learnt are medians over draws of one family's curve.
type learnt struct{ median, p90, end float64 } // last over first, and the last median

func learntOf(t *testing.T, curves []*fit.Curve, name fit.Family) learnt {
	t.Helper()
	var median, p90, end []float64
	for _, c := range curves {
		f := familyOf(t, c, name)
		first, last := f.Steps[0], f.Steps[len(f.Steps)-1]
		if first.Outside <= last.Outside {
			t.Errorf("%s: %v of the predictions are outside the range of %d points, %v outside that of %d", name, first.Outside, first.Points, last.Outside, last.Points)
		}
		median, p90, end = append(median, last.Median.Mid/first.Median.Mid), append(p90, last.P90.Mid/first.P90.Mid), append(end, last.Median.Mid)
	}
	l := learnt{stats.Median(median), stats.Median(p90), stats.Median(end)}
	t.Logf("%s: %d draws, errors fall to %.2f (P90 %.2f) of what they were, to %.3f", name, len(curves), l.median, l.p90, l.end)
	return l
}

// falls says why errors do not fall as those of a sound learner, or nothing.
// Ten percent of noise on every point: a law of six points is far from the truth,
// one of all points is near it. What is left are the held-out points' own errors,
// the median of |N(0, 0.1)|, which is 0.067, and a little of the law's.
func (l learnt) falls() error {
	switch {
	case l.median > 0.85 || l.p90 > 0.85:
		return fmt.Errorf("the error does not fall: to %.2f, its P90 to %.2f of what it was", l.median, l.p90)
	case l.end < 0.055 || l.end > 0.095:
		return fmt.Errorf("a median error of %.3f at the end, the noise's is 0.067", l.end)
	}
	return nil
}

// The medians of seven draws: one by one, ratios from 0.43 to 0.90 were seen of
// attention and from 0.41 to 0.79 of GEMM, so that a single draw says little.
// Laws with two coefficients are as good with six points as that many held-out
// ones can tell, so they are not asked to fall.
func TestTheLearningCurveFalls(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	curves := draws(t, 7, nil)
	for _, name := range []fit.Family{fit.FamilyAttention, fit.FamilyGEMM} {
		if err := learntOf(t, curves, name).falls(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a sound learner shows, one that learns nothing does not: here of points
// whose times were exchanged among the fitted ones of their law.
func TestALearnerOfNothingDoesNotFall(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	curves := draws(t, 3, func(d *fit.Data, o fit.Options) {
		held := map[string]bool{}
		for _, p := range d.Held(o.Seed, o.Share) {
			held[p.Key] = true
		}
		exchange(d, held, o.Seed)
	})
	for _, name := range []fit.Family{fit.FamilyAttention, fit.FamilyGEMM} {
		if learntOf(t, curves, name).falls() == nil {
			t.Errorf("%s: passes for a learner", name)
		}
	}
}

// exchange deals the times of the points that are not held out anew, law by law.
func exchange(d *fit.Data, held map[string]bool, seed uint64) {
	byLaw := map[string][]int{}
	for i, p := range d.Points {
		if !held[p.Key] {
			law := fmt.Sprint(p.On, p.Shape.Kind(), p.Shape.Variant())
			byLaw[law] = append(byLaw[law], i)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, law := range slices.Sorted(maps.Keys(byLaw)) {
		at := byLaw[law]
		rng.Shuffle(len(at), func(i, j int) {
			d.Points[at[i]].Seconds, d.Points[at[j]].Seconds = d.Points[at[j]].Seconds, d.Points[at[i]].Seconds
		})
	}
}

// coherent looks for steps that are in no order.
func coherent(t *testing.T, c *fit.Curve) {
	t.Helper()
	for _, f := range c.Families {
		for i, s := range f.Steps {
			if !(s.Median.Lo <= s.Median.Mid && s.Median.Mid <= s.Median.Hi && s.P90.Lo <= s.P90.Mid && s.P90.Mid <= s.P90.Hi && s.Median.Mid <= s.P90.Mid) {
				t.Errorf("%s at %d points: %+v", f.Family, s.Points, s)
			}
			if i > 0 && s.Points <= f.Steps[i-1].Points {
				t.Errorf("%s: %d points after %d", f.Family, s.Points, f.Steps[i-1].Points)
			}
		}
	}
}

// Without noise the laws are of the simulator's own form: all that more points
// bring is nothing, and no trend is made of the last bits.
func TestALawThatIsRightIsFlat(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	_, recording := recorded(t, "1xbig,noise=0", time.Minute)
	f := familyOf(t, curveOf(t, dataOf(t, recording), nil, 3), fit.FamilyAttention)
	if f.Trend == fit.Falling || f.Steps[len(f.Steps)-1].Median.Mid > 1e-6 {
		t.Errorf("%s: %+v", f.Trend, f.Steps)
	}
}

// The last step of a law that is fitted to all its points is the law of Fit,
// judged as Fit judges it.
func TestTheCurveEndsAtTheFit(t *testing.T) {
	_, recording := recorded(t, "1xbig", time.Minute)
	d := dataOf(t, recording)
	all := d.Strata()
	d.Points = slices.DeleteFunc(d.Points, func(p fit.Point) bool {
		return p.Shape.Kind() != all[0].Op || p.Shape.Variant() != all[0].Variant
	})
	p := fitted(t, d)
	if len(p.Laws) != 1 {
		t.Fatalf("%d laws", len(p.Laws))
	}
	c := curveOf(t, d, nil, 4)
	f := c.Families[0]
	last, want := f.Steps[len(f.Steps)-1], p.Laws[0]
	if f.Laws != 1 || last.Points != want.Fit.Points+want.Fit.Outside || f.Held != want.Held.Points {
		t.Errorf("%d laws at %d points, %d held; the fit has %+v, %+v", f.Laws, last.Points, f.Held, want.Fit, want.Held)
	}
	// A law tells its errors to four digits.
	if m := last.Median; m.Lo != m.Mid || m.Hi != m.Mid || abs(m.Mid-want.Held.Median) > 1e-3*m.Mid {
		t.Errorf("median %+v, the fit's is %v", last.Median, want.Held.Median)
	}
}

// The same points give the same curve, in whatever order they were measured and
// however many laws are fitted at a time; another seed gives another.
func TestTheLearningCurveIsAFunction(t *testing.T) {
	_, recording := recorded(t, "1xbig", 20*time.Second)
	d := dataOf(t, recording)
	first, err := json.Marshal(curveOf(t, d, nil, 2))
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	again, _ := json.Marshal(curveOf(t, dataOf(t, recording), nil, 2))
	if !bytes.Equal(first, again) {
		t.Error("the same recording, another curve")
	}
	o := fit.Defaults()
	o.Seed = 2
	told, laws := 0, 0
	other, err := fit.LearningCurve(d, o, nil, 2, func(done, all int) {
		if told++; done != told {
			t.Errorf("call %d reports %d", told, done)
		}
		laws = all
	})
	if err != nil {
		t.Fatal(err)
	}
	if laws == 0 || told != laws {
		t.Errorf("%d of %d laws were reported", told, laws)
	}
	if data, _ := json.Marshal(other.Families); bytes.Contains(first, data) {
		t.Error("another seed, the same curve")
	}
	rng := rand.New(rand.NewPCG(1, 0))
	rng.Shuffle(len(d.Points), func(i, j int) { d.Points[i], d.Points[j] = d.Points[j], d.Points[i] })
	before := curveOf(t, dataOf(t, recording), []int{6}, 1)
	for i, f := range curveOf(t, d, []int{6}, 1).Families {
		was := before.Families[i]
		// Sums in another order differ in their last bits.
		if f.Laws != was.Laws || f.Held != was.Held || abs(f.Steps[0].Median.Mid-was.Steps[0].Median.Mid) > 1e-6 {
			t.Errorf("points in another order: %+v, was %+v", f, was)
		}
	}
}

func abs(x float64) float64 { return max(x, -x) }

// A point that is held out is fitted at no size: whatever its time, the laws
// stay, so the other points' errors do.
func TestHeldOutPointsAreNeverFitted(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	_, recording := recorded(t, "1xbig", time.Minute)
	clean, spoilt := dataOf(t, recording), dataOf(t, recording)
	held := map[string]bool{}
	for _, p := range clean.Held(fit.Defaults().Seed, fit.Defaults().Share) {
		held[p.Key] = true
	}
	for i := range spoilt.Points {
		if held[spoilt.Points[i].Key] {
			spoilt.Points[i].Seconds *= 1000
		}
	}
	// Every held-out point is off by log(1000) = 6.9 and its own small error.
	f := familyOf(t, curveOf(t, spoilt, nil, 2), fit.FamilyAttention)
	for _, s := range f.Steps {
		if abs(s.Median.Mid-6.9) > 0.2 {
			t.Errorf("%d points: median %v, want that of points 1000 times too slow: 6.9", s.Points, s.Median.Mid)
		}
	}
}

// A curve is of the same laws at every size; those with too few points are named.
func TestShortLawsAreLeftOutOfTheCurve(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	_, recording := recorded(t, "1xbig", time.Minute)
	d := dataOf(t, recording)
	whole := familyOf(t, curveOf(t, d, nil, 1), fit.FamilyGEMM)
	variant := d.Strata()[slices.IndexFunc(d.Strata(), func(s fit.Stratum) bool { return s.Op == "gemm" })].Variant
	kept := 0
	d.Points = slices.DeleteFunc(d.Points, func(p fit.Point) bool {
		if p.Shape.Kind() != "gemm" || p.Shape.Variant() != variant {
			return false
		}
		kept++
		return kept > 8
	})
	f := familyOf(t, curveOf(t, d, nil, 1), fit.FamilyGEMM)
	if f.Laws != whole.Laws-1 || len(f.LeftOut) != 1 || !strings.Contains(f.LeftOut[0], "points to fit, the curve needs") {
		t.Errorf("%d of %d laws, left out: %q", f.Laws, whole.Laws, f.LeftOut)
	}
	if len(f.Steps) != len(whole.Steps) {
		t.Errorf("%d steps, %d with the short law", len(whole.Steps), len(f.Steps))
	}
	// Explicit sizes ask for their largest of every law.
	c := curveOf(t, d, []int{6, whole.Steps[len(whole.Steps)-1].Points}, 1)
	if g := familyOf(t, c, fit.FamilyGEMM); len(g.Steps) != 2 || g.Laws != f.Laws || len(g.LeftOut) != 1 {
		t.Errorf("explicit sizes: %+v", g)
	}
}

func TestLearningCurveRefuses(t *testing.T) {
	_, recording := recorded(t, "1xbig", 30*time.Second)
	d := dataOf(t, recording)
	few := dataOf(t, recording)
	few.Points = few.Points[:5]
	for _, c := range []struct {
		d       *fit.Data
		share   float64
		sizes   []int
		repeats int
		want    string
	}{
		{d, 0, nil, 1, "hold-out share 0: want 0 < share < 1"},
		{d, 1, nil, 1, "hold-out share 1: want 0 < share < 1"},
		{d, 0.2, nil, 0, "repeats 0: want 1 or more"},
		{d, 0.2, []int{}, 1, "sizes: none"},
		{d, 0.2, []int{4, 8}, 1, "sizes [4 8]: want ascending numbers of points from 6 on"},
		{d, 0.2, []int{8, 8}, 1, "sizes [8 8]: want ascending"},
		{d, 0.2, []int{6, 5000}, 1, "it needs a law with 5000 points besides those held out, and the most are "},
		{few, 0.2, nil, 1, "it needs a law with 8 points besides those held out, and the most are "},
		{few, 0.2, nil, 1, "measure more: evenkeel calibrate --fresh --budget 10m"},
		{fit.NewData(), 0.2, nil, 1, "the most are 0 (no op measures time)"},
	} {
		got, err := fit.LearningCurve(c.d, fit.Options{Seed: 1, Share: c.share}, c.sizes, c.repeats, nil)
		if err == nil || got != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("share %v, sizes %v, repeats %d: got %v, want %s", c.share, c.sizes, c.repeats, err, c.want)
		}
	}
}

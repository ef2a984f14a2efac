package fit

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

func TestLadder(t *testing.T) {
	for most, want := range map[int][]int{
		8:  {6, 8},
		11: {6, 8, 11},
		12: {6, 8, 12},
		13: {6, 8, 13}, // 12 would say the same
		18: {6, 8, 12, 16, 18},
		70: {6, 8, 12, 16, 24, 32, 48, 70},
	} {
		if got := ladder(most); !slices.Equal(got, want) {
			t.Errorf("%d: got %v, want %v", most, got, want)
		}
	}
}

// learnersOf have so many points to fit each.
func learnersOf(counts ...int) []learner {
	var all []learner
	for _, n := range counts {
		all = append(all, learner{fitted: make([]Point, n)})
	}
	return all
}

func TestNeeded(t *testing.T) {
	for _, c := range []struct {
		of    []learner
		sizes []int
		want  int
	}{
		{learnersOf(11, 11, 11), nil, 8},
		{learnersOf(40, 40, 19), nil, 20}, // half of the median
		{learnersOf(41, 41, 19), nil, 21},
		{learnersOf(3, 3), nil, 8},
		{learnersOf(40, 40), []int{6, 12}, 12},
	} {
		if got := needed(c.of, c.sizes); got != c.want {
			t.Errorf("%d laws, sizes %v: got %d, want %d", len(c.of), c.sizes, got, c.want)
		}
	}
}

// Draws of one repeat contain each other, two repeats differ, and the order of
// the points stays.
func TestDrawsAreNested(t *testing.T) {
	l := learner{seed: 3}
	for i := range 40 {
		l.fitted = append(l.fitted, Point{Key: string(rune('a' + i)), Seconds: float64(i)})
	}
	same := 0
	for r := range 5 {
		var before []Point
		for _, n := range []int{6, 8, 12, 40} {
			got := l.draw(n, r)
			if len(got) != n || !slices.IsSortedFunc(got, func(a, b Point) int { return int(a.Seconds - b.Seconds) }) {
				t.Fatalf("%d of 40: %d points, out of order", n, len(got))
			}
			for _, p := range before {
				if !slices.ContainsFunc(got, func(q Point) bool { return q.Key == p.Key }) {
					t.Errorf("repeat %d: %q is in the smaller draw only", r, p.Key)
				}
			}
			before = got
		}
		if slices.EqualFunc(l.draw(6, r), l.draw(6, r+1), func(a, b Point) bool { return a.Key == b.Key }) {
			same++
		}
	}
	// 6 of 40 are drawn alike once in 3.8 million.
	if same > 0 {
		t.Errorf("%d repeats drew the same points", same)
	}
}

// examsOf are those of one law whose errors at a size are spread evenly around a
// scale, in every repeat shifted a little.
func examsOf(held, repeats int, scales ...float64) []exams {
	var e exams
	for _, s := range scales {
		var at []exam
		for r := range repeats {
			x := exam{outside: r}
			for k := range held {
				x.errs = append(x.errs, s*(0.5+float64(k)/float64(held-1))*(1+0.01*float64(r)))
			}
			at = append(at, x)
		}
		e = append(e, at)
	}
	return []exams{e}
}

func TestTrends(t *testing.T) {
	for _, c := range []struct {
		held   int
		sizes  []int
		scales []float64
		want   Trend
	}{
		{30, []int{6, 8, 12}, []float64{0.2, 0.15, 0.1}, Falling},
		{30, []int{6, 8, 12}, []float64{0.1, 0.1, 0.095}, Flat}, // less than a tenth
		{30, []int{6, 8, 12}, []float64{0.1, 0.1, 0.2}, Flat},   // it rises
		{19, []int{6, 8, 12}, []float64{0.2, 0.15, 0.1}, Unclear},
		{30, []int{6, 8}, []float64{0.2, 0.1}, Unclear}, // hardly more points
		{30, []int{6}, []float64{0.2}, Unclear},
		{30, []int{6, 12}, []float64{0, 0}, Flat},
	} {
		f := FamilyCurve{Trend: Unclear}
		f.steps(examsOf(c.held, 3, c.scales...), c.sizes, 3)
		if f.Trend != c.want || f.Held != c.held || len(f.Steps) != len(c.sizes) {
			t.Errorf("%v at %v, %d held: got %s (%+v), want %s", c.scales, c.sizes, c.held, f.Trend, f.Change, c.want)
		}
	}
}

// A fall that one of 31 held-out points makes alone is no trend, however well the
// repeats agree.
func TestATrendNeedsMoreThanALuckyHoldOut(t *testing.T) {
	before, after := make([]float64, 31), make([]float64, 31)
	for i := range before {
		before[i] = 0.05 + 0.01*float64(i%2)
		after[i] = before[i]
	}
	// 16 of 31 at 0.05 make the median; one point more below moves it from 0.06.
	before[0] = 0.07
	f := FamilyCurve{Trend: Unclear}
	f.steps([]exams{{{{errs: before}}, {{errs: after}}}}, []int{6, 12}, 1)
	if f.Change.Median.Mid > 0.9 || f.Trend != Unclear || f.Change.MedianUpper < 1 {
		t.Errorf("%s: %+v", f.Trend, f.Change)
	}
}

// The numbers of a step, by hand: errors 0.05 to 0.15 around 0.1 in the first
// repeat, 2 % larger in the third.
func TestStepNumbers(t *testing.T) {
	var f FamilyCurve
	f.steps(examsOf(21, 3, 0.2, 0.1), []int{6, 12}, 3)
	got, want := f.Steps[1], CurveStep{
		Points: 12, Median: Scatter{0.101, 0.1, 0.102}, P90: Scatter{0.14 * 1.01, 0.14, 0.14 * 1.02},
		Outside: 3. / 63, // 0, 1 and 2 of 21
	}
	for _, c := range [][2]float64{
		{got.Median.Mid, want.Median.Mid},
		{got.Median.Lo, want.Median.Lo},
		{got.Median.Hi, want.Median.Hi},
		{got.P90.Mid, want.P90.Mid},
		{got.P90.Lo, want.P90.Lo},
		{got.P90.Hi, want.P90.Hi},
		{got.Outside, want.Outside},
		{f.Change.Median.Mid, 0.5},
		{f.Change.P90.Hi, 0.5},
	} {
		if math.Abs(c[0]-c[1]) > 1e-12 {
			t.Errorf("got %v, want %v in %+v", c[0], c[1], got)
		}
	}
	if got.Points != 12 || f.Change.From != 6 || f.Change.To != 12 {
		t.Errorf("%+v, %+v", got, f.Change)
	}
}

// A law that predicts no time has no error in logarithms: it is left out by name,
// and the other laws' exams stay.
func TestALawWithoutPredictionsIsLeftOut(t *testing.T) {
	held := []Point{{Key: "a point", Shape: op.SendRecv{Message: op.Message{Group: 2, Bytes: 1 << 20}}, Seconds: 1e-3}}
	law := &costmodel.Law{Op: op.KindSendRecv, Curve: &costmodel.Curve{Form: costmodel.AlphaBeta, Pieces: []costmodel.Piece{{}}}}
	_, err := examine(law, held)
	if err == nil || err.Error() != "it predicts 0 s for a point" {
		t.Errorf("got %v", err)
	}
	law.Curve.Pieces[0].Alpha.Value = 2e-3
	e, err := examine(law, held)
	if err != nil || len(e.errs) != 1 || math.Abs(e.errs[0]-math.Ln2) > 1e-12 {
		t.Errorf("%v: %v, want log 2", err, e.errs)
	}
	c := &FamilyCurve{}
	of := []learner{{Stratum: Stratum{Op: op.KindNorm, On: "x"}}, {Stratum: Stratum{Op: op.KindRope, On: "x"}}}
	kept := c.pass(of, []result{{err: errors.New("why not")}, {exams: exams{{e}}}})
	if len(kept) != 1 || len(c.LeftOut) != 1 || !strings.HasSuffix(c.LeftOut[0], "norm on x: why not") {
		t.Errorf("kept %d, left out %q", len(kept), c.LeftOut)
	}
}

package fit

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"

	"github.com/evenkeel/evenkeel/internal/spelling"
)

// Split is a way of holding points out of a fit, by which a law's generalisation in one
// direction is tested (to unseen head counts, longer sequences, larger groups).
type Split struct {
	Name string
	Doc  string // which points are held out, for the user
	// held says which points of a stratum are held out; nil where the split does not
	// apply to the op.
	held func(k op.Kind, points []Point) func(Point) bool
	// ranks holds whole groups out instead: the largest of every library.
	ranks bool
}

// Splits lists them.
func Splits() []Split {
	return []Split{
		{Name: "interp", Doc: "a quarter of the shapes, at random, inside what was measured; of a collective a quarter of its sizes, the same ones in every library", held: func(k op.Kind, _ []Point) func(Point) bool {
			if FamilyOf(k) == FamilyCollective {
				return heldSize
			}
			return func(p Point) bool { return p.rank%4 == 0 }
		}},
		{Name: "heads", Doc: "head counts that are no power of two", held: func(k op.Kind, _ []Point) func(Point) bool {
			if FamilyOf(k) != FamilyAttention {
				return nil
			}
			return func(p Point) bool {
				h := int(costmodel.AxisOf("q_heads", p.Shape))
				return h&(h-1) != 0
			}
		}},
		{Name: "longer", Doc: "sequences 2 to 4 times longer than measured, rows of a GEMM likewise, messages up to 8 times larger", held: func(k op.Kind, points []Point) func(Point) bool {
			share := 0.25
			if FamilyOf(k) == FamilyCollective {
				share = 0.125
			}
			return beyondShare(points, share)
		}},
		{Name: "ranks", Doc: "collectives of the largest group, where two or more smaller ones were measured", ranks: true},
		{Name: "some-heads", Doc: "10, 20, 24, 40 and 96 heads, with others that are no power of two in the fit", held: func(k op.Kind, _ []Point) func(Point) bool {
			if FamilyOf(k) != FamilyAttention {
				return nil
			}
			return func(p Point) bool {
				return slices.Contains([]float64{10, 20, 24, 40, 96}, costmodel.AxisOf("q_heads", p.Shape))
			}
		}},
	}
}

// SplitsNamed finds splits by their names, separated by commas. The error for an unknown
// name lists the existing ones.
func SplitsNamed(names string) ([]Split, error) {
	var chosen []Split
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(Splits(), func(s Split) bool { return s.Name == name })
		if i < 0 {
			var all []string
			for _, s := range Splits() {
				all = append(all, s.Name)
			}
			return nil, fmt.Errorf("no way of holding points out is called %q%s; there are %s", name, spelling.Hint(name, all), strings.Join(all, ", "))
		}
		if slices.ContainsFunc(chosen, func(s Split) bool { return s.Name == name }) {
			return nil, fmt.Errorf("%s is there twice, and its laws would count twice; name it once", name)
		}
		chosen = append(chosen, Splits()[i])
	}
	return chosen, nil
}

// beyondShare holds out the points whose first axis is above the given share of its
// largest value.
func beyondShare(points []Point, share float64) func(Point) bool {
	first := func(p Point) float64 { return p.Shape.(op.Located).Coords()[0] }
	most := 0.0
	for _, p := range points {
		most = max(most, first(p))
	}
	return func(p Point) bool { return first(p) > 1.001*share*most }
}

// StudyRow says how well one form of law, fitted without them, predicts the points of a
// stratum that a split held out. Errors are |predicted/measured - 1|.
type StudyRow struct {
	On       string     `json:"on"`
	Op       op.Kind    `json:"op"`
	Variant  op.Variant `json:"variant"`
	Split    string     `json:"split"`
	Form     string     `json:"form"`
	Ours     bool       `json:"ours"` // this is the form that Fit uses
	Fitted   int        `json:"fitted"`
	Held     int        `json:"held"`
	MAPE     float64    `json:"mape"`
	Median   float64    `json:"median"`
	P95      float64    `json:"p95"`
	Coverage float64    `json:"coverage"` // share of the held-out points in the 90 % interval; of ours only

	Bands []StudyBand `json:"bands,omitempty"` // the held-out points by size; of ours only
}

// fewestToStudy is how many points either side must have to make a row. A
// collective's table has one point a size: a few sizes are what there is.
func fewestToStudy(k op.Kind) (fitted, held int) {
	if FamilyOf(k) == FamilyCollective {
		return fewestToFit, 2
	}
	return 10, 10
}

// Study fits the laws of every stratum to the points that a split leaves, and judges them
// and simpler forms on the points held out. Strata with too few points for a split are
// left out. report, unless nil, is called after each law with the number done and the total
// of all splits, of which a split by ranks counts as one.
//
// Errors: a law that cannot be fitted, or no stratum with enough points.
func Study(d *Data, splits []Split, report func(done, all int)) ([]StudyRow, error) {
	var rows []StudyRow
	tests, total := make([]studyTest, len(splits)), 0
	for i, split := range splits {
		tests[i] = d.studyTest(split)
		total += tests[i].laws()
	}
	done := 0
	for _, t := range tests {
		more, err := d.study(t, func() {
			if done++; report != nil {
				report(done, total)
			}
		})
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	if len(rows) == 0 {
		return nil, errors.New("no stratum has enough points to hold some out: import or measure more")
	}
	return rows, nil
}

// studyTest is what a split leaves to fit, and holds out.
type studyTest struct {
	split Split
	tasks []*task // none of a split by ranks
	held  map[*task][]Point
}

func (d *Data) studyTest(split Split) studyTest {
	x := studyTest{split: split, held: map[*task][]Point{}}
	if split.ranks {
		return x
	}
	for _, s := range d.Strata() {
		train, test := s.divide(split)
		if fitted, kept := fewestToStudy(s.Op); len(train) >= fitted && len(test) >= kept {
			t := &task{Stratum: s, points: train}
			x.tasks, x.held[t] = append(x.tasks, t), test
		}
	}
	return x
}

func (x studyTest) laws() int {
	if x.split.ranks {
		return 1
	}
	return len(x.tasks)
}

// study is Study of one split.
func (d *Data) study(x studyTest, ready func()) ([]StudyRow, error) {
	if x.split.ranks {
		defer ready()
		return d.studyRanks(x.split), nil
	}
	estimateEach(d, x.tasks, nil, ready)
	var rows []StudyRow
	for _, t := range x.tasks {
		if t.err != nil {
			return nil, fmt.Errorf("%s, %s: %w", t.Stratum, x.split.Name, t.err)
		}
		rows = append(rows, t.judged(d, x.split, x.held[t])...)
	}
	return rows, nil
}

// divide keeps the points from a fit that a split holds out; all are fitted
// where the split asks nothing of the op.
func (s Stratum) divide(split Split) (train, test []Point) {
	points := slices.Clone(s.Points)
	for i := range points {
		points[i].rank = rank(1, points[i].Key)
	}
	held := split.held(s.Op, points)
	for _, p := range points {
		if held != nil && held(p) {
			test = append(test, p)
		} else {
			train = append(train, p)
		}
	}
	return train, test
}

// judged are the rows of a fitted task: our law, its core alone, and simpler forms.
func (t *task) judged(d *Data, split Split, test []Point) []StudyRow {
	row := StudyRow{On: t.On, Op: t.Op, Variant: t.Variant, Split: split.Name, Fitted: len(t.points), Held: len(test)}
	rows := []StudyRow{row.ours(t.law, test)}
	if t.law.Correction != nil {
		body := *t.law
		body.Correction = nil
		core := row
		core.Form = body.Form()
		core.judge(test, func(s op.Shape) float64 { return float64(body.Seconds(s)) })
		rows = append(rows, core)
	}
	return append(rows, row.simpler(d.device(t.On), t.points, test)...)
}

// ours is the row of our law.
func (r StudyRow) ours(law *costmodel.Law, test []Point) StudyRow {
	r.Form, r.Ours = law.Form(), true
	r.judge(test, func(s op.Shape) float64 { return float64(law.Seconds(s)) })
	r.Coverage, r.Bands = coverage(law, test), bandsStudied(law, test)
	return r
}

// simpler are the rows of simpler forms, fitted to the same points.
func (r StudyRow) simpler(dev op.DeviceType, train, test []Point) []StudyRow {
	var rows []StudyRow
	for _, f := range simpler(dev, r.Op) {
		predict, err := f.fit(train)
		if err != nil {
			continue
		}
		own := r
		own.Form = f.name
		own.judge(test, predict)
		rows = append(rows, own)
	}
	return rows
}

func (r *StudyRow) judge(test []Point, predict func(op.Shape) float64) {
	errs := make([]float64, len(test))
	for i, p := range test {
		errs[i] = math.Abs(predict(p.Shape)/p.Seconds - 1)
		r.MAPE += errs[i] / float64(len(test))
	}
	r.Median, r.P95 = stats.Median(errs), stats.Quantile(errs, 0.95)
}

func coverage(law *costmodel.Law, test []Point) float64 {
	in := 0.0
	for _, p := range test {
		e := law.Predict(p.Shape)
		if p.Seconds >= float64(e.Lo) && p.Seconds <= float64(e.Hi) {
			in++
		}
	}
	return in / float64(len(test))
}

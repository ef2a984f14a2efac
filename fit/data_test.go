package fit

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/keyed"
)

func TestVisitsThatDisagreeAreSettledByTheFaster(t *testing.T) {
	for _, c := range []struct {
		visits []float64
		want   float64
	}{
		{[]float64{1}, 1},
		{[]float64{1, 1.02}, 1.01}, // they agree: the median
		{[]float64{1.02, 1}, 1.01},
		{[]float64{1, 1.5}, 1}, // the slower was disturbed
		{[]float64{1.5, 1}, 1},
		{[]float64{3, 1, 1.04}, 1.02},
	} {
		if got := settle(c.visits); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v: got %v, want %v", c.visits, got, c.want)
		}
	}
}

// recordingOn is the text of one on cpu:1, with a header of a backend.
func recordingOn(backend string, lines ...string) io.Reader {
	header := fmt.Sprintf(`{"schema":"evenkeel.recording/v1","tool":"evenkeel 0.1.0","created":"2026-01-31T12:00:00Z","backend":%q,"simulated":false,"fingerprint":"0123456789abcdef","seed":3,`+
		`"machine":{"host":"box","os":"linux","cpu":"Example CPU","cores":2,"l1_data_bytes":32768,"l2_bytes":1048576,"l3_bytes":0,"memory_bytes":8589934592},`+
		`"devices":[{"name":"cpu:1","model":"Example CPU","stack":"go1.26","fingerprint":"aa","parallel":1,"memory_bytes":1073741824}],"groups":[],`+
		`"protocol":{"min_samples":10,"min_samples_long":5,"long_s":0.1,"max_samples":200,"noise":0.005,"min_sample_s":0.0005,"point_time_s":1,"wait_limit":0.1,"max_discards":6},"notes":[]}`, backend)
	return strings.NewReader(strings.Join(append([]string{header}, lines...), "\n") + "\n")
}

// rowSpot and pointLine are a row-wise op's place and a line about it.
func rowSpot(kind string, tokens int) string {
	return fmt.Sprintf(`"on":"cpu:1","op":%q,"shape":{"tokens":%d,"width":512,"dtype":"f32"}`, kind, tokens)
}

func pointLine(t, spot, rest string) string {
	return keyed.Line("0123456789abcdef", fmt.Sprintf(`{"t":%q,"key":"k",%s,%s,"guard":{"wait_share":0},"at":"2026-01-31T12:00:00Z","elapsed_s":0.5}`, t, spot, rest))
}

// What has no law though one was to be had is named, with the way to it; a point
// counts as disturbed where no visit was undisturbed.
func TestWhatWasNotMeasuredIsNamed(t *testing.T) {
	const times, disturbed = `"times_s":[1e-5,1.1e-5],"inner":1,"stop":"noise"`, `"times_s":[2e-5,2e-5],"inner":1,"stop":"noise","disturbed":true`
	d := NewData()
	cutOff := `"on":"cpu:1","op":"adamw","shape":{"params":64}`
	if err := d.Add("x.rec.jsonl", recordingOn(
		"cpu",
		fmt.Sprintf(`{"t":"schedule","budget_s":60,"points":[{%s},{%s},{%s},{%s},{%s}],"canaries":[]}`, rowSpot("norm", 64), rowSpot("norm", 128), rowSpot("rope", 64), rowSpot("swiglu", 64), cutOff),
		pointLine("point", rowSpot("gelu", 64), `"class":"too_long","error":"no time"`),
		pointLine("point", cutOff, `"class":"cut","error":"no answer"`),
		pointLine("point", rowSpot("norm", 64), disturbed),
		pointLine("point", rowSpot("norm", 128), disturbed),
		pointLine("point", rowSpot("rope", 64), `"class":"failed","error":"broken"`),
		pointLine("again", rowSpot("norm", 64), times),
		pointLine("again", rowSpot("norm", 128), disturbed),
	)); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"2 points could not be measured; the recording holds the reasons",
		"gelu (f32) on cpu:1: no law, for its calls are long and the budget had no time for them; measure for longer: evenkeel calibrate --fresh --budget 10m",
		"adamw (f32) on cpu:1: no law, for its workers did not answer and the budget had no time to wait for them, or to try more; wait longer: evenkeel calibrate --fresh --budget 10m",
		"swiglu (f32) on cpu:1: no law, for the budget was spent before its first point; the command that began the recording goes on with a longer --budget, such as 10m",
		"1 of 2 points were measured while other processes held the cores: errors are larger than on a quiet machine",
	}
	if got := d.warnings(); !slices.Equal(got, want) {
		t.Errorf("warnings:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// A longer recording beside it has what it lacks.
	if err := d.Add("y.rec.jsonl", recordingOn("cpu", pointLine("point", rowSpot("gelu", 64), times), pointLine("point", rowSpot("swiglu", 64), times), pointLine("point", cutOff, times))); err != nil {
		t.Fatal(err)
	}
	if got := d.warnings(); slices.ContainsFunc(got, func(w string) bool { return strings.Contains(w, "no law") }) {
		t.Errorf("with all measured: %q", got)
	}
}

// A line that stands there twice, in one recording or in two, tells of one visit, and this is
// said. Two visits never begin in the same moment; of imported calls that is not known, and a
// recording's own count, but not those of another that was made from the same file.
func TestTheSameLineCountsOnce(t *testing.T) {
	const times = `"times_s":[1e-5,1.1e-5],"inner":1,"stop":"noise"`
	first, again := pointLine("point", rowSpot("norm", 64), times), pointLine("again", rowSpot("norm", 64), times)
	canary := pointLine("canary", rowSpot("norm", 64), times)
	for backend, want := range map[string]struct{ visits, repeats, twice int }{"cpu": {2, 1, 6}, "import:kineto": {3, 2, 4}} {
		d := NewData()
		for _, lines := range [][]string{{first, again, again, canary, canary}, {first, again, canary, canary}} {
			if err := d.Add("x.rec.jsonl", recordingOn(backend, lines...)); err != nil {
				t.Fatal(err)
			}
		}
		if len(d.Points[0].visits) != want.visits || d.Drift[0].Repeats() != want.repeats || d.copies.Lines != want.twice {
			t.Errorf("%s: %d visits, %d repeats, %d twice, want %+v", backend, len(d.Points[0].visits), d.Drift[0].Repeats(), d.copies.Lines, want)
		}
		if said := fmt.Sprintf("%d lines of the recordings stood", want.twice); !slices.ContainsFunc(d.warnings(), func(w string) bool { return strings.HasPrefix(w, said) }) {
			t.Errorf("%s: warnings %q", backend, d.warnings())
		}
	}
}

// Recordings that disagree about the points that they share are named, and what differs
// within one is noise: the two are taken together, and errors on such points are as small as
// those on others.
func TestRecordingsThatContradictAreNamed(t *testing.T) {
	lines := func(factors ...float64) []string {
		var all []string
		for _, f := range factors {
			for i := range 6 {
				all = append(all, pointLine("point", rowSpot("norm", 64<<i), fmt.Sprintf(`"times_s":[%g],"inner":1,"stop":"noise"`, f*1e-5*float64(i+1))))
			}
		}
		return all
	}
	for _, backend := range []string{"cpu", "import:table"} {
		for _, c := range []struct {
			name       string
			recordings [][]string
			want       string
		}{
			{"twice as long", [][]string{lines(1), lines(2)}, "a.rec.jsonl and b.rec.jsonl contradict each other: in the second norm on cpu:1 takes typically 2 times as long (6 points): laws of both describe neither; see what differs, and leave out what does not hold: evenkeel check b.rec.jsonl --drift-from a.rec.jsonl"},
			{"all visits of both count", [][]string{lines(1, 3, 1.01), lines(2, 1.02, 2.01)}, "a.rec.jsonl and b.rec.jsonl contradict each other: in the second norm on cpu:1 takes typically 1.98 times as long (6 points)"},
			{"in one recording", [][]string{lines(1, 1.9)}, ""},
			{"a fifth slower", [][]string{lines(1), lines(1.2)}, ""},
		} {
			d := NewData()
			for i, r := range c.recordings {
				if err := d.Add(string(rune('a'+i))+".rec.jsonl", recordingOn(backend, r...)); err != nil {
					t.Fatal(err)
				}
			}
			got := d.warnings()
			if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], c.want)) {
				t.Errorf("%s, %s: %q, want %q", backend, c.name, got, c.want)
			}
		}
	}
}

// Drift is told from the scatter of visits, which a copied line would seem to lessen.
func TestTheSameLineIsOneVisitOfARun(t *testing.T) {
	line := func(kind, seconds string) string {
		return pointLine(kind, rowSpot("norm", 64), fmt.Sprintf(`"times_s":[%s],"inner":1,"stop":"noise"`, seconds))
	}
	run, err := ReadRun("x.rec.jsonl", recordingOn("cpu", line("point", "1e-5"), line("canary", "1.1e-5"), line("canary", "1.1e-5"), line("canary", "1.2e-5")))
	if err != nil {
		t.Fatal(err)
	}
	if got := run.spots[run.order[0]].times; !slices.Equal(got, []float64{1e-5, 1.1e-5, 1.2e-5}) {
		t.Errorf("visits %v", got)
	}
	if !strings.HasPrefix(run.Copied, "1 line of x.rec.jsonl stood there already") {
		t.Errorf("said %q", run.Copied)
	}
}

// Too few points for a law are named; who measured them can measure more, who read
// them from a file cannot.
func TestTooFewPointsAreNamed(t *testing.T) {
	var lines []string
	for i := range 12 {
		lines = append(lines, pointLine("point", rowSpot("gelu", 64+i), fmt.Sprintf(`"times_s":[%de-6],"inner":1,"stop":"noise"`, 64+i)))
	}
	for i := range 3 {
		lines = append(lines, pointLine("point", rowSpot("norm", 64+i), `"times_s":[1e-5],"inner":1,"stop":"noise"`))
	}
	const few = "norm (f32) on cpu:1: 3 points to fit, too few for a law (want 6)"
	for backend, want := range map[string]string{
		"cpu":          few + "; a longer calibration adds points: evenkeel calibrate --fresh --budget 10m",
		"import:table": few,
	} {
		d := NewData()
		if err := d.Add("x.rec.jsonl", recordingOn(backend, lines...)); err != nil {
			t.Fatal(err)
		}
		p, err := Fit(d, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(p.Warnings, want) {
			t.Errorf("%s: no warning %q: %q", backend, want, p.Warnings)
		}
	}
}

// Who waits is told how many laws there are before the first is done, and of each.
func TestFitReportsItsLaws(t *testing.T) {
	var lines []string
	for i := range 8 {
		for _, kind := range []string{"gelu", "norm"} {
			lines = append(lines, pointLine("point", rowSpot(kind, 64+i), fmt.Sprintf(`"times_s":[%de-6],"inner":1,"stop":"noise"`, 64+i)))
		}
	}
	d := NewData()
	if err := d.Add("x.rec.jsonl", recordingOn("cpu", lines...)); err != nil {
		t.Fatal(err)
	}
	var told []string
	if _, err := Fit(d, Options{Report: func(done, all int) { told = append(told, fmt.Sprint(done, "/", all)) }}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(told, " "); got != "0/2 1/2 2/2" {
		t.Errorf("reports %s", got)
	}
}

// As many points as a law needs are not enough where they are of several ops: which has how
// many is said.
func TestNoLawSaysWhatThereIsMostOf(t *testing.T) {
	var lines []string
	for i, kind := range []string{"gelu", "norm", "norm", "norm", "rope", "rope"} {
		lines = append(lines, pointLine("point", rowSpot(kind, 64+i), `"times_s":[1e-5],"inner":1,"stop":"noise"`))
	}
	const most = "from 6 points: a law needs 6 of one op in one variant on one device or group, and the most are 3, of norm (f32) on cpu:1; "
	const imported = "those of cpu:1 were imported, into x.rec.jsonl (table): import more of them: evenkeel import --from table"
	for backends, want := range map[string]string{
		"cpu": measureMore, "import:table": imported, "import:table import:table": imported, "import:table cpu": measureMore,
	} {
		d := NewData()
		for _, backend := range strings.Fields(backends) {
			if err := d.Add("x.rec.jsonl", recordingOn(backend, lines...)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Fit(d, Options{}); err == nil || !strings.HasSuffix(err.Error(), most+want) {
			t.Errorf("%s: got %v, want ... %s", backends, err, most+want)
		}
		if _, err := LearningCurve(d, Options{Share: 0.2}, nil, 1, nil); err == nil || strings.Contains(err.Error(), "evenkeel import --from table") != (want == imported) {
			t.Errorf("%s: learning curve: %v", backends, err)
		}
	}
}

// A profiler's trace has thousands of calls of one shape: they are settled once, in a time
// that grows with their number and not with its square, by which these would take an hour.
func TestManyVisitsOfAPointAreSettledOnce(t *testing.T) {
	sequential(t)
	lines := make([]string, 400000)
	for i := range lines {
		lines[i] = pointLine("point", rowSpot("norm", 64), fmt.Sprintf(`"times_s":[%g],"inner":1`, 1e-5*(1+float64(i%7)/100)))
	}
	d := NewData()
	if err := d.Add("x.rec.jsonl", recordingOn("import:kineto", lines...)); err != nil {
		t.Fatal(err)
	}
	if len(d.Points) != 1 || len(d.Points[0].visits) != len(lines) || math.Abs(d.Points[0].Seconds-1.03e-5) > 1e-12 {
		t.Errorf("%d points, %d visits, %v s", len(d.Points), len(d.Points[0].visits), d.Points[0].Seconds)
	}
}

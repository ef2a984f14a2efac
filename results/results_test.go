package results

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/solver"
)

var update = flag.Bool("update", false, "write the golden files anew; commit the changes only if you understand and want them")

// rendering is one thing that results prints, of a made-up document.
type rendering struct {
	name  string
	print func(io.Writer) error
}

func renderings() []rendering {
	return []rendering{
		{"profile", func(w io.Writer) error { return Profile(w, testProfile()) }},
		{"facts", func(w io.Writer) error { return Profile(w, factsProfile()) }},
		{"coefficients", func(w io.Writer) error { return Coefficients(w, testProfile()) }},
		{"report", func(w io.Writer) error { return Report(w, testReport(30)) }},
		{"recording", func(w io.Writer) error { return Recording(w, testRecording()) }},
		{"plan", func(w io.Writer) error { return Plan(w, testPlan()) }},
		{"explain", func(w io.Writer) error { return Explain(w, testPlan()) }},
	}
}

func TestGolden(t *testing.T) {
	for _, r := range renderings() {
		t.Run(r.name, func(t *testing.T) {
			var buf bytes.Buffer
			if err := r.print(&buf); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", r.name+".golden")
			if *update {
				if err := os.WriteFile(path, buf.Bytes(), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), buf.String()); diff != "" {
				t.Errorf("differs from %s (go test -update writes it anew):\n%s", path, diff)
			}
		})
	}
}

// TestLayout holds what every rendering promises: the stamp on its first line,
// ASCII, no line beyond Width or with trailing spaces.
func TestLayout(t *testing.T) {
	for _, r := range renderings() {
		var buf bytes.Buffer
		if err := r.print(&buf); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(buf.String(), "\n"), "\n")
		if !strings.Contains(lines[0], "SIMULATED") {
			t.Errorf("%s: the first line does not say SIMULATED: %q", r.name, lines[0])
		}
		for i, line := range lines {
			if len(line) > Width {
				t.Errorf("%s:%d: %d columns: %q", r.name, i+1, len(line), line)
			}
			if strings.TrimRight(line, " ") != line || strings.ContainsFunc(line, func(c rune) bool { return c > 126 }) {
				t.Errorf("%s:%d: trailing space or no ASCII: %q", r.name, i+1, line)
			}
			if strings.Contains(line, "NaN") || strings.Contains(line, "Inf") {
				t.Errorf("%s:%d: prints a number that is none: %q", r.name, i+1, line)
			}
		}
	}
}

// failAfter takes n bytes and then fails, as a full disk or closed pipe does.
type failAfter struct{ n int }

var errFull = errors.New("full")

func (f *failAfter) Write(b []byte) (int, error) {
	if f.n -= len(b); f.n < 0 {
		return 0, errFull
	}
	return len(b), nil
}

func TestWriteErrorsComeBack(t *testing.T) {
	for _, r := range renderings() {
		for _, n := range []int{0, 100, 700} {
			if err := r.print(&failAfter{n}); !errors.Is(err, errFull) {
				t.Errorf("%s: after %d bytes: got %v, want the writer's error", r.name, n, err)
			}
		}
	}
}

func TestMeasuredIsNotCalledSimulated(t *testing.T) {
	profile, report, recording := testProfile(), testReport(3), testRecording()
	profile.Simulated, profile.Warnings, report.Simulated, recording.Header.Simulated = false, nil, false, false
	for name, print := range map[string]func(io.Writer) error{
		"profile":      func(w io.Writer) error { return Profile(w, profile) },
		"coefficients": func(w io.Writer) error { return Coefficients(w, profile) },
		"report":       func(w io.Writer) error { return Report(w, report) },
		"recording":    func(w io.Writer) error { return Recording(w, recording) },
	} {
		var buf bytes.Buffer
		if err := print(&buf); err != nil {
			t.Fatal(err)
		}
		if s := buf.String(); !strings.HasPrefix(s, "MEASURED") || strings.Contains(strings.ToLower(s), "simulated") {
			t.Errorf("%s of a measured document:\n%s", name, s)
		}
	}
}

func TestEmptyDocuments(t *testing.T) {
	for name, print := range map[string]func(io.Writer) error{
		"profile":      func(w io.Writer) error { return Profile(w, &costmodel.Profile{}) },
		"coefficients": func(w io.Writer) error { return Coefficients(w, &costmodel.Profile{}) },
		"report":       func(w io.Writer) error { return Report(w, &fit.Report{}) },
		"recording":    func(w io.Writer) error { return Recording(w, &RecordingSummary{}) },
	} {
		var buf bytes.Buffer
		if err := print(&buf); err != nil || buf.Len() == 0 {
			t.Errorf("%s: %v, %d bytes", name, err, buf.Len())
		}
	}
}

// TestNumbersThatAreNone: NaN and infinities reach the page as "-" and never
// panic, wherever a document may hold them.
func TestNumbersThatAreNone(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		p := testProfile()
		for i := range p.Laws {
			l := &p.Laws[i]
			l.Held = costmodel.FitError{Points: 30, Median: bad, P90: bad, P95: bad, Bias: bad, Coverage: bad}
			l.Spread = costmodel.Spread{Lo: bad, Hi: bad}
			l.Range[0].Max = bad
			if l.Linear != nil {
				l.Linear.Launch = costmodel.Coef{Value: bad, Lo: bad, Hi: bad}
				l.Linear.PerFLOP = l.Linear.Launch
			}
		}
		r := testReport(2)
		r.Pairs[0].Measured, r.Rows[0].Median, r.Rows[0].P90Upper = bad, bad, bad
		var buf bytes.Buffer
		for _, err := range []error{Profile(&buf, p), Coefficients(&buf, p), Report(&buf, r)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if s := buf.String(); strings.Contains(s, "NaN") || strings.Contains(s, "Inf") {
			t.Errorf("%v was printed:\n%s", bad, s)
		}
	}
}

func TestFootnotesAreNumberedOnce(t *testing.T) {
	var n notes
	if a, b, c := n.mark("x"), n.mark("y"), n.mark("x"); a != " (1)" || b != " (2)" || c != " (1)" {
		t.Errorf("marks %q %q %q", a, b, c)
	}
	var buf bytes.Buffer
	p := &printer{w: &buf}
	n.render(p)
	if buf.String() != "\n(1) x\n(2) y\n" {
		t.Errorf("footnotes %q", buf.String())
	}
}

// TestFootnotesEndInACommand: what is wrong with a law comes with what mends it.
func TestFootnotesEndInACommand(t *testing.T) {
	var n notes
	for i := range testProfile().Laws {
		lawMarks(&n, &testProfile().Laws[i], true, false)
	}
	for _, c := range []fit.Verdict{fit.Insufficient, fit.Pass} {
		rowVerdict(&n, fit.Row{Verdict: c, FitError: costmodel.FitError{Outside: 2}}, 1, false)
	}
	if len(n.texts) < 6 {
		t.Fatalf("only %d footnotes: %q", len(n.texts), n.texts)
	}
	for _, text := range n.texts {
		i := strings.LastIndex(text, ": evenkeel calibrate")
		if i < 0 || strings.Contains(text[i+2:], ":") {
			t.Errorf("does not end in a command: %q", text)
		}
	}
}

func TestFormats(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{signed(0.031), "+3.1 %"},
		{signed(-0.25), "-25 %"},
		{signed(-1e-9), "+0.0 %"},
		{signed(math.NaN()), "-"},
		{percent(0.5, 0), "-"},
		{number(1.2345e-10), "1.23e-10"},
		{number(0), "0"},
		{number(12.345), "12.3"},
		{number(-6046.3), "-6046"},
		{number(2.5e7), "2.50e+07"},
		{peak(costmodel.Memory{States: 3 << 20, Capacity: 8 << 20}), "3 MiB of 8 MiB"},
		{interval(costmodel.Spread{Lo: 0.93, Hi: 1.08}), "-7.0..+8.0 %"},
		{span(costmodel.AxisRange{Axis: "q_len", Min: 64, Max: 2048}), "q_len 64-2k"},
		{span(costmodel.AxisRange{Axis: "bytes", Min: 4096, Max: 1 << 30}), "bytes 4KiB-1GiB"},
		{span(costmodel.AxisRange{Axis: "q_heads", Min: 8, Max: 8}), "q_heads 8"},
		{span(costmodel.AxisRange{Axis: "params", Min: 1e6, Max: 2e9}), "params 1M-2G"},
		{length(25019), "24.4k"},
		{length(8191), "8191"},
		{length(3 << 20), "3M"},
		{length(2.5 * (1 << 20)), "2560k"},
		{length(2621441), "2.5M"},
		{bar(0.5, 10, '#', '.'), "#####....."},
		{bar(7, 4, '#', '.'), "####"},
		{bar(math.NaN(), 4, '#', '.'), "...."},
		{rate(1e-10), "10 GB/s"},
		{rate(0), "-"},
		{peak(costmodel.Memory{States: 3 << 30, Capacity: 8 << 30}), "3.0 of 8.0 GiB"},
		{strings.Join(wrap("aa bb cccccc d", 5), "|"), "aa bb|cccccc|d"},
		{plural(1, "law") + plural(2, "law"), "1 law2 laws"},
		{lawTitle(&costmodel.Law{Op: op.KindSendRecv}), "send_recv"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// TestHistogramCountsEveryPoint: bins are half open and the ends catch the rest.
func TestHistogramCountsEveryPoint(t *testing.T) {
	// Bin b is centred on 5 % times (b-4); 0.0249 and -0.025 are in the middle one.
	got := binned([]float64{-9, -0.025, 0, 0.0249, 0.0251, 0.1, 9, math.MaxFloat64}, 0.05)
	if want := [bins]int{1, 0, 0, 0, 3, 1, 1, 0, 2}; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestHistogramFitsItsErrors: 19 of 20 errors lie within the inner bins.
func TestHistogramFitsItsErrors(t *testing.T) {
	for worst, want := range map[float64]float64{1e-6: 0.005, 0.02: 0.005, 0.021: 0.01, 0.2: 0.05, 0.4: 0.1, 50: 0.5} {
		if got := binWidth([]float64{0, -worst, worst, worst}); got != want {
			t.Errorf("errors up to %v: bins of %v, want %v", worst, got, want)
		}
	}
	for b, want := range map[int]string{0: "<-1.8 %", 3: "-0.5 %", 4: "0 %", 8: ">+1.8 %"} {
		if got := binTitle(b, 0.005); got != want {
			t.Errorf("bin %d: %q, want %q", b, got, want)
		}
	}
}

// TestProfileWithoutLaws: that nothing can be predicted is said, and no law is
// called borrowed or held out.
func TestProfileWithoutLaws(t *testing.T) {
	d := testProfile()
	d.Simulated, d.Laws, d.Warnings = false, nil, nil
	var b strings.Builder
	if err := Profile(&b, d); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	if !strings.HasPrefix(got, "MEASURED profile: 0 laws, 2 device types and 1 group") || !strings.Contains(got, "\nit holds no laws, so nothing can be predicted from it;") ||
		strings.Contains(got, "held out") || strings.Contains(got, "\n\n\n") {
		t.Errorf("%s", got)
	}
}

// A law keeps the fewest points that it can be fitted to, so of few points less is held
// out than was asked for: that is said, and of how many laws.
func TestHoldOutThatLeavesTooFewToFit(t *testing.T) {
	d := &costmodel.Profile{Holdout: costmodel.Holdout{Seed: 1, Share: 0.5}, Laws: []costmodel.Law{
		{Fit: costmodel.FitError{Points: 8}, Held: costmodel.FitError{Points: 6, Outside: 2}},
		{Fit: costmodel.FitError{Points: 6}, Held: costmodel.FitError{Points: 4}},
		{Assumed: "no point was measured"},
	}}
	var b strings.Builder
	profileHead(&printer{w: &b}, d)
	if want := "held out before the fit: 50 % of the points of every law (seed 1), fewer of the 1 law that this would leave fewer than"; !strings.Contains(b.String(), want) {
		t.Errorf("%s: want %q", &b, want)
	}
	d.Laws = d.Laws[:1]
	if got := heldFewer(d); got != "" {
		t.Errorf("half of 16 points: %q", got)
	}
}

// That no law was fitted to points is said only of those of which it is known.
func TestReportsSayWhatMayHaveBeenFitted(t *testing.T) {
	r := &fit.Report{Pairs: make([]fit.Pair, 3)}
	for doubtful, want := range []string{"3 points that no law was fitted to", "3 points, to 1 of which laws may have been fitted", "3 points, to 2 of which laws may have been fitted", "3 points, to all of which laws may have been fitted"} {
		if r.Doubtful = doubtful; unfitted(r) != want {
			t.Errorf("%d: %q, want %q", doubtful, unfitted(r), want)
		}
	}
}

// TestOneIsNoPlural: what may be one is printed as one.
func TestOneIsNoPlural(t *testing.T) {
	var b strings.Builder
	d := &solver.Plan{}
	d.Job.Model.Layers, d.Job.Model.QHeads, d.Job.Model.KVHeads, d.Job.RingBuffers = 1, 16, 1, 1
	planHead(&printer{w: &b}, d)
	for _, want := range []string{"1 layer, ", "16 query and 1 KV head of", "1 ring buffer,"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in %s", want, b.String())
		}
	}
	if got, want := tooFew(1), fmt.Sprintf("insufficient: 1 point, a verdict needs %d", fit.MinPoints); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := familyLine([]*costmodel.Law{{Fit: costmodel.FitError{Points: 1}}}); got != "1 law, 1 point fitted, 0 held out: error unknown" {
		t.Error(got)
	}
}

// What others measured nobody can measure more of here.
func TestFootnotesOfImportedPointsAskForMoreOfThem(t *testing.T) {
	var n notes
	for _, l := range testProfile().Laws {
		lawMarks(&n, &l, true, true)
	}
	rowVerdict(&n, fit.Row{Verdict: fit.Insufficient, FitError: costmodel.FitError{Outside: 2}}, 1, true)
	if len(n.texts) < 6 {
		t.Fatalf("only %d footnotes: %q", len(n.texts), n.texts)
	}
	for _, text := range n.texts {
		if !strings.HasSuffix(text, "its points were imported: import more of them: evenkeel import") {
			t.Errorf("%q", text)
		}
	}
}

package results

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
)

// strataReport has strata of every verdict, a part, a floor, a long list and
// drift of every verdict.
func strataReport() *fit.Report {
	r := testReport(30)
	long := fit.StratumBound{MAPE: 0.05, P95: 0.15, Bias: 0.03}
	reason := "what long-context plans rest on"
	r.Strata = []fit.CheckedStratum{
		{
			Family: fit.FamilyAttention, On: "h100_sxm", Op: op.KindAttnFwd, Band: "4k-16k", Source: costmodel.Interpolated, Points: 60, Median: 0.01, MAPE: 0.013, P95: 0.04, Bias: -0.004, Coverage: 0.9,
			Upper: &fit.StratumUpper{Median: 0.012, MAPE: 0.015, P95: 0.06, Bias: 0.008, Coverage: 0.95}, Least: 0.7, Floor: &fit.StratumFloor{Points: 60, MAPE: 0.004, P95: 0.01}, LimitID: "attention-long", Limit: long, Reason: reason, Verdict: fit.Pass,
		},
		{
			Family: fit.FamilyAttention, On: "h100_sxm", Op: op.KindAttnBwd, Band: ">=64k", Source: costmodel.Interpolated, Points: 44, Median: 0.06, MAPE: 0.071, P95: 0.2, Bias: 0.05, Coverage: 0.5,
			Upper: &fit.StratumUpper{Median: 0.08, MAPE: 0.09, P95: 0.24, Bias: 0.06, Coverage: 0.622}, Least: 0.7, LimitID: "attention-long", Limit: long, Reason: reason, Verdict: fit.Fail,
			Broken: []string{"MAPE 7.10 %, upper bound 9.00 %, limit 5.00 %", "|bias| 5.00 %, upper bound 6.00 %, limit 3.00 %", "inside the 90 % interval 50.00 %, upper bound 62.20 %, at least 70.00 %: it is too narrow for these errors"},
		},
		{
			Family: fit.FamilyAttention, On: "h100_sxm", Op: op.KindAttnBwd, Band: ">=64k", Source: costmodel.Interpolated, Part: true, Variant: op.Variant{Mask: op.Diag, HeadDim: 128, DType: op.BF16}, Points: 22, Median: 0.06, MAPE: 0.02, P95: 0.05, Bias: 0.01, Coverage: 0.9,
			Upper: &fit.StratumUpper{Median: 0.02, MAPE: 0.03, P95: 0.08, Bias: 0.02, Coverage: 0.97}, Least: 0.7, LimitID: "attention-long", Limit: long, Reason: reason, Verdict: fit.Pass,
		},
		{Family: fit.FamilyAttention, On: "h100_sxm", Op: op.KindAttnFwd, Band: ">=64k", Source: costmodel.Extrapolated, Points: 4, Median: 0.1, MAPE: 0.1, P95: 0.2, Bias: 0.1, Coverage: 0.5, LimitID: "attention-beyond", Limit: long, Reason: "twice", Verdict: fit.Insufficient},
		{
			Family: fit.FamilyCollective, On: "2 a100_sxm + 2 h100_sxm over nvlink on 2 nodes", Op: op.KindReduceScatter, Band: "64 KiB-1 MiB", Source: costmodel.Transferred, Points: 30, Median: 0.1, MAPE: 0.1, P95: 0.2, Bias: 0.1, Coverage: 0.5,
			Upper: &fit.StratumUpper{Median: 0.2, MAPE: 0.3, P95: 0.8, Bias: 0.2, Coverage: 0.643}, Verdict: fit.Ungated,
		},
	}
	for i := range 12 {
		r.Strata = append(r.Strata, fit.CheckedStratum{Family: fit.FamilyGEMM, On: "b200_sxm", Op: op.KindGEMM, Band: "1-100 GFLOP", Source: costmodel.Interpolated, Points: 3 + i, MAPE: 0.01 * float64(i), P95: 0.1, LimitID: "gemm", Limit: fit.StratumBound{MAPE: 0.05}, Reason: "tiles", Verdict: fit.Insufficient})
	}
	r.Drift = testDrift()
	return r
}

// A part stands below the stratum that it is of, also where it is the worse of them.
func TestPartsStandBelowTheirWhole(t *testing.T) {
	stratum := func(band string, part bool, mape float64, v fit.Verdict) fit.CheckedStratum {
		s := fit.CheckedStratum{Family: fit.FamilyAttention, On: "h100_sxm", Op: op.KindAttnFwd, Band: band, Source: costmodel.Interpolated, Points: 30, MAPE: mape, Verdict: v, Part: part}
		if part {
			s.Variant = op.Variant{Mask: op.Diag, HeadDim: 128, DType: op.BF16}
		}
		return s
	}
	var got []string
	for _, s := range worstFirst([]fit.CheckedStratum{
		stratum("<4k", false, 0.02, fit.Pass), stratum("<4k", true, 0.01, fit.Pass), stratum("<4k", true, 0.03, fit.Pass),
		stratum("4k-16k", false, 0.01, fit.Pass), stratum("4k-16k", true, 0.5, fit.Fail), stratum(">=64k", false, 0.025, fit.Pass),
	}, fit.FamilyAttention) {
		got = append(got, fmt.Sprintf("%s %v %v", s.Band, s.Part, s.MAPE))
	}
	want := "4k-16k false 0.01, 4k-16k true 0.5, <4k false 0.02, <4k true 0.03, <4k true 0.01, >=64k false 0.025"
	if strings.Join(got, ", ") != want {
		t.Errorf("%s, want %s", strings.Join(got, ", "), want)
	}
}

func testDrift() *fit.DriftReport {
	cycles := 0.002
	shape := []byte(`{"pass":"fwd","m":4096,"n":4096,"k":4096,"dtype":"bf16"}`)
	return &fit.DriftReport{
		From: "last.rec.jsonl", To: "today.rec.jsonl", Runs: []string{"last.rec.jsonl", "between.rec.jsonl", "today.rec.jsonl"}, Limit: fit.DriftLimit, Verdict: fit.Drifted,
		Environment: []fit.Difference{{Field: "gpu.stack", Was: "driver 570", Is: "driver 580"}, {Field: "machine.os", Is: "Linux 6.18"}},
		Places: []fit.DriftPlace{
			{
				On: "h100_sxm", Verdict: fit.Drifted, Why: "4 of 10 points moved by more than their noise and 3 %; 2 make a drift", Cause: fit.CauseClock, Canaries: true, Shared: 10, Moved: 4, Needed: 2, Shift: 0.051, Lo: 0.04, Hi: 0.06,
				Series: &fit.DriftSeries{Shifts: []float64{0.04, 0.051}, EWMA: 0.0237, CUSUMUp: 0.061},
				Points: []fit.DriftPoint{{Op: op.KindGEMM, Shape: shape, Before: 1e-3, Now: 1.06e-3, Shift: 0.058, Noise: 0.004, Moved: true, Cycles: &cycles}},
			},
			{On: "2 h100_sxm over nvlink", Verdict: fit.Ambiguous, Why: "1 of 50 points moved; 5 make a drift", Shared: 50, Moved: 1, Needed: 5, Shift: 0.002, Lo: -0.001, Hi: 0.004},
			{On: "b200_sxm", Verdict: fit.Same, Why: "no point moved by more than its noise and 3 %", Canaries: true, Shared: 10, Needed: 2, Shift: -0.001, Lo: -0.004, Hi: 0.002},
		},
	}
}

// Of many points the five that moved most are named, and how many more moved is said: of 150
// points 6 of which moved, "145 more" would read as if these had moved too.
func TestDriftCountsWhatMovedAlone(t *testing.T) {
	for moved, want := range map[int]string{6: "  1 point more moved; all 150: evenkeel check --json", 5: "  all 150: evenkeel check --json", 0: "  all 150: evenkeel check --json"} {
		x := fit.DriftPlace{On: "h100_sxm", Verdict: fit.Drifted, Why: "it moved", Shared: 150, Moved: moved, Points: slices.Repeat(testDrift().Places[0].Points, 150)}
		var out bytes.Buffer
		p := &printer{w: &out}
		driftDetail(p, x)
		lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
		if got := lines[len(lines)-1]; got != want {
			t.Errorf("of 150 points %d of which moved the last line is %q, want %q", moved, got, want)
		}
	}
}

func driftReport() *fit.Report { return &fit.Report{Drift: testDrift(), Simulated: true} }

// checkRenderings are what check prints beside the plain report.
func checkRenderings() []rendering {
	return []rendering{
		{"report_strata", func(w io.Writer) error { return Report(w, strataReport()) }},
		{"report_full", func(w io.Writer) error { return FullReport(w, strataReport()) }},
		{"report_drift", func(w io.Writer) error { return Report(w, driftReport()) }},
		{"markdown", func(w io.Writer) error { return Markdown(w, strataReport()) }},
		{"junit", func(w io.Writer) error { return JUnit(w, strataReport()) }},
		{"markdown_error", func(w io.Writer) error { return MarkdownError(w, errors.New("x.json: no such file <>|\"")) }},
		{"junit_error", func(w io.Writer) error { return JUnitError(w, errors.New("x.json: no such file <>&\"")) }},
	}
}

func TestCheckGolden(t *testing.T) {
	for _, r := range checkRenderings() {
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
			if diff := cmp.Diff(read(t, path), buf.String()); diff != "" {
				t.Errorf("differs from %s (go test -update writes it anew):\n%s", path, diff)
			}
		})
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Tables are readable at 100 columns, whatever else is broken at Width; nothing
// prints a number that is none.
func TestCheckLayout(t *testing.T) {
	for _, r := range checkRenderings()[:3] {
		var buf bytes.Buffer
		if err := r.print(&buf); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(buf.String(), "SIMULATED") {
			t.Errorf("%s does not begin with SIMULATED", r.name)
		}
		for i, line := range strings.Split(buf.String(), "\n") {
			// Columns of a table are two spaces apart; broken text holds no two.
			table := strings.Contains(strings.TrimSpace(line), "  ")
			if len(line) > Width || table && len(line) > 100 {
				t.Errorf("%s:%d: %d columns: %s", r.name, i+1, len(line), line)
			}
			if strings.TrimRight(line, " ") != line || strings.Contains(line, "NaN") {
				t.Errorf("%s:%d: %q", r.name, i+1, line)
			}
		}
	}
}

func TestCheckWriteErrorsComeBack(t *testing.T) {
	for _, r := range checkRenderings() {
		var whole bytes.Buffer
		if err := r.print(&whole); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, whole.Len() / 2, whole.Len() - 1} {
			if err := r.print(&failAfter{n}); !errors.Is(err, errFull) {
				t.Errorf("%s: after %d bytes: got %v, want the writer's error", r.name, n, err)
			}
		}
	}
}

// A long list is cut after the worst, with a count; the full report has all.
func TestLongListsAreCut(t *testing.T) {
	var short, full bytes.Buffer
	if err := errors.Join(Report(&short, strataReport()), FullReport(&full, strataReport())); err != nil {
		t.Fatal(err)
	}
	if a, b := strings.Count(short.String(), "b200_sxm"), strings.Count(full.String(), "b200_sxm"); a != mostStrata+1 || b != 12+1 { // and once under drift
		t.Errorf("%d and %d of 12 strata are listed", a, b)
	}
	if !strings.Contains(short.String(), "strata not listed: 4 insufficient; to list them: evenkeel check --all") || strings.Contains(full.String(), "not listed") {
		t.Error("what was cut is not said, or said of a full list")
	}
	if i, j := strings.Index(short.String(), "FAIL"), strings.Index(short.String(), "attn_fwd 4k-16k"); i < 0 || i > j {
		t.Error("the worst stratum does not come first")
	}
}

// JUnit: read back, every stratum is one case, its counts add up, and what has
// no verdict is skipped.
func TestJUnitReadsBack(t *testing.T) {
	r := strataReport()
	r.Strata[0].On = "odd <name> & \"quotes\" \x01"
	var buf bytes.Buffer
	if err := JUnit(&buf, r); err != nil {
		t.Fatal(err)
	}
	var got junitSuites
	if err := xml.Unmarshal(buf.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	tests, failures, skipped, names := 0, 0, 0, map[string]junitCase{}
	for _, s := range got.Suites {
		if s.Tests != len(s.Cases) {
			t.Errorf("%s: says %d tests, has %d", s.Name, s.Tests, len(s.Cases))
		}
		for _, c := range s.Cases {
			tests++
			if c.Failure != nil {
				failures++
			}
			if c.Skipped != nil {
				skipped++
			}
			names[c.Name] = c
		}
	}
	// Of the families 1 fails and 1 is skipped, of 17 strata 1 and 14, of 3 places
	// of drift 1 and 1; an op without a law is skipped.
	if want := 3 + 17 + 3 + 1; tests != want || failures != 3 || skipped != 1+14+1+1 || got.Tests != tests || got.Failures != failures || got.Skipped != skipped {
		t.Errorf("%d tests, %d failures, %d skipped; the document says %d, %d, %d", tests, failures, skipped, got.Tests, got.Failures, got.Skipped)
	}
	if c := names["attn_bwd >=64k on h100_sxm"]; c.Failure == nil || !strings.Contains(c.Failure.Message, "upper bound 9.00 %, limit 5.00 %") {
		t.Errorf("%+v", c)
	}
	if c := names["attn_fwd >=64k on h100_sxm, extrapolated"]; c.Skipped == nil || c.Skipped.Message != "insufficient: 4 points, a verdict needs 20" {
		t.Errorf("%+v", c)
	}
	buf.Reset()
	if err := JUnitError(&buf, errors.New("no such file")); err != nil {
		t.Fatal(err)
	}
	var broken junitSuites
	if err := xml.Unmarshal(buf.Bytes(), &broken); err != nil || broken.Errors != 1 || broken.Suites[0].Cases[0].Error.Message != "no such file" {
		t.Errorf("%v: %+v", err, broken)
	}
}

// Every row of a Markdown table has as many cells as its head.
func TestMarkdownTablesAreWhole(t *testing.T) {
	r := strataReport()
	r.Strata[0].On, r.Missing = "a | b", []string{"x | <y>\nz"}
	var buf bytes.Buffer
	if err := Markdown(&buf, r); err != nil {
		t.Fatal(err)
	}
	cells, tables := 0, 0
	for line := range strings.Lines(buf.String()) {
		if !strings.HasPrefix(line, "|") {
			cells = 0
			continue
		}
		n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
		if cells == 0 {
			cells, tables = n, tables+1
		}
		if n != cells {
			t.Errorf("%d cells, the head has %d: %s", n, cells, line)
		}
	}
	if s := buf.String(); tables != 3 || !strings.HasPrefix(s, "\n## evenkeel check: FAIL\n") || !strings.HasSuffix(s, "\n") || !strings.Contains(s, `- no law in the profile: x \| &lt;y> z`) {
		t.Errorf("%d tables:\n%s", tables, s)
	}
}

// TestVerdictCountsFamilies: a family that is within its limits on all devices taken
// together and above them on one of them counts once, as above.
func TestVerdictCountsFamilies(t *testing.T) {
	row := func(f fit.Family, part bool, v fit.Verdict) fit.Row {
		return fit.Row{Family: f, Part: part, Verdict: v}
	}
	families := fit.Families()
	r := &fit.Report{Pairs: make([]fit.Pair, 1), Rows: []fit.Row{
		row(families[0], false, fit.Pass), row(families[0], true, fit.Fail), row(families[0], true, fit.Pass),
		row(families[1], false, fit.Fail), row(families[1], true, fit.Fail), row(families[1], true, fit.Fail),
		row(families[2], false, fit.Pass),
	}}
	if got, want := verdict(r), "FAIL (MEASURED): 1 of 3 families of ops within their limits, 2 above"; !strings.Contains(got, want) {
		t.Errorf("%q, want %q in it", got, want)
	}
}

// A log ratio of 0.69 printed as a share would call times that doubled 69 % longer.
func TestShiftsArePerCent(t *testing.T) {
	for log, want := range map[float64]string{math.Ln2: "+100 %", -math.Ln2: "-50 %", 0: "+0.0 %", math.NaN(): none} {
		if got := shift(log); got != want {
			t.Errorf("log ratio %v: got %s, want %s", log, got, want)
		}
	}
}

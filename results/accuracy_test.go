package results

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
)

// belowHere ends what a person wrote of the accuracy page; what follows is made.
const belowHere = "<!-- below: made by docs/accuracy.sh -->\n"

// accuracyFigures are the plots of the page by file name.
func accuracyFigures(laws []StudiedLaw) (map[string]*Figure, error) {
	all := map[string]*Figure{}
	for _, split := range []string{"interp", "longer"} {
		f, err := ErrorsByForm(laws, split)
		if err != nil {
			return nil, err
		}
		all["errors-"+split+".svg"] = f
	}
	var err error
	if all["laws.svg"], err = LawDots(laws); err != nil {
		return nil, err
	}
	all["coverage.svg"], err = Coverage(laws)
	return all, err
}

// rendered are the files of the page that follow from its laws.
func rendered(t *testing.T, laws []StudiedLaw) map[string]string {
	t.Helper()
	files := map[string]string{}
	var page bytes.Buffer
	if err := AccuracyPage(&page, laws); err != nil {
		t.Fatal(err)
	}
	own, _, ok := strings.Cut(string(contents(t, filepath.Join("evidence", "accuracy", "README.md"))), belowHere)
	if !ok {
		t.Fatalf("the accuracy page lacks the line %q", belowHere)
	}
	files["README.md"] = own + belowHere + page.String()
	figures, err := accuracyFigures(laws)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range figures {
		var svg bytes.Buffer
		if err := WriteSVG(&svg, f); err != nil {
			t.Fatal(err)
		}
		files[name] = svg.String()
	}
	return files
}

// The committed page and plots follow from the committed errors of every law.
// docs/accuracy.sh runs this with -update, on what `fit --study` wrote to
// $EVENKEEL_STUDIES.
func TestAccuracyPage(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skipf("on %s multiply-adds are fused, so the last digits differ", runtime.GOARCH)
	}
	folder := filepath.Join("evidence", "accuracy")
	if *update {
		if page := os.Getenv("EVENKEEL_PAGE"); page != "" {
			folder = page
		}
		if studies := os.Getenv("EVENKEEL_STUDIES"); studies != "" {
			writeLaws(t, filepath.Join(folder, "study.json"), StudiedLaws(studyRows(t, studies)))
		}
	}
	var laws []StudiedLaw
	if err := json.Unmarshal(contents(t, filepath.Join(folder, "study.json")), &laws); err != nil {
		t.Fatal(err)
	}
	for name, want := range rendered(t, laws) {
		path := filepath.Join(folder, name)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(string(contents(t, path)), want); diff != "" {
			t.Errorf("%s does not follow from study.json (docs/accuracy.sh makes it anew): %.1000s", path, diff)
		}
	}
}

// TestREADMEStatesTheAccuracyPage: the errors in docs/accuracy.md, which the README leads to, are
// the page's.
func TestREADMEStatesTheAccuracyPage(t *testing.T) {
	readme, page := read(t, "../docs/accuracy.md"), map[string][]string{}
	for line := range strings.Lines(read(t, "evidence/accuracy/README.md")) {
		if c := strings.Split(line, " | "); len(c) > 4 && strings.HasPrefix(c[2], "**") {
			page[strings.TrimPrefix(c[0], "| ")] = c
		}
	}
	mape := func(held string, column int) float64 {
		cells, ok := page[held]
		var v float64
		if !ok {
			t.Errorf("the page has no row %q", held)
		} else if _, err := fmt.Sscanf(strings.Trim(cells[column], "*"), "%g", &v); err != nil {
			t.Errorf("%q, column %d: %v", cells, column, err)
		}
		return v
	}
	const reached, table = 2, 3
	for name, in := range map[string]string{
		"causal attention":        "causal attention",
		"bidirectional attention": "bidirectional attention",
		"GEMM":                    "GEMM",
		"NCCL over NVLink":        "collectives of NCCL over NVLink",
	} {
		want := fmt.Sprintf("| %s | %.1f %% | %.1f %% |", name, mape(in+", interp", reached), mape(in+", longer", reached))
		_, rest, ok := strings.Cut(readme, want)
		if !ok {
			t.Errorf("docs/accuracy.md lacks %q", want)
			continue
		}
		var interp, longer float64
		if _, err := fmt.Sscanf(rest, " %g %%, %g %% |", &interp, &longer); err != nil {
			t.Errorf("%s: the log-log table's errors: %v", name, err)
		}
		if a, b := mape(in+", interp", table), mape(in+", longer", table); math.Abs(interp-a) > 0.05 || math.Abs(longer-b) > 0.5 {
			t.Errorf("%s: docs/accuracy.md says %v and %v of a log-log table, the page %v and %v", name, interp, longer, a, b)
		}
	}
	words := strings.Join(strings.Fields(readme), " ")
	want := fmt.Sprintf("%.1f %% where their neighbours were, %.1f %% where only powers of two were; groups of ranks that were never measured: %.1f %%",
		mape("causal attention, some-heads", reached), mape("causal attention, heads", reached), mape("collectives of NCCL over NVLink, ranks", reached))
	if !strings.Contains(words, want) {
		t.Errorf("docs/accuracy.md lacks %q", want)
	}
}

// studyRows reads what `fit --study --json` wrote, file by file.
func studyRows(t *testing.T, folder string) []fit.StudyRow {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s holds no studies: %v", folder, err)
	}
	var all []fit.StudyRow
	for _, file := range files {
		var rows []fit.StudyRow
		if err := json.Unmarshal(contents(t, file), &rows); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, rows...)
	}
	return all
}

// writeLaws writes a law a line, so that a change of one is a line of a diff.
func writeLaws(t *testing.T, path string, laws []StudiedLaw) {
	t.Helper()
	var b bytes.Buffer
	for i, l := range laws {
		line, err := json.Marshal(l, json.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		before := ",\n"
		if i == 0 {
			before = "[\n"
		}
		fmt.Fprintf(&b, "%s%s", before, line)
	}
	b.WriteString("\n]\n")
	if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func studied(split, on string, kind op.Kind, v op.Variant, ours, other float64) []fit.StudyRow {
	row := fit.StudyRow{Split: split, On: on, Op: kind, Variant: v, Fitted: 300, Held: 100}
	a, b, c := row, row, row
	a.Form, a.Ours, a.MAPE, a.Median, a.P95, a.Coverage = "tiles x field", true, ours, ours/2, 3*ours, 0.9
	a.Bands = []fit.StudyBand{{Band: "<4k", Held: 60, Coverage: 0.9}, {Band: "4k-16k", Held: 40, Coverage: 0.5}}
	b.Form, b.MAPE, b.Median, b.P95 = "tiles", 2*ours, ours, 6*ours
	c.Form, c.MAPE, c.Median, c.P95 = "log-log table", other, other/2, 3*other
	return []fit.StudyRow{a, b, c}
}

// Every law goes to one kind, and none is left out of the page.
func TestStudiedLaws(t *testing.T) {
	diag := op.Variant{Mask: op.Diag, HeadDim: 128, DType: op.BF16, Kernel: "fa3"}
	windowed, full := diag, diag
	windowed.Window, full.Mask = 128, op.Full
	kinds := []struct {
		on      string
		op      op.Kind
		variant op.Variant
		want    string
	}{
		{"h100/vllm", op.KindAttnFwd, diag, causalAttention},
		{"h100/vllm", op.KindAttnFwd, windowed, windowedAttention},
		{"h100/vllm", op.KindAttnFwd, full, fullAttention},
		{"h100/trtllm", op.KindGEMM, op.Variant{DType: op.BF16}, matrixProducts},
		{"8 h100/nccl-2.27.3 over nvlink", op.KindAllReduce, op.Variant{DType: op.F16}, libraryNVLink},
		{"8 rtx/nccl-2.27.3 over pcie", op.KindAllReduce, op.Variant{DType: op.F16}, libraryPCIe},
		{"8 h100/vllm-1-graph over nvlink", op.KindAllReduce, op.Variant{DType: op.BF16}, engineNVLink},
		{"8 b60/vllm-1-eager over pcie", op.KindAllReduce, op.Variant{DType: op.BF16}, enginePCIe},
		{"2 a40/x over nvlink_pairs", op.KindSendRecv, op.Variant{}, otherCollectives},
		{"8 a100/x over nvlink on 2 nodes", op.KindAllReduce, op.Variant{}, otherCollectives},
	}
	var rows []fit.StudyRow
	for i := range kinds {
		k := kinds[len(kinds)-1-i]
		rows = append(rows, studied("longer", k.on, k.op, k.variant, 0.02, 0.05)...)
		rows = append(rows, studied("interp", k.on, k.op, k.variant, 0.01, 0.04)...)
	}
	laws := StudiedLaws(rows)
	if len(laws) != 2*len(kinds) {
		t.Fatalf("%d laws of %d", len(laws), 2*len(kinds))
	}
	var page bytes.Buffer
	if err := AccuracyPage(&page, laws); err != nil {
		t.Fatal(err)
	}
	for i, k := range kinds {
		l := laws[i]
		if l.Split != "interp" || l.Kind() != k.want || l.On != k.on {
			t.Errorf("law %d: %s of %s is %q, want %q", i, l.String(), l.Split, l.Kind(), k.want)
		}
		if names := formsOf(laws[i : i+1]); !slices.Equal(names, []string{ours, coreAlone, "log-log table"}) {
			t.Errorf("forms %q", names)
		}
		row := "| " + l.String() + " | 300 | 100 | **1.0 %** | 0.5 % | 3.0 % | 90.0 % | 2.0 % | 4.0 % |"
		if strings.Count(page.String(), row) != 1 {
			t.Errorf("the page lacks %s", row)
		}
	}
}

// A stratum pools the variants of an op, never its splits or bands.
func TestCoveredStrata(t *testing.T) {
	rows := studied("interp", "h100/vllm", op.KindAttnFwd, op.Variant{Mask: op.Diag, HeadDim: 64}, 0.01, 0.1)
	rows = append(rows, studied("interp", "h100/vllm", op.KindAttnFwd, op.Variant{Mask: op.Diag, HeadDim: 128}, 0.01, 0.1)...)
	rows = append(rows, studied("longer", "h100/vllm", op.KindAttnFwd, op.Variant{Mask: op.Diag, HeadDim: 128}, 0.01, 0.1)...)
	got := coveredStrata(StudiedLaws(rows))
	var lines []string
	for _, c := range got {
		lines = append(lines, fmt.Sprintf("%s %s %d %.2f", c.split, c.kind, c.held, c.share()))
	}
	want := []string{"interp causal attention 120 0.90", "interp causal attention 80 0.50", "longer causal attention 60 0.90"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"3", "1", "2", "3", "0", "50.0 %", "77.7 %"}, coverageCells(got)); diff != "" {
		t.Error(diff)
	}
	// 17, 18 or 19 of 20: their share is 20!/(17! 3!) 0.9^17 0.1^3 + ...
	if got := (covered{held: 20}).chance(); math.Abs(got-(0.190120+0.285180+0.270170)) > 1e-5 {
		t.Errorf("17 to 19 of 20 points are in with probability %v", got)
	}
}

// What cannot be drawn is an error, not an empty picture.
func TestAccuracyFiguresNeedLaws(t *testing.T) {
	if _, err := accuracyFigures(nil); err == nil {
		t.Error("no laws, no error")
	}
	laws := StudiedLaws(studied("interp", "h100/vllm", op.KindAttnFwd, op.Variant{Mask: op.Diag}, 0.01, 0.1))
	if _, err := ErrorsByForm(laws, "longer"); err == nil {
		t.Error("a split without laws, no error")
	}
	laws[0].Bands = nil
	if _, err := Coverage(laws); err == nil {
		t.Error("no strata, no error")
	}
}

// What is aimed at and missed by less than the page prints counts as reached.
func TestAims(t *testing.T) {
	a := aim{Errors: Errors{0.018, 0.011, 0.06}}
	for _, c := range []struct {
		got  Errors
		want string
	}{
		{Errors{0.018, 0.011, 0.06}, "reached"},
		{Errors{0.01849, 0.0115, 0.02}, "reached"}, // 1.15 is printed as 1.1
		{Errors{0.0186, 0.011, 0.0601}, "missed: MAPE"},
		{Errors{0.1, 0.1, 0.1}, "missed: MAPE, median, P95"},
	} {
		if got := a.met(c.got); got != c.want {
			t.Errorf("%v: %q, want %q", c.got, got, c.want)
		}
	}
	for _, a := range aims() {
		if !slices.Contains(accuracyKinds(), a.kind) || splitPlace(a.split) < 0 {
			t.Errorf("%+v: no such kind or split", a)
		}
	}
}

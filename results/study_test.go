package results

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
)

// testStudy are made-up rows of two ways of holding points out: two laws of one
// family under one, one of another family under the other.
func testStudy() []fit.StudyRow {
	causal := func(on string, headDim int) fit.StudyRow {
		return fit.StudyRow{
			On: on, Op: op.KindAttnFwd, Split: "interp", Fitted: 2746, Held: 915,
			Variant: op.Variant{Mask: op.Diag, HeadDim: headDim, DType: op.BF16, Kernel: "flash_attention_of_a_long_name"},
		}
	}
	product := fit.StudyRow{On: "a100_sxm/cublas", Op: op.KindGEMM, Variant: op.Variant{DType: op.BF16}, Split: "longer", Fitted: 300, Held: 100}
	said := func(r fit.StudyRow, form string, mape, median, p95, coverage float64) fit.StudyRow {
		r.Form, r.MAPE, r.Median, r.P95, r.Coverage, r.Ours = form, mape, median, p95, coverage, coverage > 0
		return r
	}
	return []fit.StudyRow{
		said(causal("h100_sxm/sglang", 128), "tiles x field", 0.017, 0.011, 0.058, 0.91),
		said(causal("h100_sxm/sglang", 128), "tiles", 0.046, 0.031, 0.139, 0),
		said(causal("h100_sxm/sglang", 128), "a + b FLOPs", 0.325, 0.266, 0.8, 0),
		said(causal("a100_sxm/sglang", 64), "tiles", 0.023, 0.013, 0.08, 0.87),
		said(causal("a100_sxm/sglang", 64), "a + b FLOPs", 0.301, 0.22, 12.5, 0),
		said(product, "tiles x field", 0.052, 0.036, 0.164, 0.9),
		said(product, "log-log table", 0.075, 0.0362, 0.25, 0),
	}
}

func studyText(t *testing.T, rows []fit.StudyRow) string {
	t.Helper()
	var buf bytes.Buffer
	if err := Study(&buf, false, fit.Splits(), rows); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

func TestStudyGolden(t *testing.T) {
	got, path := studyText(t, testStudy()), filepath.Join("testdata", "study.golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(read(t, path), got); diff != "" {
		t.Errorf("differs from %s (go test -update writes it anew):\n%s", path, diff)
	}
}

// The summary is over the laws of a family, whatever form ours has for each; a
// form of one law only counts that one.
func TestStudySummarisesByForm(t *testing.T) {
	text := studyText(t, testStudy())
	for _, want := range []string{"interp: a quarter of the shapes", "longer: sequences 2 to 4 times longer"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, "heads: ") {
		t.Errorf("a way of holding out without rows is shown in\n%s", text)
	}
	for form, want := range map[string][]string{
		"this tool's law": {"2", "2.0", "1.2", "6.9", "89"}, // the means of 1.7 and 2.3, of 1.1 and 1.3, of 5.8 and 8, of 91 and 87 %
		"tiles":           {"1", "4.6", "3.1", "14"},
	} {
		if got := rowOf(text, form); !cmp.Equal(numbersOf(got)[:len(want)], want) {
			t.Errorf("%s: %q, want %q in\n%s", form, got, want, text)
		}
	}
}

// rowOf is what follows a form's name in the first row that holds it.
func rowOf(text, form string) string {
	for line := range strings.Lines(text) {
		if _, rest, found := strings.Cut(line, form+"  "); found {
			return rest
		}
	}
	return ""
}

func numbersOf(row string) []string {
	var all []string
	for word := range strings.FieldsSeq(row) {
		if word != "%" {
			all = append(all, word)
		}
	}
	return append(all, make([]string, 8)...)
}

// A law has its name once, in its first row; lines are readable and have no
// spaces behind.
func TestStudyLayout(t *testing.T) {
	text := studyText(t, testStudy())
	if n := strings.Count(text, "h100_sxm/sglang"); n != 1 {
		t.Errorf("the law is named %d times in\n%s", n, text)
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if len(line) > Width || strings.TrimRight(line, " ") != line || strings.Contains(line, "NaN") {
			t.Errorf("%d characters: %q", len(line), line)
		}
		for _, r := range line {
			if r > 126 {
				t.Errorf("%q is not ASCII", line)
			}
		}
	}
	if empty := studyText(t, nil); strings.Contains(empty, "interp") || strings.Contains(empty, "NaN") {
		t.Errorf("of no rows:\n%s", empty)
	}
}

func TestStudyWriteErrorsComeBack(t *testing.T) {
	for n := range 6 {
		if err := Study(&failAfter{n * 200}, false, fit.Splits(), testStudy()); !errors.Is(err, errFull) {
			t.Errorf("after %d bytes: %v", n*200, err)
		}
	}
}

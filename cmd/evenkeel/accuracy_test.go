package main

import (
	"bytes"
	"encoding/xml"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/fit"
)

// gated are the tables of others' recordings that CI holds the laws to: causal
// attention, matrix products and collectives of two GPU types, which fit within
// a minute of one core.
func gated() map[string][]string {
	return map[string][]string{
		"a100_sxm": {"context_attention_vllm.csv", "gemm_trtllm.csv", "nccl.csv"},
		"h100_sxm": {"gemm_trtllm.csv", "nccl.csv"},
	}
}

// TestRecordedGate is the gate of accuracy: laws fitted to a part of others'
// recordings must predict the rest within the limits that are built in. Times
// that are off by an eighth must not pass it. $EVENKEEL_GATE names a folder to
// leave the JUnit and Markdown reports in.
func TestRecordedGate(t *testing.T) {
	if testing.Short() {
		t.Skip("fits the tables of two GPU types, which takes most of a minute")
	}
	data := recordedFolder(t)
	for gpu, tables := range gated() {
		t.Run(gpu, func(t *testing.T) {
			g := newGate(t, gpu)
			recording := g.take("recording", tables, filepath.Join(data, "aiconfigurator", gpu), 1)
			profile := filepath.Join(g.dir, "gate.profile.json")
			g.run(exitDone, "fit", recording, "-o", profile)
			g.judge(exitDone, recording, profile)
			// The same rows, all an eighth longer: no recording of the fit, so
			// every row counts.
			g.judge(exitCheck, g.take("slow", tables, filepath.Join(data, "aiconfigurator", gpu), 1.125), profile)
		})
	}
}

// gate runs verbs on one GPU type's tables.
type gate struct {
	t        *testing.T
	dir, gpu string
}

func newGate(t *testing.T, gpu string) gate {
	return gate{t: t, dir: t.TempDir(), gpu: gpu}
}

// run runs a verb, which must end with an exit code, and returns its output.
func (g gate) run(want int, args ...string) string {
	g.t.Helper()
	var out, talk bytes.Buffer
	if code := run(append([]string{"-q"}, args...), strings.NewReader(""), &out, &talk); code != want {
		g.t.Fatalf("evenkeel %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, want, talk.String(), out.String())
	}
	return out.String()
}

// take imports tables whose times are multiplied by a factor.
func (g gate) take(name string, tables []string, folder string, factor float64) string {
	g.t.Helper()
	recording := filepath.Join(g.dir, name+".rec.jsonl")
	args := []string{"import", "--from", "table", "-o", recording}
	for _, table := range tables {
		data, err := os.ReadFile(filepath.Join(folder, table))
		if err != nil {
			g.t.Fatal(err)
		}
		path := filepath.Join(g.dir, name+"-"+table)
		if err := os.WriteFile(path, scaled(g.t, data, factor), 0o644); err != nil {
			g.t.Fatal(err)
		}
		args = append(args, path)
	}
	g.run(exitDone, args...)
	return recording
}

// scaled multiplies the times of a table, its last column.
func scaled(t *testing.T, table []byte, factor float64) []byte {
	t.Helper()
	if factor == 1 {
		return table
	}
	var b strings.Builder
	for line := range strings.Lines(string(table)) {
		line = strings.TrimRight(line, "\r\n")
		comma := strings.LastIndexByte(line, ',')
		if us, err := strconv.ParseFloat(line[comma+1:], 64); err == nil {
			line = line[:comma+1] + strconv.FormatFloat(factor*us, 'g', -1, 64)
		}
		b.WriteString(line + "\n")
	}
	return []byte(b.String())
}

// judge checks a recording by the limits that are built in, and that all forms
// of the report say the same.
func (g gate) judge(want int, recording, profile string) {
	g.t.Helper()
	folder := g.dir
	if keep := os.Getenv("EVENKEEL_GATE"); keep != "" {
		folder = keep
	}
	name := filepath.Join(folder, g.gpu+"-"+strings.TrimSuffix(filepath.Base(recording), ".rec.jsonl"))
	junit, markdown := name+".xml", name+".md"
	os.Remove(markdown) // check appends to it
	out := g.run(want, "--json", "check", recording, "--profile", profile, "--junit", junit, "--markdown", markdown)
	var report fit.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		g.t.Fatal(err)
	}
	failed, judged := 0, 0
	for _, s := range report.Strata {
		switch s.Verdict {
		case fit.Fail:
			failed++
		case fit.Pass:
			judged++
		}
	}
	for _, r := range report.Rows {
		if r.Verdict == fit.Fail {
			failed++
		}
	}
	if judged+failed < 4 || (failed > 0) != (want == exitCheck) {
		g.t.Errorf("exit code %d with %d strata within their limits and %d failures", want, judged, failed)
	}
	if got := failures(g.t, junit); got != failed {
		g.t.Errorf("%s: %d failures, the report has %d", junit, got, failed)
	}
	heading := map[int]string{exitDone: "PASS", exitCheck: "FAIL"}[want]
	if text, err := os.ReadFile(markdown); err != nil || !strings.HasPrefix(string(text), "\n## evenkeel check: "+heading) {
		g.t.Errorf("%s does not say %s: %v\n%.200s", markdown, heading, err, text)
	}
}

// failures counts the failed cases of a JUnit report as its reader does.
func failures(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var suites struct {
		Failures int `xml:"failures,attr"`
		Suites   []struct {
			Cases []struct {
				Failure *struct{} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(data, &suites); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, s := range suites.Suites {
		for _, c := range s.Cases {
			if c.Failure != nil {
				n++
			}
		}
	}
	if n != suites.Failures {
		t.Errorf("%s: %d failures are announced, %d listed", path, suites.Failures, n)
	}
	return n
}

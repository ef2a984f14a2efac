package results

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/fit"
)

// testCurve has a family of every trend, one without a curve, and laws left out.
// Its numbers are made up; only that they differ matters.
func testCurve() *fit.Curve {
	step := func(n int, median, width, outside float64) fit.CurveStep {
		at := func(v float64) fit.Scatter { return fit.Scatter{Mid: v, Lo: v * (1 - width), Hi: v * (1 + width)} }
		return fit.CurveStep{Points: n, Median: at(median), P90: at(3 * median), Outside: outside}
	}
	change := func(from, to int, ratio float64) *fit.Change {
		s := fit.Scatter{Mid: ratio, Lo: 0.9 * ratio, Hi: 1.1 * ratio}
		return &fit.Change{From: from, To: to, Median: s, P90: s, MedianUpper: 1.15 * ratio}
	}
	return &fit.Curve{
		Simulated: true, Seed: 7, Share: 0.25, Repeats: 5,
		Families: []fit.FamilyCurve{
			{Family: fit.FamilyAttention, Laws: 16, Held: 80, Trend: fit.Falling, Change: change(8, 16, 0.6), Steps: []fit.CurveStep{
				step(6, 0.14, 0.3, 0.2), step(8, 0.1, 0.2, 0.11), step(12, 0.08, 0.1, 0.04), step(16, 0.06, 0, 0),
			}},
			{
				Family: fit.FamilyGEMM, Laws: 5, Held: 30, Trend: fit.Flat, Change: change(6, 12, 0.98),
				Steps:   []fit.CurveStep{step(6, 0.031, 0.25, 0.1), step(8, 0.03, 0.2, 0.07), step(12, 0.0304, 0.02, 0)},
				LeftOut: []string{"gemm (fwd f32) on cpu:1: 5 points to fit, the curve needs 8"},
			},
			{Family: fit.FamilyBandwidth, Laws: 12, Held: 12, Trend: fit.Unclear, Change: change(6, 8, 0.7), Steps: []fit.CurveStep{step(6, 0.02, 0.1, 0.1), step(8, 0.014, 0, 0)}},
			{Family: fit.FamilyCollective, Trend: fit.Unclear, LeftOut: []string{"a: 5 points to fit, the curve needs 8", "b: the same", "c: the same", "d: the same"}},
		},
		Warnings: []string{"SIMULATED: made from a simulated backend, no hardware was measured", "3 points could not be measured; the recording holds the reasons"},
	}
}

func learningText(t *testing.T, c *fit.Curve) string {
	t.Helper()
	var buf bytes.Buffer
	if err := LearningCurve(&buf, c); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

func TestLearningGolden(t *testing.T) {
	got, path := learningText(t, testCurve()), filepath.Join("testdata", "learning.golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("differs from %s (go test -update writes it anew):\n%s", path, diff)
	}
	for _, line := range strings.Split(got, "\n") {
		if len(line) > Width || strings.TrimRight(line, " ") != line {
			t.Errorf("%d columns, or space at the end: %q", len(line), line)
		}
	}
}

// A curve of measured times is nowhere called simulated, and every advice ends
// in a command that stands unbroken on a line.
func TestLearningSaysWhatItIs(t *testing.T) {
	c := testCurve()
	if got := learningText(t, c); !strings.HasPrefix(got, "SIMULATED learning curve") || strings.Count(got, "evenkeel calibrate --fresh --budget 10m\n") != 3 {
		t.Errorf("stamp or commands are missing:\n%s", got)
	}
	c.Simulated, c.Warnings = false, nil
	f, err := LearningPlot(c, "learning")
	if err != nil {
		t.Fatal(err)
	}
	if got := learningText(t, c) + f.title + f.caption; !strings.HasPrefix(got, "MEASURED learning curve") || strings.Contains(strings.ToLower(got), "simulated") {
		t.Errorf("a measured curve is called simulated:\n%s", got)
	}
}

func TestLearningOfOneSizeAndOfNone(t *testing.T) {
	c := testCurve()
	c.Families = c.Families[:1]
	c.Families[0].Steps, c.Families[0].Change = c.Families[0].Steps[:1], nil
	if got := learningText(t, c); !strings.Contains(got, "median error 14 % at 6 points, the only size") {
		t.Errorf("one size:\n%s", got)
	}
	if _, err := LearningPlot(c, "x"); err != nil {
		t.Errorf("plot of one size: %v", err)
	}
	var svg bytes.Buffer
	flat := &fit.Curve{Families: []fit.FamilyCurve{{Family: fit.FamilyGEMM, Steps: []fit.CurveStep{{Points: 6, Median: fit.Scatter{Mid: 0.034, Lo: 0.034, Hi: 0.034}}}}}}
	if f, err := LearningPlot(flat, "x"); err != nil {
		t.Error(err)
	} else if err := WriteSVG(&svg, f); err != nil || !strings.Contains(svg.String(), "2 %") && !strings.Contains(svg.String(), "5 %") {
		t.Errorf("%v: no label beside an error of 3.4 %%", err)
	}
	// Errors of zero have no place on a logarithmic scale.
	c.Families[0].Steps[0].Median = fit.Scatter{}
	for _, c := range []*fit.Curve{c, {}, {Families: []fit.FamilyCurve{{Family: fit.FamilyGEMM, LeftOut: []string{"x"}}}}} {
		if _, err := LearningPlot(c, "x"); err == nil || !strings.Contains(err.Error(), "evenkeel calibrate") {
			t.Errorf("%+v: plot: %v", c, err)
		}
	}
}

// Who has measured for ten minutes is not told to measure for ten minutes.
func TestLearningAsksForMoreThanThereIs(t *testing.T) {
	c := testCurve()
	steps := c.Families[0].Steps
	steps[len(steps)-1].Points = 60
	if got := learningText(t, c); !strings.Contains(got, "evenkeel calibrate --fresh --budget 1h\n") {
		t.Errorf("60 points a law, and the advice:\n%s", got)
	}
}

// TestLearningPlot also leaves the plot in $EVENKEEL_PLOTS, as
// TestPlotsAreDeterministic does.
func TestLearningPlot(t *testing.T) {
	var first [2][]byte
	for i := range 2 {
		f, err := LearningPlot(testCurve(), "error against points fitted")
		if err != nil {
			t.Fatal(err)
		}
		var s, p bytes.Buffer
		if err := WriteSVG(&s, f); err != nil {
			t.Fatal(err)
		}
		if err := WritePNG(&p, f); err != nil {
			t.Fatal(err)
		}
		if i > 0 && (!bytes.Equal(first[0], s.Bytes()) || !bytes.Equal(first[1], p.Bytes())) {
			t.Error("the same curve, another picture")
		}
		first = [2][]byte{s.Bytes(), p.Bytes()}
	}
	for _, want := range []string{"SIMULATED: error against points fitted", "points fitted, of every law", "median error on held-out points", "attention (16 laws, n = 80,", "6.0 % at 16 points)", "bandwidth (12 laws", "10 %", "random draws", "no hardware was measured"} {
		if !bytes.Contains(first[0], []byte(want)) {
			t.Errorf("the SVG lacks %q", want)
		}
	}
	if bytes.Contains(first[0], []byte("collective")) {
		t.Error("a family without a curve is in the legend")
	}
	if dir := os.Getenv("EVENKEEL_PLOTS"); dir != "" {
		for i, name := range []string{"learning.svg", "learning.png"} {
			if err := os.WriteFile(filepath.Join(dir, name), first[i], 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestLearningTicks(t *testing.T) {
	for _, c := range []struct {
		lo, hi float64
		want   string
	}{{5.5, 20, "6,8,12,16"}, {5.5, 70, "6,8,12,16,24,32,48,64"}, {1, 3.5, "1,2,3"}} {
		var got []string
		for _, k := range countTicks(c.lo, c.hi) {
			got = append(got, k.Label)
		}
		if strings.Join(got, ",") != c.want {
			t.Errorf("%v to %v: got %v, want %s", c.lo, c.hi, got, c.want)
		}
	}
	for _, c := range []struct {
		lo, hi float64
		want   string
	}{{0.009, 0.3, "1 %,2 %,5 %,10 %,20 %"}, {0.0004, 0.0011, "0.05 %,0.1 %"}, {0.04, 0.06, "5 %"}} {
		var got []string
		for _, k := range errorTicks(c.lo, c.hi) {
			if k.Value < c.lo || k.Value > c.hi || math.IsNaN(k.Value) {
				t.Errorf("%v lies outside %v to %v", k.Value, c.lo, c.hi)
			}
			if k.Label != "" {
				got = append(got, k.Label)
			}
		}
		if strings.Join(got, ",") != c.want {
			t.Errorf("%v to %v: got %v, want %s", c.lo, c.hi, got, c.want)
		}
	}
}

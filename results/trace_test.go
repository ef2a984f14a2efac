package results

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay/comparison"
)

// tracePlan is a made-up plan of a report, `off` of the prediction.
func tracePlan(i int, file, strategy string, off units.Seconds) comparison.Plan {
	x := comparison.Plan{
		Plan: i, Path: "plans/" + file + ".plan.json", Strategy: strategy, Predicted: costmodel.Estimate{Lo: 0.019, Mid: 0.02, Hi: 0.0212, Source: costmodel.Interpolated},
		Meeting: 0.0204, Measured: comparison.Measured{Median: 0.02 + off, Least: 0.0199 + off, Q3: 0.0205 + off, Most: 0.022 + off, Spread: 0.013},
		Log: -0.05, Upper: 0.07, Inside: true, Critical: []int{1}, Difference: off, ComputeError: 0.031, Stretches: 12,
		Parts: []comparison.Part{
			{Name: comparison.ComputePart, Predicted: 0.012, Measured: 0.012 + off/2, Difference: off / 2},
			{Name: comparison.CommunicationPart, Predicted: 0.005, Measured: 0.005 + off/4, Difference: off / 4},
			{Name: comparison.SkewPart, Predicted: 0.003, Measured: 0.003, Difference: 0},
			{Name: comparison.GapsPart, Measured: off / 4, Difference: off / 4},
		},
		Compute: []comparison.Part{{Name: "attention", Predicted: 0.008, Measured: 0.008 + off, Difference: off}, {Name: "linear", Predicted: 0.004, Measured: 0.004 - off/2, Difference: -off / 2}},
		Ranks: []comparison.RankSum{
			{Rank: 0, Device: "torch_cpu:2", Predicted: 0.019, Measured: 0.0195, Computes: 0.015, Computed: 0.016, Waits: 0.004, Waited: 0.003, Gaps: 0.0005},
			{Rank: 1, Device: "torch_cpu:1", Predicted: 0.02, Measured: 0.02 + off, Computes: 0.012, Computed: 0.013, Waits: 0.008, Waited: 0.008},
		},
	}
	worst := comparison.Pair{ReplayKey: costmodel.ReplayKey{Rank: 1, Dir: "bwd", Step: 1, Op: costmodel.AttentionOp}, Predicted: 0.002, Measured: 0.0024, Log: -0.18}
	x.Classes = []comparison.Class{
		{Op: costmodel.RingWait, Dir: "fwd", Rank: comparison.AllRanks, Stretches: 3, Measured: 12e-6},
		{Op: costmodel.AttentionOp, Dir: "fwd", Again: true, Rank: comparison.AllRanks, Stretches: 4, Compared: 4, Predicted: 0.004, Measured: 0.0041, MeanError: 0.02, Bias: -0.01, P95: 0.04},
		{Op: costmodel.AttentionOp, Dir: "bwd", Rank: comparison.AllRanks, Stretches: 4, Compared: 4, Predicted: 0.008, Measured: 0.0085, MeanError: 0.06, Bias: -0.05, P95: 0.17, Worst: []comparison.Pair{worst, worst}},
	}
	for _, c := range x.Classes {
		for rank := range 2 {
			c.Rank = rank
			x.RankClasses = append(x.RankClasses, c)
		}
	}
	return x
}

// testTrace is a report with every verdict.
func testTrace() *comparison.Report {
	r := &comparison.Report{
		Mode: "gloo-cpu", Parts: "layer", Layers: 2, Blocks: 10, Limits: 3,
		Plans:   []comparison.Plan{tracePlan(0, "evenkeel", "evenkeel", 0.001), tracePlan(1, "b", "ring", 0.006), tracePlan(2, "shares-5-3", "given", -0.0004)},
		Ranking: &comparison.Ranking{Plans: 3, TauB: 1, Pairs: 2, Ties: 1, Chosen: 0, Best: 2, Regret: 0.004, RegretUpper: 0.06, Unsplit: 0.01, UnsplitUpper: 0.04, Blocks: 10, Noise: 0.02},
		Gains: []comparison.Gain{
			{Over: 1, Predicted: 0.21, Measured: 0.18, Lo: 0.17, Hi: 0.19, Share: 0.18 / 0.21},
			{Over: 2, Predicted: -0.01, Measured: -0.02, Lo: -0.03, Hi: -0.01},
		},
		Verdicts: []comparison.Check{
			{Name: "plan 0: step", Value: 0.05, Limit: 0.15, Verdict: fit.Pass},
			{Name: "plan 0: compute", Value: 0.031, Limit: 0.15, Verdict: fit.Ungated, Why: "more threads than cores"},
			{Name: "plan 1: step", Value: 0.26, Limit: 0.15, Verdict: fit.Fail, Why: "26 %, want at most 15 %"},
			{Name: "plan 1: compute", Value: 0.031, Limit: 0.15, Verdict: fit.Pass},
			{Name: "plan 2: step", Value: 0.02, Limit: 0.15, Verdict: fit.Pass},
			{Name: "plan 2: compute", Limit: 0.15, Verdict: fit.Insufficient, Why: "no stretch of computing is both predicted and recorded"},
			{Name: "ranking: tau_b", Value: 1, Limit: 0.8, Verdict: fit.Pass},
			{Name: "ranking: regret", Value: 0.06, Limit: 0.05, Verdict: fit.Insufficient, Why: "a plan varies by 2.0 % between blocks, for which 10 are too few; replay with --repeats 16"},
		},
		Warnings: []string{"of a step only transformer layers are run"},
	}
	return r
}

// pipelineTrace is a report of a pipeline, beside a plan of batches.
func pipelineTrace() *comparison.Report {
	r := testTrace()
	r.Ranking, r.Gains, r.Verdicts, r.Plans = nil, nil, r.Verdicts[:4], r.Plans[:2]
	x, y := &r.Plans[0], &r.Plans[1]
	x.Pipeline, x.Layers, x.Micro, x.Meeting = true, 6, 12, x.Predicted.Mid
	y.Batch, y.Micro, y.Critical = true, 3, []int{1, 0, 1}
	worst := comparison.Pair{ReplayKey: costmodel.ReplayKey{Rank: 1, Micro: 11, Layer: 3, Dir: "bwd", Op: costmodel.StageWait}, Predicted: 0.002, Measured: 0.003, Log: -0.41}
	wait := comparison.Class{Op: costmodel.StageWait, Dir: "bwd", Rank: comparison.AllRanks, Stretches: 12, Compared: 11, Predicted: 0.006, Measured: 0.007, MeanError: 0.2, Bias: -0.1, P95: 0.4, Worst: []comparison.Pair{worst}}
	x.Classes = append(x.Classes, wait)
	wait.Rank = 1
	x.RankClasses = append(x.RankClasses, wait)
	return r
}

// taskTraces is a report of tasks, of which one takes longer by its account.
func taskTraces() *comparison.Report {
	r := testTrace()
	r.Layers, r.Ranking, r.Gains, r.Verdicts, r.Plans = 6, nil, nil, r.Verdicts[:4], r.Plans[:2]
	x, y := &r.Plans[0], &r.Plans[1]
	x.Runs, x.Layers, x.Micro = []string{"image", "text", "an encoder of both"}, 6, 3
	y.Runs, y.Layers, y.Micro, y.Meeting = []string{"image"}, 6, 1, y.Predicted.Mid
	wait := comparison.Class{Op: costmodel.GradWait, Dir: "bwd", Rank: comparison.AllRanks, Stretches: 12, Compared: 11, Predicted: 0.006, Measured: 0.007, MeanError: 0.2, Bias: -0.1, P95: 0.4}
	wait.Worst = []comparison.Pair{{ReplayKey: costmodel.ReplayKey{Rank: 1, Micro: 2, Layer: 3, Dir: "bwd", Op: costmodel.GradWait}, Predicted: 0.002, Measured: 0.003, Log: -0.41}}
	x.Classes = append(x.Classes, wait)
	wait.Rank = 1
	x.RankClasses = append(x.RankClasses, wait)
	return r
}

// TestLayersRunAreSaid: of pipelines all, of other plans as many as were asked for.
func TestLayersRunAreSaid(t *testing.T) {
	r := pipelineTrace()
	if got := traceTitle(r); !strings.Contains(got, "2 plans: 2 layers, of pipelines all, forward and backward") {
		t.Error(got)
	}
	if got := traceTitle(taskTraces()); !strings.Contains(got, "2 plans: all layers forward and backward") {
		t.Error(got)
	}
	r.Plans, r.Parts = r.Plans[:1], "attention"
	if got := traceTitle(r); !strings.Contains(got, "1 plan: the attention of all layers forward and backward") {
		t.Error(got)
	}
}

// TestTraceGolden compares every rendering of a made-up report with what was
// looked through.
func TestTraceGolden(t *testing.T) {
	r := testTrace()
	simulated := *r
	simulated.Simulated, simulated.Plans, simulated.Ranking, simulated.Gains, simulated.Verdicts = true, r.Plans[:1], nil, nil, r.Verdicts[1:2]
	for name, print := range map[string]func(io.Writer) error{
		"trace":          func(w io.Writer) error { return TraceReport(w, r) },
		"trace_full":     func(w io.Writer) error { return FullTraceReport(w, r) },
		"trace_pipeline": func(w io.Writer) error { return FullTraceReport(w, pipelineTrace()) },
		"trace_tasks":    func(w io.Writer) error { return FullTraceReport(w, taskTraces()) },
		"trace_one":      func(w io.Writer) error { return TraceReport(w, &simulated) },
		"trace_markdown": func(w io.Writer) error { return TraceMarkdown(w, r) },
		"trace_junit":    func(w io.Writer) error { return TraceJUnit(w, r) },
	} {
		t.Run(name, func(t *testing.T) {
			var buf bytes.Buffer
			if err := print(&buf); err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Split(buf.String(), "\n") {
				if !strings.HasSuffix(name, "markdown") && !strings.HasSuffix(name, "junit") && len(line) > Width {
					t.Errorf("%d columns: %s", len(line), line)
				}
			}
			path := filepath.Join("testdata", name+".golden")
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

// TestTraceJUnitCounts: what failed is a failure, what has no verdict is skipped.
func TestTraceJUnitCounts(t *testing.T) {
	var buf bytes.Buffer
	if err := TraceJUnit(&buf, testTrace()); err != nil {
		t.Fatal(err)
	}
	var got junitSuites
	if err := xml.Unmarshal(buf.Bytes(), &got); err != nil || got.Tests != 8 || got.Failures != 1 || got.Skipped != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestTraceBar keeps every part's place on the scale, whatever is rounded.
func TestTraceBar(t *testing.T) {
	measured := func(p comparison.Part) units.Seconds { return p.Measured }
	if got := traceBar([]comparison.Part{{Measured: 0.5}, {Measured: 0.25}, {Measured: 0.125}, {Measured: 0.125}}, 1, measured); got != strings.Repeat("#", 36)+strings.Repeat("=", 18)+strings.Repeat(".", 9)+strings.Repeat("?", 9) {
		t.Error(got)
	}
	if got := traceBar([]comparison.Part{{Measured: 0.5}, {}, {Measured: -1e-9}, {Measured: 0.001}}, 1, measured); got != strings.Repeat("#", 36) {
		t.Error(got)
	}
}

// TestTraceTimeline: two processes for each rank, a zero of its own in each.
func TestTraceTimeline(t *testing.T) {
	task := func(rank int, o costmodel.ReplayOp, start, took units.Seconds) costmodel.ReplayTask {
		return costmodel.ReplayTask{ReplayKey: costmodel.ReplayKey{Rank: rank, Dir: "fwd", Step: 1, Op: o}, Start: start, Time: took}
	}
	var buf bytes.Buffer
	err := TraceTimeline(&buf, &comparison.Timeline{
		Plan: 1, Block: 4, Devices: []string{"a", "b"},
		Predicted: []costmodel.ReplayTask{task(0, costmodel.AttentionOp, 0, 0.001), task(1, costmodel.RingWait, 0.001, 0)},
		Recorded:  []costmodel.ReplayTask{task(1, costmodel.RingWait, 0.001, 0.002)},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		TraceEvents []event `json:"traceEvents"`
	}
	if err := json.Unmarshal(buf.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	var spans []event
	for _, e := range got.TraceEvents {
		if e.Ph == "X" {
			spans = append(spans, e)
		}
	}
	args := map[string]any{"micro-batch": 0.0, "layer": 0.0, "step": 1.0}
	want := []event{
		{Name: "attn fwd", Cat: "compute", Ph: "X", PID: 0, Dur: 1000, Args: args},
		{Name: "ring_wait fwd", Cat: "waiting", Ph: "X", PID: 3, TS: 1000, Dur: 2000, Args: args},
	}
	if diff := cmp.Diff(want, spans); diff != "" {
		t.Error(diff)
	}
	at := costmodel.ReplayKey{Micro: 3, Layer: 2, Dir: "bwd", Op: costmodel.StageWait}
	if got := traceArgs(&comparison.Timeline{Pipeline: true}, at); !cmp.Equal(got, map[string]any{"chunk": 3, "layer": 2}) || traceName(at) != "stage_wait bwd" || traceCategory(at.Op) != "waiting" {
		t.Errorf("%v", got)
	}
	at.Op = costmodel.GradWait
	if got := traceArgs(&comparison.Timeline{Runs: []string{"a", "b", "c", "image"}}, at); !cmp.Equal(got, map[string]any{"run": 3, "module": "image", "layer": 2}) || traceName(at) != "grad_wait bwd" || traceCategory(at.Op) != "waiting" {
		t.Errorf("%v", got)
	}
	for _, name := range []string{"predicted rank 0: a", "recorded rank 1: b, block 4", "plan 1"} {
		if !strings.Contains(buf.String(), `"`+name+`"`) {
			t.Errorf("%q is not in %s", name, buf.String())
		}
	}
}

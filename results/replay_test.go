package results

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// replayedTrace is of one plan on two ranks: in block b rank 0 takes 10+b ms, of
// which it computes 6 and waits for bytes for 3, rank 1 takes 8 ms and computes
// all the time.
func replayedTrace(t *testing.T, change func(*replay.Header)) string {
	t.Helper()
	h := &replay.Header{
		Backend: "gloo", Mode: replay.ModeCPU, Parts: replay.PartsLayer, Layers: 1, Kernel: "math", Seed: 3, Repeats: 3, Warmup: 1,
		Plans: []replay.PlanRun{{
			Path: "a.plan.json", Strategy: "ring",
			Job: costmodel.Job{
				Model:   costmodel.Model{Layers: 2, Hidden: 256, FFN: 512, QHeads: 4, KVHeads: 2, HeadDim: 64, Vocab: 128, GatedMLP: true},
				Cluster: costmodel.Cluster{Nodes: []costmodel.Node{{Name: "n0", Link: "gloo", Devices: []op.Member{{Device: "torch_cpu:1", Count: 2}}}}},
				SeqLen:  256, DType: "f32", Recompute: costmodel.RecomputeNone, RingBuffers: 2, LossChunk: 256,
			},
			Layout: costmodel.Layout{
				Shards: []costmodel.Shard{{Segments: []costmodel.Segment{{Start: 0, End: 100}}}, {Segments: []costmodel.Segment{{Start: 100, End: 256}}}},
				Groups: []costmodel.Group{{{Rank: 0, QHeads: 3}, {Rank: 1, QHeads: 1}}},
			},
		}},
		Ranks:    []replay.Rank{{Rank: 0, Host: "here", Device: "torch_cpu:1", Threads: 1, Torch: "1.13.1"}, {Rank: 1, Host: "here", Device: "torch_cpu:1", Threads: 1}},
		Numerics: []replay.Numerics{{Out: 1e-7, DQ: 4e-7, Limit: 1e-5, Reference: "sampled", Rows: 256, Layer: &replay.LayerNumerics{Limit: 2e-5, Skipped: "300000 tokens"}}},
		Exact:    []replay.ExactCounts{{Messages: 2, Bytes: 3 << 20, FLOPs: 9}},
	}
	if change != nil {
		change(h)
	}
	path := filepath.Join(t.TempDir(), "x.trace.jsonl")
	err := replay.WriteTrace(path, h, func(span func(*replay.Span) error, step func(*replay.Step) error) error {
		for b := range h.Repeats {
			for _, s := range []replay.Span{
				{Rank: 0, Op: replay.Attn, DurNS: 6e6},
				{Rank: 0, Op: replay.RingWait, T0NS: 6e6, DurNS: 2e6},
				{Rank: 0, Op: replay.A2AOut, T0NS: 8e6, DurNS: 1e6},
				{Rank: 1, Op: replay.Merge, DurNS: 8e6},
			} {
				s.Block, s.Dir = b, replay.Backward
				if err := span(&s); err != nil {
					return err
				}
			}
			for r, ns := range []int64{int64(10+b) * 1e6, 8e6} {
				if err := step(&replay.Step{Block: b, Rank: r, DurNS: ns}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func summary(t *testing.T, path string) (*ReplaySummary, string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := SummariseReplay("x.trace.jsonl", f)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Replay(&b, s); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if len(strings.TrimSuffix(line, "\n")) > Width {
			t.Errorf("wider than %d: %s", Width, line)
		}
	}
	return s, b.String()
}

func TestReplayCountsAndShowsHowRanksSpentTheirSteps(t *testing.T) {
	s, shown := summary(t, replayedTrace(t, nil))
	p := &s.Plans[0]
	gaps, idle := p.gaps(0)
	for _, c := range []struct{ got, want units.Seconds }{
		{p.Steps[2], 0.012}, {p.Ranks[0].Busy[1], 0.006}, {p.Ranks[0].Exposed[1], 0.003}, {gaps[2], 0.003}, {idle[2], 0},
	} {
		if d := c.got - c.want; d > 1e-12 || d < -1e-12 {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
	if _, idle := p.gaps(1); idle[0] < 0.0019 || idle[0] > 0.0021 {
		t.Errorf("rank 1 idles %v, want 2 ms", idle[0])
	}
	for _, want := range []string{
		"trace x.trace.jsonl: 1 plan on 2 ranks, 3 blocks after 1 of warm-up, order by seed 3",
		"1 whole layer forward and backward, mode gloo-cpu, attention kernel math, torch 1.13.1",
		"11 ms  10.5 ms..11.5 ms", "3 MiB", "4.0e-07 of 1e-05 (1) (2)",
		"0  torch_cpu:1  here     100      3  11 ms  6 ms     3 ms  2.00 ms      0 s",
		"1  torch_cpu:1  here     156      1   8 ms  8 ms      0 s      0 s  3.00 ms",
		"(1) compared with one device on 256 rows of the output and of dq, and on one head of dk and dv",
		"(2) of the attention alone; the whole layer was not compared: 300000 tokens",
		"bytes of every pair of ranks and FLOPs of every rank were counted and equal what the plan says",
		"the embedding, the loss, the traffic of ZeRO and the optimizer were not run",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
	if strings.Contains(shown, "mean nothing") {
		t.Error(shown)
	}
}

func TestReplaySaysWhatItsTimesDoNotMean(t *testing.T) {
	for want, change := range map[string]func(*replay.Header){
		"these times mean nothing": func(h *replay.Header) { h.Oversubscribed = true },
		"took turns on one GPU":    func(h *replay.Header) { h.Mode = replay.ModeOneGPU },
		"plan's nodes crossed no network": func(h *replay.Header) {
			n := &h.Plans[0].Job.Cluster.Nodes
			*n = append(*n, costmodel.Node{Name: "n1", Devices: []op.Member{{Device: "torch_cpu:1", Count: 1}}})
			(*n)[0].Devices[0].Count = 1
			h.Plans[0].Job.Cluster.Network = "gloo"
		},
		"the attention of 1 layer forward and backward": func(h *replay.Header) { h.Parts = replay.PartsAttention; h.Numerics[0].Layer = nil },
	} {
		if _, shown := summary(t, replayedTrace(t, change)); !strings.Contains(shown, want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
}

func TestSummariseReplayRefusesATornTrace(t *testing.T) {
	data, err := os.ReadFile(replayedTrace(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := SummariseReplay("x", bytes.NewReader(data[:len(data)-9])); err == nil || s != nil {
		t.Error(s, err)
	}
}

// Of a plan of batches the header has neither tokens nor heads of a rank.
func TestReplayShowsAPlanOfBatches(t *testing.T) {
	_, shown := summary(t, replayedTrace(t, func(h *replay.Header) {
		job := h.Plans[0].Job
		h.Plans[0] = replay.PlanRun{Path: "x.batch.json", Strategy: "evenkeel", Batch: true, Micro: 3, Model: &job.Model, DType: job.DType}
	}))
	for _, want := range []string{
		"0  x.batch.json  evenkeel in 3       -  11 ms", "0  torch_cpu:1  here       -      -  11 ms  6 ms",
		"wait for each other after every micro-batch, which is idle time",
	} {
		if !strings.Contains(strings.Join(strings.Fields(shown), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
}

// stagedTrace is of a pipeline on four ranks, the last of which is in no stage, alone or
// before a plan of batches. Rank 1 takes 9 ms, of which it waits 5 for rank 0's stage.
func stagedTrace(t *testing.T, alone bool) string {
	t.Helper()
	model := costmodel.Model{Layers: 3, Hidden: 256, FFN: 512, QHeads: 4, KVHeads: 2, HeadDim: 64, Vocab: 128, GatedMLP: true}
	passes := []pipeline.Op{{Chunk: 0}, {Chunk: 1}, {Chunk: 1, Backward: true}, {Chunk: 0, Backward: true}}
	h := &replay.Header{
		Backend: "gloo", Mode: replay.ModeCPU, Parts: replay.PartsLayer, Layers: 1, Kernel: "math", Seed: 3, Repeats: 1,
		Plans: []replay.PlanRun{{
			Path: "x.pipeline.json", Strategy: "evenkeel", Micro: 2, Model: &model, DType: op.F32,
			Pipeline: &replay.PipelineRun{Lengths: []units.Tokens{30}, Layers: 3, Plan: pipeline.Plan{
				Stages: []pipeline.Stage{{Ranks: []int{0}, Layers: 1}, {Ranks: []int{1, 2}, Layers: 2}},
				Chunks: []pipeline.Chunk{{Slice: 20}, {Context: 20, Slice: 10}}, Recompute: [][]int{{0, 0}, {2, 0}}, Orders: [][]pipeline.Op{passes, passes},
			}},
		}},
		Ranks: []replay.Rank{
			{Rank: 0, Host: "here", Device: "torch_cpu:1", Threads: 1, Torch: "1.13.1"},
			{Rank: 1, Host: "here", Device: "torch_cpu:1", Threads: 1},
			{Rank: 2, Host: "here", Device: "torch_cpu:1", Threads: 1},
			{Rank: 3, Host: "here", Device: "torch_cpu:1", Threads: 1},
		},
		Numerics: []replay.Numerics{{Out: 1e-7, Limit: 1e-5, Reference: "dense", Layer: &replay.LayerNumerics{Out: 2e-7, DX: 3e-7, Limit: 6e-5}}},
		Exact:    []replay.ExactCounts{{Messages: 2, Bytes: 3 << 20, FLOPs: 9}},
	}
	if !alone {
		h.Plans = append(h.Plans, replay.PlanRun{Path: "x.batch.json", Strategy: "ours", Batch: true, Micro: 1, Model: &model, DType: op.F32})
		h.Numerics, h.Exact = append(h.Numerics, h.Numerics[0]), append(h.Exact, h.Exact[0])
		h.Numerics[1].Plan, h.Exact[1].Plan = 1, 1
	}
	path := filepath.Join(t.TempDir(), "x.trace.jsonl")
	err := replay.WriteTrace(path, h, func(span func(*replay.Span) error, step func(*replay.Step) error) error {
		err := errors.Join(
			span(&replay.Span{Rank: 0, Dir: replay.Forward, Op: replay.Attn, DurNS: 6e6}),
			span(&replay.Span{Rank: 1, Layer: 1, Dir: replay.Forward, Op: replay.StageWait, DurNS: 5e6}),
			span(&replay.Span{Rank: 1, Layer: 2, MB: 1, Dir: replay.Forward, Op: replay.Attn, T0NS: 5e6, DurNS: 2e6}))
		for p := range h.Plans {
			for r, ns := range []int64{10e6, 9e6, 9e6, 0} {
				err = errors.Join(err, step(&replay.Step{Plan: p, Rank: r, DurNS: ns}))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Waiting for another stage is idle time, and what stages there are is told.
func TestReplayShowsAPipeline(t *testing.T) {
	s, shown := summary(t, stagedTrace(t, true))
	gaps, idle := s.Plans[0].gaps(1)
	for _, c := range []struct{ got, want units.Seconds }{{s.Plans[0].Ranks[1].Met[0], 0.005}, {s.Plans[0].Ranks[1].Exposed[0], 0}, {gaps[0], 0.002}, {idle[0], 0.006}} {
		if d := c.got - c.want; d > 1e-12 || d < -1e-12 {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
	flat := strings.Join(strings.Fields(shown), " ")
	for _, want := range []string{
		"all layers forward and backward, mode gloo-cpu", "0 x.pipeline.json evenkeel in 2 - 10 ms", "layer 3.0e-07 of 6e-05",
		"plan 0 (medians over blocks), stages in order: 1 layer on rank 0; 2 layers on ranks 1-2",
		"1 torch_cpu:1 here - - 9 ms 2 ms 0 s 2.00 ms 6.00 ms", "3 torch_cpu:1 here - - 0 s 0 s 0 s 0 s 10 ms",
		"a pipeline runs all its layers; \"in 9\": 9 chunks; idle: also waiting for another stage",
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
	if strings.Contains(shown, "after every micro-batch") {
		t.Error(shown)
	}
	_, shown = summary(t, stagedTrace(t, false))
	for _, want := range []string{"1 whole layer, of pipelines all, forward and backward", "a pipeline runs all its layers", "after every micro-batch", "plan 1 (medians over blocks)\n"} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
}

// taskTrace is of two modules in n runs on three ranks. Rank 0 takes 10 ms: it computes for 6,
// waits for another run for 1 and for gradients for 2.
func taskTrace(t *testing.T, n int) string {
	t.Helper()
	shape := &multitask.Shape{SeqLen: 30, Hidden: 256, FFN: 512, QHeads: 4}
	x := &replay.TasksRun{
		Options: multitask.Options{DType: op.F32, Recompute: costmodel.RecomputeNone},
		Modules: []multitask.Module{
			{Name: "image", Task: "a", Layers: n - 1, Batch: 5, Shape: shape},
			{Name: "both", Task: "a", Layers: 2, Batch: 5, After: []string{"image"}, Shape: shape},
		},
	}
	for range n - 1 {
		x.Runs = append(x.Runs, multitask.Run{Layers: 1, Ranks: []int{0, 1}, Samples: []int{3, 2}})
	}
	x.Runs = append(x.Runs, multitask.Run{Module: 1, Layers: 2, Ranks: []int{2}, Samples: []int{5}})
	h := &replay.Header{
		Backend: "gloo", Mode: replay.ModeCPU, Parts: replay.PartsLayer, Layers: x.Layers(), Kernel: "math", Seed: 3, Repeats: 1,
		Plans: []replay.PlanRun{{Path: "x.tasks.json", Strategy: "evenkeel", Micro: n, DType: op.F32, Tasks: x}},
		Ranks: []replay.Rank{
			{Rank: 0, Host: "here", Device: "torch_cpu:1", Threads: 1, Torch: "1.13.1"},
			{Rank: 1, Host: "here", Device: "torch_cpu:1", Threads: 1},
			{Rank: 2, Host: "here", Device: "torch_cpu:1", Threads: 1},
		},
		Numerics: []replay.Numerics{{Out: 1e-7, Limit: 1e-5, Reference: "dense", Layer: &replay.LayerNumerics{Out: 2e-7, DX: 3e-7, DW: 4e-6, Limit: 6e-5}}},
		Exact:    []replay.ExactCounts{{Messages: 2, Bytes: 3 << 20, FLOPs: 9}},
	}
	path := filepath.Join(t.TempDir(), "x.trace.jsonl")
	err := replay.WriteTrace(path, h, func(span func(*replay.Span) error, step func(*replay.Step) error) error {
		err := errors.Join(
			span(&replay.Span{Dir: replay.Forward, Op: replay.Attn, DurNS: 6e6}),
			span(&replay.Span{MB: n - 2, Layer: n - 2, Dir: replay.Backward, Op: replay.StageWait, T0NS: 6e6, DurNS: 1e6}),
			span(&replay.Span{Dir: replay.Backward, Op: replay.GradWait, T0NS: 7e6, DurNS: 2e6}))
		for r, ns := range []int64{10e6, 9e6, 9e6} {
			err = errors.Join(err, step(&replay.Step{Rank: r, DurNS: ns}))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Waiting for gradients is waiting for bytes, and for another run idle time; what runs there are
// is told, and what of a step was run.
func TestReplayShowsTasks(t *testing.T) {
	s, shown := summary(t, taskTrace(t, 3))
	gaps, idle := s.Plans[0].gaps(0)
	for _, c := range []struct{ got, want units.Seconds }{{s.Plans[0].Ranks[0].Met[0], 0.001}, {s.Plans[0].Ranks[0].Exposed[0], 0.002}, {gaps[0], 0.001}, {idle[0], 0.001}} {
		if d := c.got - c.want; d > 1e-12 || d < -1e-12 {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
	flat := strings.Join(strings.Fields(shown), " ")
	for _, want := range []string{
		"all layers forward and backward, mode gloo-cpu", "0 x.tasks.json evenkeel in 3 - 10 ms", "layer 3.0e-07 of 6e-05", "weights 4.0e-06 of 6e-05 (1)",
		"plan 0 (medians over blocks), runs in order: 1 layer of image on ranks 0-1; 1 layer of image on ranks 0-1; 2 layers of both on rank 2",
		"0 torch_cpu:1 here - - 10 ms 6 ms 2 ms 1 ms 1 ms", "weights: their gradients once they are added up",
		"add up the gradients of their weights; \"in 5\": 5 runs; idle: also waiting for another run", "the embedding, the loss and the optimizer were not run",
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
	if strings.Contains(shown, "ZeRO") || strings.Contains(shown, "stage") {
		t.Error(shown)
	}
	// Of many runs a line names as many as can be read.
	if _, shown = summary(t, taskTrace(t, mostRuns+3)); !strings.Contains(strings.Join(strings.Fields(shown), " "), "image on ranks 0-1; and 3 more") {
		t.Error(shown)
	}
}

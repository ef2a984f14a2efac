package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	prices "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

// ofPipelines judges pipelines that were planned for the profile's devices.
func (p *played) ofPipelines() {
	t, dir := p.t, p.t.TempDir()
	lengths := filepath.Join(dir, "lengths.txt")
	if err := os.WriteFile(lengths, []byte("12000\n3000\n3000\n2000\n900\n400\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	var plans []string
	for _, strategy := range []string{"evenkeel", "infinipipe", "static-sp"} {
		plans = append(plans, filepath.Join(dir, strategy+".plan.json"))
		p.verb(exitDone, "solve", "--profile", p.profile, "--cluster", "1x(1 sim_big + 1 sim_small)", "--model", "testdata/config.json", "--lengths", lengths, "--batch-size", "6", "--pipeline", "--take", strategy, "-o", plans[len(plans)-1], "-q")
	}
	trace := p.pipelines("p.trace.jsonl", 7, 1, plans...)
	timeline := filepath.Join(dir, "timeline.json")
	out, _ := p.verb(exitDone, "check", trace, "--profile", p.profile, "--link", "sim_link", "--timeline", timeline)
	for _, want := range []string{
		"SIMULATED replay of 3 plans: all layers forward and backward", "5 chunks)", "along the rank that took longest; the parts", "worst (rank, chunk, layer)",
		"stage_wait  forward", "ranking of 3 plans: tau_b 1.00", "each sequence in a call of its own", "verdict: PASS",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "not in the trace") {
		t.Error(out)
	}
	if text := string(p.file(timeline)); !strings.Contains(text, `"stage_wait fwd"`) || !strings.Contains(text, `"chunk":4`) {
		t.Errorf("%.2000s", text)
	}
	if out, _ := p.verb(exitCheck, "check", p.pipelines("s.trace.jsonl", 7, 1.5, plans...), "--profile", p.profile); !strings.Contains(out, "plan 0: compute: 41 %, want at most") {
		t.Error(out)
	}
}

// pipelines writes a trace of plans of which ranks compute for `slower` times as long as
// predicted.
func (p *played) pipelines(name string, blocks int, slower units.Seconds, plans ...string) string {
	p.t.Helper()
	var profile costmodel.Profile
	if err := doc.Load(p.profile, &profile); err != nil {
		p.t.Fatal(err)
	}
	model, err := readModel("testdata/config.json")
	if err != nil {
		p.t.Fatal(err)
	}
	h := &replay.Header{
		Header:  doc.Header{Schema: replay.TraceSchema, Tool: tool, Created: "2026-01-31T12:00:00Z"},
		Backend: "gloo", Mode: replay.ModeCPU, Parts: replay.PartsLayer, Layers: 1, Kernel: "math", Seed: 1, Repeats: blocks, Warmup: 2,
	}
	var steps []*costmodel.Replayed
	for i, path := range plans {
		var d pipeline.Document
		if err := doc.Load(path, &d); err != nil {
			p.t.Fatal(err)
		}
		x := &replay.PipelineRun{Lengths: d.Lengths, Layers: d.Layers, Plan: d.Plan}
		h.Plans = append(h.Plans, replay.PlanRun{Path: path, SHA256: strings.Repeat("ab", 32), Strategy: d.Strategy, Micro: len(x.Chunks), Model: &model, DType: op.BF16, Pipeline: x})
		h.Numerics = append(h.Numerics, replay.Numerics{Plan: i, Limit: 1e-5, Reference: "dense"})
		h.Exact = append(h.Exact, replay.ExactCounts{Plan: i, Messages: 1, Bytes: 1, FLOPs: 1})
		steps = append(steps, p.staged(&profile, model, x, slower))
		for r := len(h.Ranks); r < len(d.Devices); r++ {
			h.Ranks = append(h.Ranks, replay.Rank{Rank: r, Host: "h", Device: d.Devices[r], Threads: 1, Python: "3.11.2", Torch: "2.1.0"})
		}
	}
	return p.write(name, h, steps)
}

// staged is a pipeline's step where ranks compute more slowly.
func (p *played) staged(profile *costmodel.Profile, model costmodel.Model, x *replay.PipelineRun, slower units.Seconds) *costmodel.Replayed {
	p.t.Helper()
	c, err := costmodel.ParseCluster("1x(1 sim_big + 1 sim_small)")
	if err == nil {
		c, err = c.Resolve(profile, "", "")
	}
	if err != nil {
		p.t.Fatal(err)
	}
	j := costmodel.Job{Model: model, Cluster: c, DType: op.BF16, Recompute: costmodel.RecomputeNone, RingBuffers: 2, LossChunk: 1}
	costs, err := prices.FromLaws(costmodel.NewPredictor(profile), j, x.Lengths)
	if err != nil {
		p.t.Fatal(err)
	}
	predicted, err := costs.Replayed(&x.Plan, prices.Replay{})
	if err != nil {
		p.t.Fatal(err)
	}
	took := slowed(predicted, slower)
	r, err := costs.Replayed(&x.Plan, prices.Replay{Took: func(k costmodel.ReplayKey) (units.Seconds, bool) { t, ok := took[k]; return t, ok }})
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

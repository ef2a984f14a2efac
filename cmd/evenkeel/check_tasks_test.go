package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	prices "github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/solver/multitask"
)

// sideBySide are two encoders and a decoder that needs both.
const sideBySide = `{
	"schema": "evenkeel.tasks/v1", "name": "test", "modules": [
		{"name": "image", "task": "a", "layers": 3, "batch_samples": 12, "shape": {"seq_len_tokens": 512, "hidden": 512, "ffn": 1376, "q_heads": 8, "gated_mlp": true}},
		{"name": "sound", "task": "b", "layers": 2, "batch_samples": 6, "shape": {"seq_len_tokens": 1024, "hidden": 512, "ffn": 1376, "q_heads": 8, "gated_mlp": true}},
		{"name": "text", "task": "b", "layers": 4, "batch_samples": 6, "after": ["image", "sound"], "shape": {"seq_len_tokens": 2048, "hidden": 512, "ffn": 1376, "q_heads": 8, "causal": true, "gated_mlp": true}}
	]
}`

// ofTasks judges plans of tasks that were made for the profile's devices.
func (p *played) ofTasks() {
	t, dir := p.t, p.t.TempDir()
	tasks := filepath.Join(dir, "tasks.json")
	if err := os.WriteFile(tasks, []byte(sideBySide), 0o666); err != nil {
		t.Fatal(err)
	}
	var plans []string
	for _, strategy := range []string{"evenkeel", "sequential"} {
		plans = append(plans, filepath.Join(dir, strategy+".plan.json"))
		p.verb(exitDone, "solve", "--profile", p.profile, "--cluster", "1x(1 sim_big + 1 sim_small)", "--tasks", tasks, "--take", strategy, "-o", plans[len(plans)-1], "-q")
	}
	trace := p.tasks("t.trace.jsonl", 7, 1, plans...)
	timeline := filepath.Join(dir, "timeline.json")
	out, _ := p.verb(exitDone, "check", trace, "--profile", p.profile, "--link", "sim_link", "--timeline", timeline, "--plan", "1")
	for _, want := range []string{
		"SIMULATED replay of 2 plans: all layers forward and backward", " runs)", "along the rank that took longest; the parts", "worst (rank, run, layer)",
		"grad_wait  backward", "exchange of their gradients are run", "verdict: PASS",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "not in the trace") {
		t.Error(out)
	}
	if text := string(p.file(timeline)); !strings.Contains(text, `"grad_wait bwd"`) || !strings.Contains(text, `"module":"sound"`) {
		t.Errorf("%.2000s", text)
	}
	if out, _ := p.verb(exitCheck, "check", p.tasks("s.trace.jsonl", 7, 1.5, plans...), "--profile", p.profile); !strings.Contains(out, "plan 0: compute: 41 %, want at most") {
		t.Error(out)
	}
	if out, _ := p.verb(exitDone, "show", trace); !strings.Contains(out, "runs in order: ") {
		t.Error(out)
	}
}

// tasks writes a trace of plans of which ranks compute for `slower` times as long as predicted.
func (p *played) tasks(name string, blocks int, slower units.Seconds, plans ...string) string {
	p.t.Helper()
	var profile costmodel.Profile
	if err := doc.Load(p.profile, &profile); err != nil {
		p.t.Fatal(err)
	}
	h := &replay.Header{
		Header:  doc.Header{Schema: replay.TraceSchema, Tool: tool, Created: "2026-01-31T12:00:00Z"},
		Backend: "gloo", Mode: replay.ModeCPU, Parts: replay.PartsLayer, Kernel: "math", Seed: 1, Repeats: blocks, Warmup: 2,
	}
	var steps []*costmodel.Replayed
	for i, path := range plans {
		var d multitask.Document
		if err := doc.Load(path, &d); err != nil {
			p.t.Fatal(err)
		}
		x := &replay.TasksRun{Modules: d.Modules, Options: d.Options, Plan: d.Plan}
		h.Layers = x.Layers()
		h.Plans = append(h.Plans, replay.PlanRun{Path: path, SHA256: strings.Repeat("ab", 32), Strategy: d.Strategy, Micro: len(x.Runs), DType: x.DType, Tasks: x})
		h.Numerics = append(h.Numerics, replay.Numerics{Plan: i, Limit: 1e-5, Reference: "dense"})
		h.Exact = append(h.Exact, replay.ExactCounts{Plan: i, Messages: 1, Bytes: 1, FLOPs: 1})
		steps = append(steps, p.tasked(&profile, x, slower))
	}
	for r, device := range []string{"sim_big", "sim_small"} {
		h.Ranks = append(h.Ranks, replay.Rank{Rank: r, Host: "h", Device: device, Threads: 1, Python: "3.11.2", Torch: "2.1.0"})
	}
	return p.write(name, h, steps)
}

// tasked is a step of tasks where ranks compute more slowly.
func (p *played) tasked(profile *costmodel.Profile, x *replay.TasksRun, slower units.Seconds) *costmodel.Replayed {
	p.t.Helper()
	c, err := costmodel.ParseCluster("1x(1 sim_big + 1 sim_small)")
	if err == nil {
		c, err = c.Resolve(profile, "", "")
	}
	if err != nil {
		p.t.Fatal(err)
	}
	costs, err := prices.FromLaws(costmodel.NewPredictor(profile), &prices.Tasks{Modules: x.Modules}, c, x.Options)
	if err != nil {
		p.t.Fatal(err)
	}
	predicted, err := costs.Replayed(&x.Plan, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	took := slowed(predicted, slower)
	r, err := costs.Replayed(&x.Plan, func(k costmodel.ReplayKey) (units.Seconds, bool) { t, ok := took[k]; return t, ok })
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

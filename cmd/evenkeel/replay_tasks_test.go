package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// handMadeTasks are two encoders and a decoder that needs one of them.
const handMadeTasks = `{
  "schema": "evenkeel.tasks/v1", "tool": "", "created": "", "name": "two encoders and a decoder",
  "modules": [
    {"name": "sees", "task": "a", "layers": 3, "batch_samples": 4, "shape": {"seq_len_tokens": 64, "hidden": 256, "ffn": 512, "q_heads": 4, "gated_mlp": true}},
    {"name": "hears", "task": "b", "layers": 2, "batch_samples": 5, "shape": {"seq_len_tokens": 48, "hidden": 128, "ffn": 256, "q_heads": 2, "gated_mlp": true}},
    {"name": "says", "task": "a", "layers": 2, "batch_samples": 4, "after": ["sees"], "shape": {"seq_len_tokens": 80, "hidden": 192, "ffn": 384, "q_heads": 3, "kv_heads": 1, "causal": true, "gated_mlp": true}}
  ]
}`

// Plans of tasks from their file to the report: planned, run on real ranks beside each other, the
// gradients of what two ranks have added up, shown and predicted.
func TestTorchReplayTasks(t *testing.T) {
	needTorch(t)
	dir, profile := t.TempDir(), absolute(t, "../../results/evidence/torch/calibration.profile.json")
	if err := os.WriteFile(filepath.Join(dir, "x.tasks.json"), []byte(handMadeTasks), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("evenkeel", args...)
		cmd.Dir = dir
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v: %s%s", args, err, out, said.String())
		}
		return string(out)
	}
	for take, more := range map[string]string{"sequential": "none", "spindle-optimus": "full"} {
		run("solve", "--profile", profile, "--cluster", "1x2 torch_cpu:1", "--tasks", "x.tasks.json", "--take", take, "--recompute", more, "-o", take+".plan.json")
	}
	out := run("replay", "sequential.plan.json", "spindle-optimus.plan.json", "--oversubscribe", "--repeats", "2", "--warmup", "1", "-o", "x.trace.jsonl")
	for _, want := range []string{
		"2 plans on 2 ranks, 2 blocks after 1", "all layers forward and backward", "sequential in 3", "runs in order: 3 layers of sees on ranks 0-1; ",
		"weights ", "their gradients once they are added up", "equal what the plan says", "the embedding, the loss and the optimizer were not run",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if shown := run("show", "x.trace.jsonl"); shown != out {
		t.Errorf("show prints\n%s\nreplay printed\n%s", shown, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "x.trace.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"micro_batches":3,"dtype":"f32","tasks":{"modules":[{"name":"sees",`, `"dw":`, `"reference":"dense"`, `"plan":0,"rank":1,"layer":0,"mb":0,"dir":"bwd","step":0,"op":"grad_wait"`,
		`"plan":1,"rank":0,"layer":2,"mb":0,"dir":"fwd","again":true`, `"shape":{"tokens":128}`,
	} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("no %s in the trace", want)
		}
	}
	for _, not := range []string{`"skipped"`, `"plan":0,"rank":0,"layer":0,"mb":0,"dir":"fwd","again"`, `"op":"merge"`, `"op":"a2a_in"`} {
		if bytes.Contains(data, []byte(not)) {
			t.Errorf("the trace has %s", not)
		}
	}
	checked := run("check", "x.trace.jsonl", "--profile", profile, "--timeline", "t.json")
	for _, want := range []string{"MEASURED replay of 2 plans: all layers forward and backward", "grad_wait", " of sees", "no embedding, loss or optimizer"} {
		if !strings.Contains(checked, want) {
			t.Errorf("no %q in\n%s", want, checked)
		}
	}
	var timeline map[string]any
	if data, err := os.ReadFile(filepath.Join(dir, "t.json")); err != nil || json.Unmarshal(data, &timeline) != nil || len(timeline) == 0 {
		t.Errorf("%v: %.200s", err, data)
	}
	noRanks(t)
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

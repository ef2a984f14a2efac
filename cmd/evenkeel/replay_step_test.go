package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Whole training steps by two ZeRO stages: every kind of stretch is recorded, sums and update are
// checked, and check predicts what was run and says what a plan's price has otherwise.
func TestTorchReplayOfWholeSteps(t *testing.T) {
	needTorch(t)
	dir, plans := replayPlans(t, "256", "ring")
	const profile = "../../results/evidence/torch/calibration.profile.json"
	whole, trace := filepath.Join(dir, "whole.plan.json"), filepath.Join(dir, "x.trace.jsonl")
	evenkeel(t, "solve", "--profile", profile, "--cluster", "1x2 torch_cpu:1", "--model", filepath.Join(dir, "config.json"), "--seq-len", "256",
		"--shares", "3:1", "--q-heads", "3:1", "--zero", "zero0", "--recompute", "full", "-q", "-o", whole)
	out := evenkeel(t, "replay", plans[0], whole, "--parts", "step", "--oversubscribe", "--repeats", "1", "--warmup", "0", "-o", trace)
	for _, want := range []string{"whole training steps (embedding, 2 whole layers, the loss, 256 at a time, exchange, AdamW), mode gloo-cpu", "\nsums ", "\nupdate ", " of 1e-03", "\nloss "} {
		if !strings.Contains(unindented(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	data, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"parts":"step","layers":2,`, `"update":{"params":`, `"op":"embed"`, `"op":"loss"`, `"op":"param_wait"`, `"op":"grad_wait"`, `"op":"optimizer"`, `"dir":"fwd","again":true`} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("no %s in the trace", want)
		}
	}
	checked := evenkeel(t, "check", trace, "--profile", profile, "--all")
	for _, want := range []string{"whole training steps of 2 layers (gloo-cpu)", "\nparam_wait ", "\noptimizer ", "\nembed ", "gathered once in a micro-batch of zero3", "looking tokens up"} {
		if !strings.Contains(checked, want) {
			t.Errorf("no %q in\n%s", want, checked)
		}
	}
	if !regexp.MustCompile(`linear +update `).MatchString(checked) {
		t.Errorf("no column of updates in\n%s", checked)
	}
	if strings.Contains(checked, "predicted, but not in the trace") {
		t.Error(checked)
	}
	noRanks(t)
}

// Whole training steps of a batch: gradients are added up over three micro-batches and both
// ranks, which meet after each but the last, and check predicts what was run.
func TestTorchReplayOfWholeStepsOfABatch(t *testing.T) {
	needTorch(t)
	dir, plan, model := batchPlan(t)
	const profile = "../../results/evidence/torch/calibration.profile.json"
	trace := filepath.Join(dir, "x.trace.jsonl")
	for _, zero := range []string{"zero1", "zero3"} {
		said := strings.Replace(handMadeBatch, `"costs": "by hand",`, `"costs": "by hand", "zero": "`+zero+`", "overlap_zero": true,`, 1)
		if err := os.WriteFile(plan, []byte(said), 0o600); err != nil {
			t.Fatal(err)
		}
		out := evenkeel(t, "replay", plan, "--model", model, "--parts", "step", "--oversubscribe", "--repeats", "1", "--warmup", "0", "-o", trace)
		for _, want := range []string{"whole training steps (embedding, ", "\nsums ", "\nupdate ", " of 1e-03", "\nloss ", "evenkeel in 3"} {
			if !strings.Contains(unindented(out), want) {
				t.Errorf("%s: no %q in\n%s", zero, want, out)
			}
		}
		data, err := os.ReadFile(trace)
		if err != nil {
			t.Fatal(err)
		}
		for want, there := range map[string]bool{
			`"parts":"step"`: true, `"zero":"` + zero + `","overlap_zero":true`: true, `"mb":0,"dir":"bwd","step":0,"op":"grad_wait"`: zero == "zero3",
			`"mb":2,"dir":"bwd","step":0,"op":"grad_wait"`: true, `"mb":1,"dir":"bwd","step":0,"op":"meet"`: true, `"mb":2,"dir":"bwd","step":0,"op":"meet"`: false,
			`"mb":2,"dir":"bwd","step":0,"op":"optimizer"`: true, `"mb":1,"dir":"fwd","step":0,"op":"param_wait"`: zero == "zero3",
		} {
			if bytes.Contains(data, []byte(want)) != there {
				t.Errorf("%s: %s in the trace: want %v", zero, want, there)
			}
		}
		checked := evenkeel(t, "check", trace, "--profile", profile, "--all")
		for _, want := range []string{"whole training steps of ", "\ngrad_wait ", "\noptimizer ", "\nembed ", "\nmeet "} {
			if !strings.Contains(checked, want) {
				t.Errorf("%s: no %q in\n%s", zero, want, checked)
			}
		}
		if strings.Contains(checked, "predicted, but not in the trace") {
			t.Error(checked)
		}
	}
	noRanks(t)
}

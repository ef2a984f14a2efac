package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/go-json-experiment/json"
)

// From a plan of one device over whole training steps of torch to plans by these: what the
// example writes is what fit reads, and times of processors are found as those of GPUs.
func TestTorchTrainingSteps(t *testing.T) {
	needTorch(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	config := `{"model_type":"llama","hidden_size":256,"intermediate_size":512,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":64,"vocab_size":1000}`
	if err := os.WriteFile(file("config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	const evidence = "../../results/evidence/torch/calibration."
	planned := func(profile, name, again string) float64 {
		evenkeel(t, "solve", "--profile", profile, "--cluster", "1x1 torch_cpu:1", "--model", file("config.json"),
			"--seq-len", "512", "--dtype", "f32", "--zero", "zero0", "--recompute", again, "-o", file(name), "-q")
		var plan struct {
			Step struct {
				Time struct {
					Mid float64 `json:"mid_s"`
				} `json:"time"`
			} `json:"step"`
		}
		decode(t, file(name), &plan)
		return plan.Step.Time.Mid
	}
	alone := planned(evidence+"profile.json", "none.plan.json", "none")
	again := planned(evidence+"profile.json", "full.plan.json", "full")
	train := exec.Command(pythonWithTorch(t), "../../python/examples/train_step.py", file("none.plan.json"), file("full.plan.json"), "--kernel", "plain", "-o", file("steps.json"))
	if out, err := train.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// The calibration is another day's, of a machine that may have had less to do: how much faster
	// it was is not this test's to judge, and fit refuses steps that are ten times off.
	var steps fit.Training
	if err := doc.Load(file("steps.json"), &steps); err != nil {
		t.Fatal(err)
	}
	for i, calls := range []float64{alone, again} {
		halfAsFast(&steps.Steps[i], calls)
	}
	if err := doc.Save(file("steps.json"), &steps); err != nil {
		t.Fatal(err)
	}
	evenkeel(t, "fit", evidence+"rec.jsonl", "--training", file("steps.json"), "-o", file("trained.json"), "-q")
	var p costmodel.Profile
	if err := doc.Load(file("trained.json"), &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Training) != 1 || p.Training[0].Device != "torch_cpu:1" || p.Training[0].Steps != 2 {
		t.Fatalf("%+v", p.Training)
	}
	by := planned(file("trained.json"), "trained.plan.json", "none") / alone
	least, most := min(p.Training[0].Layers, p.Training[0].Loss, p.Training[0].Optimizer), max(p.Training[0].Layers, p.Training[0].Loss, p.Training[0].Optimizer)
	if by < least*0.999 || by > most*1.001 {
		t.Errorf("the plan takes %v times as long, its parts %v to %v times", by, least, most)
	}
}

// halfAsFast scales a step's times, whose shares of the step stay: together they take twice what
// its calls do, in seconds.
func halfAsFast(s *fit.TrainedStep, calls float64) {
	var took units.Seconds
	for _, p := range costmodel.StepParts() {
		took += s.Median(p)
	}
	by := units.Seconds(2*calls) / took
	for i := range s.Times {
		t := &s.Times[i]
		t.Forward, t.Loss, t.Backward, t.Optimizer = t.Forward*by, t.Loss*by, t.Backward*by, t.Optimizer*by
	}
}

// pythonWithTorch is the interpreter that needTorch found, by the same order.
func pythonWithTorch(t *testing.T) string {
	t.Helper()
	for _, python := range []string{os.Getenv("EVENKEEL_PYTHON"), "python3", "/usr/bin/python3"} {
		if python != "" && exec.Command(python, "-I", "-c", "import torch").Run() == nil {
			return python
		}
	}
	t.Fatal("no Python has torch, though the worker found one: " + strings.Join([]string{os.Getenv("EVENKEEL_PYTHON"), os.Getenv("PATH")}, ", "))
	return ""
}

// decode reads the keys of a JSON file that v has.
func decode(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// Beside references a profile of one's own is of training steps, by what is assumed over calls
// that were measured, until it has ratios of its own.
func TestBesideReferencesCallsAreOfTrainingSteps(t *testing.T) {
	plan := func(profile string) string {
		return evenkeel(t, "solve", "--profile", profile, "--cluster", "1x4 h100_sxm", "--model", "testdata/config.json", "--seq-len", "32k", "--recompute", "full", "-q")
	}
	const own = "../../results/evidence/h100/calibration.profile.json"
	said := strings.Join(strings.Fields(plan(own+",references")), " ")
	for _, want := range []string{
		"a call on h100_sxm takes as long as in whole training steps of one H100, which is assumed, not as alone: in layers 1.12, in the loss 3.38, in the optimizer 1.55 times",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	const steps = "../../results/evidence/h100/training.json"
	var p costmodel.Profile
	var x fit.Training
	trained := filepath.Join(t.TempDir(), "trained.json")
	for _, err := range []error{doc.Load(own, &p), doc.Load(steps, &x), x.Onto(&p, doc.Input{Path: steps, SHA256: doc.HashBytes(nil)}), doc.Save(trained, &p)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if said := strings.Join(strings.Fields(plan(trained+",references")), " "); !strings.Contains(said, "in the 9 whole training steps measured of it, not as alone: in layers 1.12") {
		t.Errorf("it has ratios of its own:\n%s", said)
	}
}

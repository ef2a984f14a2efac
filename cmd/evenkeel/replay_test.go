package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/replay"
)

// smallModel is a model whose layers run in milliseconds.
const smallModel = `{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
"num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "vocab_size": 128, "max_position_embeddings": 65536, "torch_dtype": "float32", "hidden_act": "silu"}`

// replayPlans makes plans of 2 ranks by the laws of the recorded profile, one a
// strategy, and returns their names in a folder.
func replayPlans(t *testing.T, seqLen string, strategies ...string) (dir string, plans []string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv(mark, dir)
	model := filepath.Join(dir, "config.json")
	if err := os.WriteFile(model, []byte(smallModel), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range strategies {
		plan := filepath.Join(dir, s+".plan.json")
		evenkeel(t, "solve", "--profile", "../../results/evidence/torch/calibration.profile.json", "--cluster", "1x2 torch_cpu:1",
			"--model", model, "--seq-len", seqLen, "--take", s, "-o", plan, "-q")
		plans = append(plans, plan)
	}
	return dir, plans
}

// Plans run on real ranks: right to the limit, every byte as planned, and the
// trace shows what replay showed.
func TestTorchReplayOfTwoPlans(t *testing.T) {
	needTorch(t)
	dir, plans := replayPlans(t, "512", "ring", "ulysses")
	trace := filepath.Join(dir, "x.trace.jsonl")
	for _, parts := range []string{"layer", "attention"} {
		out := evenkeel(t, append([]string{"replay", "--oversubscribe", "--repeats", "3", "--warmup", "1", "--parts", parts, "-o", trace}, plans...)...)
		for _, want := range []string{"2 plans on 2 ranks, 3 blocks after 1", "mode gloo-cpu, attention kernel math", "ring.plan.json", "ulysses.plan.json", "torch_cpu:1", "equal what the plan says"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", parts, want, out)
			}
		}
		if shown := evenkeel(t, "show", trace); shown != out {
			t.Errorf("show prints\n%s\nreplay printed\n%s", shown, out)
		}
		data, err := os.ReadFile(trace)
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Contains(data, []byte(`"op":"linear_in"`)); got != (parts == "layer") {
			t.Errorf("%s: linear parts: %v", parts, got)
		}
	}
	noRanks(t)
}

// A plan whose micro-batches go in twos runs them so beside one that does not, and check
// knows both of their micro-batches.
func TestTorchReplayInTwos(t *testing.T) {
	needTorch(t)
	dir, plans := replayPlans(t, "512", "ring")
	twos, one := filepath.Join(dir, "twos.plan.json"), filepath.Join(dir, "one.plan.json")
	const profile = "../../results/evidence/torch/calibration.profile.json"
	asked := []string{"solve", "--profile", profile, "--cluster", "1x2 torch_cpu:1", "--model", filepath.Join(dir, "config.json"), "--seq-len", "512", "--shares", "3:1", "--q-heads", "3:1", "--grad-accumulation", "2", "-q", "-o"}
	evenkeel(t, append(slices.Clone(asked), one)...)
	evenkeel(t, append(asked, twos, "--two-batch-overlap")...)
	turns := filepath.Join(dir, "turns.plan.json")
	ring := slices.Delete(slices.Clone(asked), slices.Index(asked, "--q-heads"), slices.Index(asked, "--q-heads")+2)
	evenkeel(t, append(ring, turns, "--two-batch-overlap", "--weave")...)
	trace := filepath.Join(dir, "x.trace.jsonl")
	for _, parts := range []string{"layer", "attention"} {
		out := evenkeel(t, "replay", "--oversubscribe", "--repeats", "3", "--warmup", "1", "--parts", parts, "-o", trace, twos, one, turns, plans[0])
		for _, want := range []string{"4 plans on 2 ranks", "given in 2", "ring in 2", "equal what the plan says"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", parts, want, out)
			}
		}
		checked := evenkeel(t, "check", trace, "--profile", profile, "--all")
		for _, want := range []string{"twos (given in 2)", "turns (given in 2)", "rank, micro-batch, step", "a2a_in"} {
			if !strings.Contains(checked, want) {
				t.Errorf("%s: no %q in\n%s", parts, want, checked)
			}
		}
		if strings.Contains(checked, "predicted, but not in the trace") {
			t.Errorf("%s: %s", parts, checked)
		}
	}
	noRanks(t)
}

// What cannot be run is refused without Python, with the field and the code.
func TestReplayRefusesWrongPlans(t *testing.T) {
	dir, plans := replayPlans(t, "512", "ring")
	whole, err := os.ReadFile(plans[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		old, new string
		args     []string
		code     int
		want     string
	}{
		{`"end_tokens": 128`, `"end_tokens": 127`, nil, exitFailed, "ranks[0].tokens: 256: the segments have 255"},
		{`"simulated": false`, `"simulated": true`, nil, exitFailed, "simulated: true: "},
		{"evenkeel.plan/v2", "evenkeel.plan/v9", nil, exitFailed, "x.plan.json: schema: evenkeel.plan/v9 was written by evenkeel"},
		{"", "", []string{"--comm", "nccl", "--oversubscribe"}, exitFailed, "runs over gloo, not nccl"},
		{"", "", []string{"--kernel", "fa9"}, exitUsage, `--kernel "fa9": want auto, math, `},
		{"", "", []string{"--parts", "half"}, exitUsage, `--parts "half": want layer, loss, step, attention`},
		{"", "", []string{"--docs", "1k,few"}, exitUsage, "--docs: number 2: "},
		{"", "", []string{"--docs", "256,255", "--oversubscribe"}, exitUsage, "--docs 256,255: want lengths from 1 that sum up to the 512 tokens of "},
		{"", "", []string{"--oversubscribe", plans[0]}, exitFailed, plans[0] + ": holds the same plan as " + filepath.Join(dir, "x.plan.json") + ": what they differ by is noise"},
		{"", "", []string{"--sampled-above", "x"}, exitUsage, "--sampled-above "},
		{"", "", []string{"--repeats", "0"}, exitUsage, "--repeats 0: want 1 to"},
		{"", "", []string{"--warmup", "-1"}, exitUsage, "--warmup -1: want 0 to"},
		{"", "", []string{"--timeout", "10ms"}, exitUsage, "--timeout 10ms: want at least a second"},
		{"", "", []string{"--oversubscribe", "-o", filepath.Join(dir, "x.plan.json")}, exitUsage, "x.plan.json: is one of the files that are read"},
		{"", "", []string{"--oversubscribe", "-o", dir}, exitFailed, dir + ": is a folder; name a file to write"},
		{"", "", []string{"--oversubscribe", "-o", filepath.Join(dir, "none", "x.jsonl")}, exitFailed, "there is no folder " + filepath.Join(dir, "none") + " to write it to"},
	} {
		plan := filepath.Join(dir, "x.plan.json")
		if err := os.WriteFile(plan, bytes.Replace(whole, []byte(c.old), []byte(c.new), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(c.args, "-o") {
			c.args = append(c.args, "-o", filepath.Join(dir, "x.trace.jsonl"))
		}
		out, err := exec.Command("evenkeel", append([]string{"replay", plan, "--python", "/no/such/python"}, c.args...)...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%q for %q, %q: %v: got %s\nwant %s", c.new, c.old, c.args, err, out, c.want)
		}
	}
	out, err := exec.Command("evenkeel", "replay").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "replay: want plans, got 0 arguments") {
		t.Errorf("%v %s", err, out)
	}
}

// A plan whose layers are recomputed, of several packed documents.
func TestTorchReplayOfDocumentsWithRecomputation(t *testing.T) {
	needTorch(t)
	dir, plans := replayPlans(t, "512", "ring")
	data, err := os.ReadFile(plans[0])
	if err != nil {
		t.Fatal(err)
	}
	trace := filepath.Join(dir, "x.trace.jsonl")
	out := evenkeel(t, "solve", "--profile", "../../results/evidence/torch/calibration.profile.json", "--cluster", "1x2 torch_cpu:1", "--model", filepath.Join(dir, "config.json"),
		"--seq-len", "512", "--take", "ring", "--recompute", "full", "-o", plans[0])
	if now, err := os.ReadFile(plans[0]); err != nil || bytes.Equal(now, data) {
		t.Fatal(out, err)
	}
	evenkeel(t, "replay", plans[0], "--oversubscribe", "--repeats", "2", "--layers", "2", "--docs", "300,100,112", "-o", trace)
	if data, err = os.ReadFile(trace); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"docs_tokens":[300,100,112]`, `"layer":1`, `"dir":"fwd","again":true`, `"dir":"bwd"`} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("no %s in the trace", want)
		}
	}
}

// handMadeBatch is a plan of batches on 2 ranks: both in a ring, own blocks last, with sequences
// that only one of them has tokens of, then each alone; and both in an
// all-to-all, recomputing, in which rank 0 has three quarters of the tokens.
const handMadeBatch = `{"schema": "evenkeel.batchplan/v1", "tool": "by hand", "created": "2026-01-31T12:00:00Z", "inputs": [], "costs": "by hand",
"lengths_tokens": [200, 1, 90, 60, 3, 128], "fleet": [{"device": "torch_cpu:1", "ranks": [[0]]}, {"device": "torch_cpu:1", "ranks": [[1]]}],
"classes": [
 {"name": "ring", "devices": [1, 1], "base_s": 0.1, "cap_tokens": 512, "head_ranks": 1, "own_last": true},
 {"name": "first", "devices": [1, 0], "base_s": 0.1, "cap_tokens": 512}, {"name": "second", "devices": [0, 1], "base_s": 0.1, "cap_tokens": 512},
 {"name": "all-to-all", "devices": [1, 1], "base_s": 0.1, "cap_tokens": 512, "shares": [0.75, 0.25], "head_ranks": 2, "q_heads": [3, 1], "recompute": true}],
"strategy": "evenkeel", "micro_batches": [
 {"groups": [{"class": 0, "sequences": [0, 1], "ranks": [0, 1], "length_tokens": 201, "time_s": 1}], "time_s": 1},
 {"groups": [{"class": 1, "sequences": [2], "ranks": [0], "length_tokens": 90, "time_s": 1}, {"class": 2, "sequences": [3, 4], "ranks": [1], "length_tokens": 63, "time_s": 1}], "time_s": 1},
 {"groups": [{"class": 3, "sequences": [5], "ranks": [0, 1], "length_tokens": 128, "time_s": 1}], "time_s": 1}],
"step_s": 3, "lower_bound_s": 2, "gap": 0.5, "considered": [], "notes": []}`

// batchPlan writes that plan and a model.
func batchPlan(t *testing.T) (dir, plan, model string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv(mark, dir)
	plan, model = filepath.Join(dir, "x.batch.json"), filepath.Join(dir, "config.json")
	if err := errors.Join(os.WriteFile(plan, []byte(handMadeBatch), 0o600), os.WriteFile(model, []byte(smallModel), 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir, plan, model
}

// A plan of batches runs on real ranks: right to the limit, every byte and FLOP
// as its groups' plans say, and every micro-batch in the trace.
func TestTorchReplayBatch(t *testing.T) {
	needTorch(t)
	dir, plan, model := batchPlan(t)
	trace := filepath.Join(dir, "x.trace.jsonl")
	out := evenkeel(t, "replay", plan, "--model", model, "--oversubscribe", "--repeats", "2", "--warmup", "1", "--layers", "2", "-o", trace)
	for _, want := range []string{"1 plan on 2 ranks, 2 blocks after 1", "x.batch.json", "evenkeel in 3", "equal what the plan says", "after every micro-batch"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if shown := evenkeel(t, "show", trace); shown != out {
		t.Errorf("show prints\n%s\nreplay printed\n%s", shown, out)
	}
	data, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"batch":true,"micro_batches":3,"model":{`, `"path":"config.json"`, `"dtype":"f32"`, `"mb":1,"dir":"bwd"`, `"mb":2,"dir":"fwd","again":true`,
		`"shape":{"tokens":96}`, `"own_last":true`, `"reference":"dense"`, `"layer":{"out":`,
	} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("no %s in the trace", want)
		}
	}
	if bytes.Contains(data, []byte(`"skipped"`)) || bytes.Contains(data, []byte(`"mb":0,"dir":"fwd","again"`)) {
		t.Error("a layer was not compared, or recomputed where no class says so")
	}
	noRanks(t)
}

// A plan of batches needs a model that suits it, and takes no packing from outside.
func TestReplayRefusesWrongPlansOfBatches(t *testing.T) {
	dir, plan, model := batchPlan(t)
	_, plans := replayPlans(t, "512", "ring")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{plan}, exitUsage, "x.batch.json: schema: \"evenkeel.batchplan/v1\": such a plan does not hold the model"},
		{[]string{plan, "--dtype", "f32"}, exitUsage, "--dtype f32: goes with --model"},
		{[]string{plan, "--model", model, "--dtype", "i9"}, exitUsage, "--dtype i9: want f32"},
		{[]string{plan, "--model", model, "--dtype", "fp8"}, exitUsage, "--dtype fp8: want f32"},
		{[]string{plan, "--model", model, "--docs", "100,101"}, exitUsage, "--docs 100,101: want none, for "},
		{[]string{plan, "--model", model, "--parts", "step"}, exitUsage, "x.batch.json does not say what is sharded (zero)"},
		{[]string{plans[0], "--model", model}, exitUsage, "all of these have models of their own"},
		{[]string{plan, "--model", filepath.Join(dir, "none.json")}, exitFailed, "none.json"},
	} {
		out, err := exec.Command("evenkeel", append(append([]string{"replay"}, c.args...), "--python", "/no/such/python", "-o", filepath.Join(dir, "x.trace.jsonl"))...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%q: %v: got %s\nwant %s", c.args, err, out, c.want)
		}
	}
}

// Whoever stops a replay before there are ranks is told what became of it.
func TestReplayInterruptedBeforeAnyRankIsStarted(t *testing.T) {
	dir, plan, model := batchPlan(t)
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	o := replaying{out: filepath.Join(dir, "x.trace.jsonl"), model: model, parts: replay.PartsLayer, layers: 1, repeats: 1, kernel: "auto", sampledAbove: "8k", timeout: time.Minute, oversubscribe: true, python: "/no/such/python"}
	err := (&app{out: io.Discard, errOut: io.Discard}).runReplay(interrupted, o, []string{plan})
	if want := "interrupted while a Python with torch was looked for, before any rank was started; no trace was written"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// handMadePipeline is a plan of a pipeline on 2 ranks: rank 0 has the first layer, and rank 1 the
// other two, which it computes again of some chunks. A sequence goes in three slices, two with a
// whole one behind them.
const handMadePipeline = `{"schema": "evenkeel.pipelineplan/v1", "tool": "by hand", "created": "2026-01-31T12:00:00Z", "inputs": [], "name": "two ranks", "prices": "by hand",
"lengths_tokens": [200, 1, 30, 90], "layers": 3, "devices": ["torch_cpu:1", "torch_cpu:1"], "strategy": "evenkeel",
"stages": [{"ranks": [0], "layers": 1}, {"ranks": [1], "layers": 2}],
"chunks": [{"sequence": 0, "slice_tokens": 100, "whole": [1]}, {"sequence": 0, "context_tokens": 100, "slice_tokens": 60},
 {"sequence": 0, "context_tokens": 160, "slice_tokens": 40, "whole": [2]}, {"sequence": -1, "whole": [3]}],
"recomputed_layers": [[0, 0, 0, 0], [1, 2, 0, 0]],
"orders": [
 [{"chunk": 0, "start_s": 0, "end_s": 1}, {"chunk": 1, "start_s": 1, "end_s": 2}, {"chunk": 2, "start_s": 2, "end_s": 3}, {"chunk": 3, "start_s": 3, "end_s": 4},
  {"chunk": 2, "backward": true, "start_s": 4, "end_s": 5}, {"chunk": 3, "backward": true, "start_s": 5, "end_s": 6}, {"chunk": 1, "backward": true, "start_s": 6, "end_s": 7}, {"chunk": 0, "backward": true, "start_s": 7, "end_s": 8}],
 [{"chunk": 0, "start_s": 0, "end_s": 1}, {"chunk": 1, "start_s": 1, "end_s": 2}, {"chunk": 2, "start_s": 2, "end_s": 3}, {"chunk": 2, "backward": true, "start_s": 3, "end_s": 4},
  {"chunk": 3, "start_s": 4, "end_s": 5}, {"chunk": 3, "backward": true, "start_s": 5, "end_s": 6}, {"chunk": 1, "backward": true, "start_s": 6, "end_s": 7}, {"chunk": 0, "backward": true, "start_s": 7, "end_s": 8}]],
"step_s": 8, "lower_bound_s": 4, "gap": 1, "memory": [{"states_bytes": 1, "activations_bytes": 1, "capacity_bytes": 0}, {"states_bytes": 1, "activations_bytes": 1, "capacity_bytes": 0}],
"considered": [], "notes": []}`

// pipelinePlan writes that plan, one whose stages wait for each other, and a model of three layers.
func pipelinePlan(t *testing.T) (dir, plan, waiting, model string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv(mark, dir)
	plan, waiting, model = filepath.Join(dir, "x.pipeline.json"), filepath.Join(dir, "waiting.json"), filepath.Join(dir, "config.json")
	// Chunk 2 goes backward before chunk 3 goes forward on the first stage, and on the second one after it.
	turned := strings.NewReplacer(`{"chunk": 3, "start_s": 3, "end_s": 4},`, `{"chunk": 2, "backward": true, "start_s": 3, "end_s": 4},`,
		`{"chunk": 2, "backward": true, "start_s": 4, "end_s": 5}, {"chunk": 3, "back`, `{"chunk": 3, "start_s": 4, "end_s": 5}, {"chunk": 3, "back`,
		`{"chunk": 2, "backward": true, "start_s": 3, "end_s": 4},`, `{"chunk": 3, "start_s": 3, "end_s": 4},`,
		`{"chunk": 3, "start_s": 4, "end_s": 5}, {"chunk": 3, "back`, `{"chunk": 2, "backward": true, "start_s": 4, "end_s": 5}, {"chunk": 3, "back`)
	if err := errors.Join(os.WriteFile(plan, []byte(handMadePipeline), 0o600), os.WriteFile(waiting, []byte(turned.Replace(handMadePipeline)), 0o600),
		os.WriteFile(model, []byte(strings.Replace(smallModel, `"num_hidden_layers": 2`, `"num_hidden_layers": 3`, 1)), 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir, plan, waiting, model
}

// A plan of a pipeline runs on real ranks: attention and all layers right to the limit, every byte
// and FLOP as planned, every chunk in the trace, and what is to be computed again there alone.
func TestTorchReplayPipeline(t *testing.T) {
	needTorch(t)
	dir, plan, _, model := pipelinePlan(t)
	trace := filepath.Join(dir, "x.trace.jsonl")
	cmd := exec.Command("evenkeel", "replay", plan, "--model", model, "--oversubscribe", "--repeats", "2", "--warmup", "1")
	cmd.Dir = dir
	var said bytes.Buffer
	cmd.Stderr = &said
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	if !strings.Contains(said.String(), "wrote x.trace.jsonl; compare it with the prediction: evenkeel check x.trace.jsonl") {
		t.Error(said.String())
	}
	out := string(printed)
	for _, want := range []string{
		"1 plan on 2 ranks, 2 blocks after 1", "all layers forward and backward", "x.pipeline.json", "evenkeel in 4", "stages in order: 1 layer on rank 0; 2 layers on rank 1",
		"equal what the plan says", "also waiting for another stage",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	show := exec.Command("evenkeel", "show", "x.trace.jsonl")
	show.Dir = dir
	if shown, err := show.Output(); err != nil || string(shown) != out {
		t.Errorf("%v: show prints\n%s\nreplay printed\n%s", err, shown, out)
	}
	data, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"micro_batches":4,"model":{`, `"pipeline":{"lengths_tokens":[200,1,30,90],"layers":3,`, `"path":"config.json"`, `"dtype":"f32"`, `"reference":"dense"`, `"layer":{"out":`,
		`"rank":1,"layer":1,"mb":0,"dir":"fwd","again":true`, `"rank":1,"layer":2,"mb":1,"dir":"fwd","again":true`, `"rank":0,"layer":0,"mb":3,"dir":"bwd"`,
		`"rank":1,"layer":1,"mb":2,"dir":"fwd","step":0,"op":"stage_wait"`, `"rank":0,"layer":0,"mb":2,"dir":"bwd","step":0,"op":"stage_wait"`,
		`"shape":{"mask":"full","q_len":40,"kv_len":160,`, `"shape":{"mask":"diag","q_len":1,"kv_len":1,`, `"shape":{"tokens":101}`,
	} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("no %s in the trace", want)
		}
	}
	for _, not := range []string{`"skipped"`, `"layer":2,"mb":0,"dir":"fwd","again"`, `"mb":2,"dir":"fwd","again"`, `"rank":0,"layer":1`, `"rank":1,"layer":0`} {
		if bytes.Contains(data, []byte(not)) {
			t.Errorf("the trace has %s", not)
		}
	}
	checked, err := exec.Command("evenkeel", "check", trace, "--profile", "../../results/evidence/torch/calibration.profile.json").CombinedOutput()
	if err != nil || !strings.Contains(string(checked), "MEASURED replay of 1 plan: all layers forward and backward") || !strings.Contains(string(checked), "stage_wait") {
		t.Errorf("%v: %s", err, checked)
	}
	noRanks(t)
}

// A plan of a pipeline needs the model that it was made for, and is run as it is.
func TestReplayRefusesWrongPlansOfPipelines(t *testing.T) {
	dir, plan, waiting, model := pipelinePlan(t)
	other, torn := filepath.Join(dir, "other.json"), filepath.Join(dir, "torn.json")
	if err := errors.Join(os.WriteFile(other, []byte(smallModel), 0o600), os.WriteFile(torn, []byte(handMadePipeline[:700]), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{plan}, exitUsage, "x.pipeline.json: schema: \"evenkeel.pipelineplan/v1\": such a plan does not hold the model"},
		{[]string{plan, "--model", other}, exitFailed, "x.pipeline.json: layers: 3: the model has 2"},
		{[]string{plan, "--model", model, "--dtype", "fp8"}, exitUsage, "--dtype fp8: want f32"},
		{[]string{plan, "--model", model, "--docs", "300,21"}, exitUsage, "--docs 300,21: want none, for "},
		{[]string{plan, "--model", model, "--parts", "attention"}, exitUsage, "--parts attention: want layer, for the stages of "},
		{[]string{waiting, "--model", model}, exitFailed, "waiting.json: orders: stages wait for each other: stage 0 for chunk 2"},
		{[]string{torn, "--model", model}, exitFailed, "torn.json:8:72: ends in the middle"},
	} {
		out, err := exec.Command("evenkeel", append(append([]string{"replay"}, c.args...), "--python", "/no/such/python", "-o", filepath.Join(dir, "x.trace.jsonl"))...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%q: %v: got %s\nwant %s", c.args, err, out, c.want)
		}
	}
}

// In a job of several tasks each runs its rank, and the one of rank 0 writes the
// trace; when a task ends, so does the job, and nothing is written.
func TestTorchReplayAsTasksOfAJob(t *testing.T) {
	needTorch(t)
	dir, plans := replayPlans(t, "512", "ring")
	trace := filepath.Join(dir, "x.trace.jsonl")
	start := func(task int, port, repeats string) (*exec.Cmd, *lines) {
		cmd := exec.Command("evenkeel", "replay", plans[0], "--repeats", repeats, "--timeout", "20s", "-o", trace)
		cmd.Env = append(os.Environ(), "EVENKEEL_TASKS=2", "EVENKEEL_TASK="+strconv.Itoa(task), "EVENKEEL_MASTER=127.0.0.1:"+port)
		said := &lines{}
		cmd.Stderr = said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, unless the test fails
		return cmd, said
	}
	port := freePort(t)
	first, said := start(0, port, "2")
	second, other := start(1, port, "2")
	if err := errors.Join(first.Wait(), second.Wait()); err != nil {
		t.Fatalf("%v: %s %s", err, said.text(), other.text())
	}
	if !strings.Contains(other.text(), "rank 1 is done; the task of rank 0 writes the trace") || !strings.Contains(evenkeel(t, "show", trace), "1 plan on 2 ranks, 2 blocks") {
		t.Error(other.text())
	}
	if err := os.Remove(trace); err != nil {
		t.Fatal(err)
	}
	port = freePort(t)
	first, said = start(0, port, "100000")
	second, other = start(1, port, "100000")
	if !said.within(90*time.Second, "block 1 of 100000") {
		t.Fatalf("it does not come to timing: %s %s", said.text(), other.text())
	}
	send(t, second.Process, syscall.SIGKILL)
	if err := errors.Join(first.Wait(), second.Wait()); err == nil || !strings.Contains(said.text(), "rank 0 (torch_cpu:1) reports: ") || !strings.Contains(said.text(), "no trace was written") {
		t.Errorf("%v: %s", err, said.text())
	}
	noRanks(t)
	if _, err := os.Stat(trace); err == nil {
		t.Error("a trace was written")
	}
}

// freePort is a port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// A rank that is killed or stands still in the middle of a step, evenkeel
// interrupted or itself killed: nothing is left of any of it.
func TestTorchReplayIsKilled(t *testing.T) {
	needTorch(t)
	dir, plans := replayPlans(t, "2k", "ring", "ulysses")
	for name, c := range map[string]struct {
		strike func(t *testing.T, replay *os.Process)
		want   string
	}{
		"a rank killed":  {func(t *testing.T, _ *os.Process) { signalRank(t, syscall.SIGKILL) }, "(torch_cpu:1) was killed (signal: killed) at block "},
		"a rank stopped": {func(t *testing.T, _ *os.Process) { signalRank(t, syscall.SIGSTOP) }, "(torch_cpu:1) said nothing for "},
		"interrupted":    {func(t *testing.T, p *os.Process) { send(t, p, syscall.SIGINT) }, "interrupted; all ranks were stopped and no trace was written"},
		"itself killed":  {func(t *testing.T, p *os.Process) { send(t, p, syscall.SIGKILL) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			trace := filepath.Join(t.TempDir(), "x.trace.jsonl")
			cmd := exec.Command("evenkeel", append([]string{"replay", "--oversubscribe", "--repeats", "100000", "--timeout", "20s", "-o", trace}, plans...)...)
			var said lines
			cmd.Stderr, cmd.Dir = &said, dir
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, unless the test fails
			if !said.within(90*time.Second, "block 1 of 100000") {
				t.Fatalf("it does not come to timing: %s", said.text())
			}
			time.Sleep(time.Second) // until the other rank, whose word may come later, is heard to be there too
			c.strike(t, cmd.Process)
			begun := time.Now()
			err := cmd.Wait()
			if took := time.Since(begun); err == nil || took > 30*time.Second {
				t.Errorf("%v after %s", err, took)
			}
			if !strings.Contains(said.text(), c.want) {
				t.Errorf("no %q in %s", c.want, said.text())
			}
			noRanks(t)
			if left, err := os.ReadDir(filepath.Dir(trace)); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func send(t *testing.T, p *os.Process, s os.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// mark names a variable that tells the processes of a test from others' on the
// machine.
const mark = "EVENKEEL_TEST_MARK"

// marked are the processes that this test started, or what it started, whose command line
// has all of the words.
func marked(words ...string) []int {
	var found []int
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range processes {
		data, err := os.ReadFile(p)
		if err != nil || slices.ContainsFunc(words, func(w string) bool { return !bytes.Contains(data, []byte(w)) }) {
			continue
		}
		env, err := os.ReadFile(filepath.Join(filepath.Dir(p), "environ"))
		if err != nil || !bytes.Contains(env, []byte(mark+"="+os.Getenv(mark)+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p))); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// ranks are the processes of the rank program that this test started.
func ranks() []int { return marked("from evenkeel.replay import main") }

func signalRank(t *testing.T, s syscall.Signal) {
	t.Helper()
	all := ranks()
	if len(all) != 2 {
		t.Fatalf("ranks: %v", all)
	}
	if err := syscall.Kill(all[1], s); err != nil {
		t.Fatal(err)
	}
}

// noRanks fails if a rank lives on.
func noRanks(t *testing.T) {
	t.Helper()
	none(t, ranks)
}

// none fails if processes live on for longer than 5 s.
func none(t *testing.T, processes func() []int) {
	t.Helper()
	var alive []int
	for range 100 {
		if alive = processes(); len(alive) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("processes live on: %v", alive)
}

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// So many tokens' logits exist at a time as is asked for, else as the plans say, which have to say
// the same.
func TestReplayTakesThePlansLossChunk(t *testing.T) {
	plan := func(chunk units.Tokens) *replay.Plan {
		p := &replay.Plan{Path: "p" + chunk.String()}
		p.Job.LossChunk = chunk
		return p
	}
	for _, c := range []struct {
		asked, parts string
		plans        []*replay.Plan
		chunk        units.Tokens
		want         string
	}{
		{"", replay.PartsLoss, []*replay.Plan{plan(0), plan(512), plan(512)}, 512, ""},
		{"", replay.PartsLoss, []*replay.Plan{plan(0)}, 1024, ""},
		{"64", replay.PartsLoss, []*replay.Plan{plan(512), plan(256)}, 64, ""},
		{"", replay.PartsLayer, []*replay.Plan{plan(512), plan(256)}, 0, ""}, // none is run
		{"", replay.PartsLoss, []*replay.Plan{plan(512), plan(0), plan(256)}, 0, "p256: job.loss_chunk_tokens: 256, p512 has 512: say how many at a time, --loss-chunk"},
		{"64", replay.PartsLayer, []*replay.Plan{plan(512)}, 0, "--loss-chunk 64: goes with --parts loss"},
		{"many", replay.PartsLoss, []*replay.Plan{plan(512)}, 0, `--loss-chunk "many": want a number of tokens`},
	} {
		got, err := replaying{lossChunk: c.asked, parts: c.parts}.chunk(c.plans)
		if got != c.chunk || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %d, %v", c, got, err)
		}
	}
}

// With the loss, whose law the profile has: behind the last stage's forward passes.
func TestTorchReplayLoss(t *testing.T) {
	needTorch(t)
	dir, plan, _, model := pipelinePlan(t)
	trace := filepath.Join(dir, "x.trace.jsonl")
	out, err := exec.Command("evenkeel", "replay", plan, "--model", model, "--parts", "loss", "--loss-chunk", "64", "--oversubscribe", "--repeats", "1", "--warmup", "0", "-o", trace).CombinedOutput()
	for _, want := range []string{"all layers and the loss, 64 at a time, forward and backward", "\nloss ", " of 2e-05", "the embedding, the traffic of ZeRO and the optimizer were not run"} {
		if err != nil || !strings.Contains(unindented(string(out)), want) {
			t.Errorf("%v: no %q in\n%s", err, want, out)
		}
	}
	data, err := os.ReadFile(trace)
	for _, want := range []string{`"parts":"loss","layers":3,"loss_chunk_tokens":64,`, `"loss":{"dx":`, `"rank":1,"layer":2,"mb":0,"dir":"fwd","step":0,"op":"loss"`} {
		if err != nil || !bytes.Contains(data, []byte(want)) {
			t.Errorf("%v: no %s in the trace", err, want)
		}
	}
	checked, err := exec.Command("evenkeel", "check", trace, "--profile", "../../results/evidence/torch/calibration.profile.json").CombinedOutput()
	for _, want := range []string{"all layers and the loss forward and backward", "\nloss ", "transformer layers and the loss are run"} {
		if err != nil || !strings.Contains(string(checked), want) {
			t.Errorf("%v: no %q in\n%s", err, want, checked)
		}
	}
	noRanks(t)
}

// unindented is a text without spaces at the beginning of lines, where columns put them.
func unindented(s string) string { return regexp.MustCompile(`\n +`).ReplaceAllString(s, "\n") }

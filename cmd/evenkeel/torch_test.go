package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/go-json-experiment/json"
)

// needTorch skips a test where no interpreter has torch and says so, unless the
// caller asked for these tests: `make test-torch` installs torch and asks.
func needTorch(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("measures for tens of seconds")
	}
	out, err := findsTorch()
	switch {
	case err == nil:
	case bytes.Contains(out, []byte("no Python can run the worker")) && os.Getenv("EVENKEEL_NEED_TORCH") == "":
		t.Skipf("%s (make test-torch installs it)", out)
	default:
		t.Fatalf("%v: %s", err, out)
	}
}

// findsTorch asks once whether there is an interpreter with torch, which takes workers and
// so seconds to say.
var findsTorch = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "evenkeel-test")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	return exec.Command("evenkeel", "calibrate", "--backend", "torch", "--dry-run", "--budget", "10m", "--out", dir).CombinedOutput()
})

// evenkeel runs a command line and returns what it printed.
func evenkeel(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("evenkeel", args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("evenkeel %s: %v\n%s\n%s", strings.Join(args, " "), err, out, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// What times mean on a machine that others use, with more ranks than cores, is
// little: the limits only refuse what is out of all proportion. Accuracy is
// judged where it means something, in results/evidence.
const looseLimits = "attention=50%,gemm=50%,bandwidth=60%,layer=60%,collective=150%"

// disturbed is how far a repeat of a canary lies from its first time, as a ratio either
// way, where a recording tells more of the machine than of the profile: the narrowest of
// looseLimits.
const disturbed = 1.5

// The whole path through torch: compute and collectives on two and four ranks,
// fitted, checked, shown and resumed. Above the limits where canaries moved, it is measured
// anew, as check advises, twice at most: what others do on this machine is not the
// profile's fault.
func TestTorchCalibrateFitCheck(t *testing.T) {
	needTorch(t)
	t.Setenv(mark, t.TempDir())
	var recording string
	for tries := 3; ; tries-- {
		var profile string
		recording, profile = calibrateTorch(t)
		evenkeel(t, "fit", recording, "-o", filepath.Join(t.TempDir(), "again.profile.json"))
		report := checkTorch(t, recording, profile)
		drift := largestDrift(t, recording)
		var moved []string
		for _, r := range report.Rows {
			if r.Verdict != fit.Fail {
				continue
			}
			if drift[r.On] < disturbed {
				t.Fatalf("%s on %s is above the limits, and its canaries held still (%.2f): %+v", r.Family, r.On, drift[r.On], r)
			}
			moved = append(moved, fmt.Sprintf("%s on %s, canaries off by a factor of %.1f", r.Family, r.On, drift[r.On]))
		}
		if len(moved) == 0 {
			break
		}
		if tries == 1 {
			t.Fatalf("above the limits three times, while the machine moved: %q", moved)
		}
		t.Logf("above the limits while the machine moved, measuring again: %q", moved)
	}
	shown := evenkeel(t, "show", recording)
	for _, want := range []string{"mem_layer", "layer_fwd", "torch 1"} {
		if !strings.Contains(shown, want) {
			t.Errorf("show lacks %q:\n%s", want, shown)
		}
	}
	noWorkers(t)
}

// calibrateTorch measures until no law is lacking: what a minute has no time for on a
// machine that others use is named, and comes with a longer budget.
func calibrateTorch(t *testing.T) (recording, profile string) {
	t.Helper()
	for budget := time.Minute; ; budget *= 2 {
		dir := t.TempDir()
		recording, profile = filepath.Join(dir, "calibration.rec.jsonl"), filepath.Join(dir, "calibration.profile.json")
		out := evenkeel(t, "calibrate", "--backend", "torch", "--group-sizes", "2,4", "--budget", budget.String(), "--out", dir)
		lacking := lackingLaws(t, profile)
		if len(lacking) == 0 {
			for _, want := range []string{"torch_cpu:1", "attn_varlen_bwd", "on 2 torch_cpu:1", "on 4 torch_cpu:1", "send_recv_pairs 2 pairs"} {
				if !strings.Contains(out, want) {
					t.Errorf("the profile shown lacks %q:\n%s", want, out)
				}
			}
			return recording, profile
		}
		if budget >= 4*time.Minute {
			t.Fatalf("%q are lacking after %v:\n%s", lacking, budget, out)
		}
		t.Logf("%q are lacking after %v; measuring for longer", lacking, budget)
	}
}

// checkTorch judges a recording by looseLimits. Every family must be judged, and the exit
// status agree with the verdicts.
func checkTorch(t *testing.T, recording, profile string) (report fit.Report) {
	t.Helper()
	out, err := exec.Command("evenkeel", "check", recording, "--profile", profile, "--max-error", looseLimits, "--json").Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != exitCheck) {
		t.Fatalf("check: %v\n%s", err, out)
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}
	if report.Failed(false) == (err == nil) {
		t.Fatalf("check ended with %v and says %+v", err, report.Rows)
	}
	for _, f := range fit.Families() {
		if !slices.ContainsFunc(report.Rows, func(r fit.Row) bool { return r.Family == f }) {
			t.Errorf("check does not judge %s: %+v", f, report.Rows)
		}
	}
	return report
}

// largestDrift is, for every place and for all groups together, the ratio above one of the
// canary's repeat that is farthest from its first time.
func largestDrift(t *testing.T, recording string) map[string]float64 {
	t.Helper()
	f, err := os.Open(recording)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := fit.NewData()
	if err := d.Add(recording, f); err != nil {
		t.Fatal(err)
	}
	largest := map[string]float64{}
	for _, c := range d.Drift {
		places := []string{c.On}
		if fit.FamilyOf(c.Shape.Kind()) == fit.FamilyCollective {
			places = append(places, fit.AllDevices)
		}
		for _, p := range places {
			largest[p] = max(largest[p], c.Farthest(), 1/c.Farthest())
		}
	}
	return largest
}

// lackingLaws names the laws that a profile should have and has not. Its warnings
// must say why.
func lackingLaws(t *testing.T, path string) []string {
	t.Helper()
	var p costmodel.Profile
	if err := doc.Load(path, &p); err != nil {
		t.Fatal(err)
	}
	var lacking []string
	for _, name := range []string{
		"attn_fwd (full d64 f32 cpu) on torch_cpu:1",
		"attn_bwd (diag d128 f32 cpu) on torch_cpu:1",
		"attn_varlen_bwd (d64 f32 cpu) on torch_cpu:1",
		"gemm (wgrad f32) on torch_cpu:1",
		"adamw (f32) on torch_cpu:1",
		"all_reduce on 2 torch_cpu:1 over gloo_tcp_oversubscribed",
		"all_to_all_v on 4 torch_cpu:1 over gloo_tcp_oversubscribed",
		"send_recv_pairs (2 pairs) on 4 torch_cpu:1 over gloo_tcp_oversubscribed",
	} {
		if slices.ContainsFunc(p.Laws, func(l costmodel.Law) bool {
			return fit.Stratum{Op: l.Op, Variant: l.Variant, On: l.On()}.String() == name
		}) {
			continue
		}
		lacking = append(lacking, name)
		if !slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.HasPrefix(w, name+": ") }) {
			t.Fatalf("no law of %s, and no warning says why: %q", name, p.Warnings)
		}
	}
	return lacking
}

// A calibration through torch is killed at random moments and resumed: nothing
// acknowledged is lost or measured twice, and no worker lives on.
func TestTorchKillAndResume(t *testing.T) {
	needTorch(t)
	dir := t.TempDir()
	t.Setenv(mark, dir)
	recording := filepath.Join(dir, "calibration.rec.jsonl")
	calibrate := func() *exec.Cmd {
		return exec.Command("evenkeel", "calibrate", "--backend", "torch", "--group-sizes", "2", "--only", "gemm,norm,send_recv", "--budget", "12s", "--out", dir, "-q")
	}
	killAndResume(t, recording, calibrate, 6, 20, func(r *rand.Rand) time.Duration {
		noWorkers(t) // of the calibration before
		return time.Duration(500+r.IntN(4000)) * time.Millisecond
	})
	noWorkers(t)
}

// noWorkers fails if a Python worker that this test started lives on.
func noWorkers(t *testing.T) {
	t.Helper()
	none(t, func() []int { return marked("evenkeel-", "/worker-") })
}

// Slurm for real: a controller and four node daemons on loopback, one task a
// node, one recording of all.
func TestTorchUnderSlurm(t *testing.T) {
	needTorch(t)
	if _, err := exec.LookPath("srun"); err != nil {
		if os.Getenv("EVENKEEL_NEED_TORCH") != "" {
			t.Fatal("no srun: make test-torch installs slurm-wlm")
		}
		t.Skip("no srun on this machine (make test-torch installs slurm-wlm)")
	}
	dir := shortDir(t)
	t.Setenv(mark, dir)
	script, err := filepath.Abs("../../docs/slurm/loopback.sh")
	if err != nil {
		t.Fatal(err)
	}
	cluster := filepath.Join(dir, "slurm")
	t.Cleanup(func() {
		if out, err := exec.Command("bash", script, "stop", cluster).CombinedOutput(); err != nil {
			t.Errorf("stop: %v: %s", err, out)
		}
	})
	if out, err := exec.Command("bash", script, "start", cluster).CombinedOutput(); err != nil {
		t.Fatalf("start: %v: %s", err, out)
	}
	program, err := exec.LookPath("evenkeel")
	if err != nil {
		t.Fatal(err)
	}
	prof := filepath.Join(dir, "prof")
	srun := exec.Command("srun", "-N4", program, "calibrate", "--only", "all_reduce,all_gather,all_to_all,all_to_all_v,send_recv,gemm", "--budget", "40s", "--out", prof)
	srun.Env = append(os.Environ(), "SLURM_CONF="+filepath.Join(cluster, "slurm.conf"))
	if out, err := srun.CombinedOutput(); err != nil {
		t.Fatalf("srun: %v: %s", err, out)
	}
	shown := evenkeel(t, "show", filepath.Join(prof, "calibration.profile.json"))
	for n := 2; n <= 4; n++ {
		on := fmt.Sprintf("on %d torch_cpu:1 over gloo_tcp", n)
		if !strings.Contains(shown, on) || !strings.Contains(shown, fmt.Sprintf("on %d nodes", n)) {
			t.Errorf("no laws %s on %d nodes:\n%s", on, n, shown)
		}
	}
	noWorkers(t)
}

// shortDir is a temporary folder whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ek")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A calibration of real work is killed (SIGKILL) at 30 random moments and
// resumed each time: no acknowledged point is lost, none is measured twice, no
// worker survives, and the profile at the end loads and validates.
func TestKillAndResume(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a calibration 30 times: about 20 s")
	}
	dir := t.TempDir()
	recording := filepath.Join(dir, "calibration.rec.jsonl")
	calibrate := func() *exec.Cmd {
		return exec.Command("evenkeel", "calibrate", "--only", "norm,swiglu,send_recv", "--budget", "9s", "--out", dir, "-q")
	}
	killAndResume(t, recording, calibrate, 30, 30, func(r *rand.Rand) time.Duration { return time.Duration(20+r.IntN(500)) * time.Millisecond })
	profile := filepath.Join(dir, "calibration.profile.json")
	if out, err := exec.Command("evenkeel", "show", profile).CombinedOutput(); err != nil || !bytes.Contains(out, []byte("MEASURED profile")) {
		t.Errorf("the profile does not load: %v: %s", err, out)
	}
	orphans(t)
}

// killAndResume kills a calibration a number of times, each after a random
// pause, and lets it end: what was acknowledged stays, in its order, and no point
// is there twice; there must be `fewest` in the end.
func killAndResume(t *testing.T, recording string, calibrate func() *exec.Cmd, times, fewest int, pause func(*rand.Rand) time.Duration) {
	t.Helper()
	r := rand.New(rand.NewPCG(3, 0))
	var acknowledged []string
	for i := range times {
		wait := pause(r)
		c := calibrate()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(wait)
		_ = c.Process.Kill() // it may have come to its end
		_ = c.Wait()
		keys := keysOf(t, recording)
		if len(keys) < len(acknowledged) || !slices.Equal(keys[:len(acknowledged)], acknowledged) {
			t.Fatalf("kill %d: %d points were acknowledged, %d are left", i, len(acknowledged), len(keys))
		}
		acknowledged = keys
	}
	if out, err := calibrate().CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	keys := keysOf(t, recording)
	if !slices.Equal(keys[:len(acknowledged)], acknowledged) {
		t.Error("the last run lost points")
	}
	unique := slices.Compact(slices.Sorted(slices.Values(keys)))
	if len(unique) != len(keys) || len(keys) < fewest {
		t.Errorf("%d points, %d of them distinct", len(keys), len(unique))
	}
}

// keysOf finds the keys of complete point lines without the program's reader.
func keysOf(t *testing.T, path string) []string {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for line := range strings.Lines(string(data[:bytes.LastIndexByte(data, '\n')+1])) {
		if rest, ok := strings.CutPrefix(line, `{"t":"point","key":"`); ok {
			key, _, _ := strings.Cut(rest, `"`)
			keys = append(keys, key)
		}
	}
	return keys
}

// orphans looks for workers whose parent is gone.
func orphans(t *testing.T) {
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		data, err := os.ReadFile(p)
		status, err2 := os.ReadFile(filepath.Join(filepath.Dir(p), "status"))
		if err != nil || err2 != nil {
			continue
		}
		if args := strings.Split(string(data), "\x00"); len(args) > 2 && args[1] == "worker" && strings.Contains(args[0], "evenkeel") && bytes.Contains(status, []byte("\nPPid:\t1\n")) {
			t.Errorf("a worker survived: %q", args)
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/profile"
)

// What an interrupted calibration says is the command that goes on, to the letter: with its
// folder, quoted, and without --fresh, which would begin once more.
func TestInterruptedCalibrationsSayHowToGoOn(t *testing.T) {
	args := []string{"calibrate", "--out", "my prof", "--budget=5m", "--fresh"}
	for _, c := range []struct {
		recording, want string
		done            int
	}{
		{"calibration.rec.jsonl", "to go on: evenkeel calibrate --out 'my prof' --budget=5m", 0},
		{"calibration-2.rec.jsonl", "--fresh began it beside another and begins one more the next time", 0},
		{"calibration-2.rec.jsonl", "--fresh began it beside another, which is the one that is gone on with; to fit what this holds: " +
			"evenkeel fit 'my prof/calibration-2.rec.jsonl' -o 'my prof/calibration-2.profile.json'", 60},
	} {
		if got := goesOn(filepath.Join("my prof", c.recording), args, c.done); got != c.want {
			t.Errorf("%s, %d done: %q, want %q", c.recording, c.done, got, c.want)
		}
	}
}

// Ctrl-C while a backend still looks for its devices is told as one, not as the error of the
// look; a false Python is enough for that.
func TestAnEarlyInterruptionSaysThatNothingWasMeasured(t *testing.T) {
	ctx, press := context.WithCancel(t.Context())
	press()
	a := &app{out: io.Discard, errOut: io.Discard}
	for _, dry := range []bool{false, true} {
		o := calibration{backend: "torch", python: "/bin/false", out: t.TempDir(), budget: time.Minute, pointTimeout: time.Minute, choose: spreadChoice, dryRun: dry}
		err := a.runCalibrate(ctx, o)
		if want := "interrupted while the devices were looked for, before anything was measured; the same command begins again"; err == nil || err.Error() != want {
			t.Errorf("dry run %v: %v, want %q", dry, err, want)
		}
	}
}

// recordedBy is the recording that a calibration leaves in a folder, and its lines.
func recordedBy(t *testing.T, args []string, dir string) (path string, lines []string) {
	t.Helper()
	if code := run(append(args, "-q"), nil, io.Discard, io.Discard); code != exitDone {
		t.Fatalf("exit code %d", code)
	}
	path = filepath.Join(dir, firstRecording)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, strings.SplitAfter(string(data), "\n")
}

// A budget that was up before any law had points is told as that, with the command and the
// budget that go on; the same command is not told that all is done.
func TestACalibrationWithoutLawsSaysWhatWouldSuffice(t *testing.T) {
	dir := t.TempDir()
	args := []string{"calibrate", "--backend", "sim:1xbig", "--budget", "20s", "--out", dir}
	path, lines := recordedBy(t, args, dir)
	end := `{"t":"end","at":"2026-01-01T00:00:20Z","reason":"budget","elapsed_s":20}` + "\n"
	for _, c := range []struct {
		points int
		want   string
	}{
		{0, "the budget of 20s went into checking kernels and into what is measured once, and no point of any law was measured: nothing can be fitted yet; to go on: evenkeel calibrate --backend sim:1xbig --out " + dir + " --budget "},
		{3, "its budget of 20s was too short: no law can be fitted from 3 points: a law needs 6 of one op in one variant on one device or group, and the most are "},
	} {
		if err := os.WriteFile(path, []byte(strings.Join(lines[:2+c.points], "")+end), 0o644); err != nil {
			t.Fatal(err)
		}
		a := &app{args: args}
		err := a.starved(path)
		if err == nil {
			err = a.tooFew(path, fitError(t, path))
		}
		if err == nil || !strings.HasPrefix(err.Error(), path+": "+c.want) || !strings.Contains(err.Error(), dir+" --budget 40s") {
			t.Errorf("%d points: %v\nwant %s", c.points, err, c.want)
		}
		var said strings.Builder
		if code := run(args, nil, io.Discard, &said); c.points == 0 && (code != exitDone || strings.Contains(said.String(), "spent") || !strings.Contains(said.String(), "going on with "+path+": 0 of ")) {
			t.Errorf("%d points, the same command again: exit code %d, %s", c.points, code, said.String())
		} else if c.points > 0 && (code != exitFailed || !strings.Contains(said.String(), "the budget of 20s is spent, with 3 of ")) {
			t.Errorf("%d points, the same command again: exit code %d, %s", c.points, code, said.String())
		}
	}
}

// Where points failed it is they that are told of, not the budget alone.
func TestACalibrationThatFailedSaysOfWhat(t *testing.T) {
	dir := t.TempDir()
	args := []string{"calibrate", "--backend", "sim:1xbig,fail=1", "--only", "gemm", "--budget", "20s", "--out", dir}
	var said strings.Builder
	path := filepath.Join(dir, firstRecording)
	if code := run(args, nil, io.Discard, &said); code != exitFailed || !strings.Contains(said.String(), path+": no op could be run at all: gemm on sim_big: crashed: ") || !strings.Contains(said.String(), "; it holds all reasons") {
		t.Errorf("exit code %d, %s", code, said.String())
	}
	said.Reset()
	if code := run([]string{"show", path}, nil, &said, io.Discard); code != exitDone || !strings.Contains(said.String(), "crashed; the first reason: ") {
		t.Errorf("exit code %d, %s", code, said.String())
	}
	// The budget ended it, but more of it would not have helped.
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data = append(data, `{"t":"schedule","budget_s":20,"points":[],"canaries":[]}`+"\n"+`{"t":"end","at":"2026-01-01T00:00:20Z","reason":"budget","elapsed_s":20}`+"\n"...)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	err = (&app{args: args}).tooFew(path, fitError(t, path))
	if err == nil || !strings.Contains(err.Error(), ": 3 points failed, the first gemm on sim_big: crashed: worker crashed (requested), and the budget of 20s left no time for more: no law can be fitted") || !strings.HasSuffix(err.Error(), dir+" --fresh") {
		t.Error(err)
	}
	past := &profile.Past{Failed: 3, Failure: "gemm on cpu:1: crashed: signal: killed"}
	if got, want := failedPoints(past), "3 points failed, the first gemm on cpu:1: crashed: signal: killed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Points that the budget had no time to wait for are tried again by a longer one, which is the
// command that is told where most of those without a result are such.
func TestACalibrationThatWasCutOffSaysWhatWouldSuffice(t *testing.T) {
	dir := t.TempDir()
	args := []string{"calibrate", "--backend", "sim:1xbig", "--only", "gemm", "--budget", "20s", "--out", dir}
	path, lines := recordedBy(t, args, dir)
	for _, c := range []struct{ classes, want, command string }{
		{"cut cut cut", "its budget of 20s was too short: no law can be fitted from ", "to go on: evenkeel calibrate --backend sim:1xbig --only gemm --out " + dir + " --budget "},
		{"cut cut crashed", "its budget of 20s was too short: no law can be fitted from ", " --budget "},
		{"crashed crashed cut", "3 points failed, the first gemm on sim_big: crashed: why, and the budget of 20s left no time for more: no law can be fitted from ", dir + " --fresh"},
	} {
		text := lines[0] + lines[1]
		for i, class := range strings.Fields(c.classes) {
			text += failedAs(t, lines[2+i], class) + "\n"
		}
		text += lines[5] + `{"t":"end","at":"2026-01-01T00:00:20Z","reason":"budget","elapsed_s":20}` + "\n"
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		err := (&app{args: args}).tooFew(path, fitError(t, path))
		if err == nil || !strings.HasPrefix(err.Error(), path+": "+c.want) || !strings.Contains(err.Error(), c.command) {
			t.Errorf("%s: %v\nwant %s and %s", c.classes, err, c.want, c.command)
		}
	}
}

// failedAs is the line of a point, had it failed.
func failedAs(t *testing.T, line, class string) string {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal([]byte(line), &p); err != nil {
		t.Fatal(err)
	}
	failed := map[string]any{"class": class, "error": "why"}
	for _, kept := range []string{"key", "on", "op", "shape", "at"} {
		failed[kept] = p[kept]
	}
	data, err := json.Marshal(failed)
	if err != nil {
		t.Fatal(err)
	}
	return `{"t":"point",` + string(data[1:]) // readers want it first
}

// What a further calibration is to measure besides more, it measures as this one did.
func TestAFurtherCalibrationHasTheSameFlags(t *testing.T) {
	a := &app{args: []string{"calibrate", "-q", "--out", "a", "--fresh", "--budget=20s", "--only", "gemm,attn_fwd", "--devices", "cpu:1"}}
	if got, want := a.further(), "--out a --only gemm,attn_fwd --devices cpu:1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// However the budget was written, the command that goes on has one.
func TestAnotherBudgetTakesThePlaceOfTheFirst(t *testing.T) {
	for _, args := range [][]string{
		{"calibrate", "--out", "x"},
		{"calibrate", "--budget", "20s", "--out", "x"},
		{"calibrate", "--budget=20s", "--out", "x"},
	} {
		if got, want := strings.Join(withBudget(args, 2*time.Minute), " "), "calibrate --out x --budget 2m"; got != want {
			t.Errorf("%q became %q, want %q", args, got, want)
		}
	}
}

func fitError(t *testing.T, path string) error {
	t.Helper()
	_, err := (&app{errOut: io.Discard}).fitFiles(t.Context(), []string{path}, filepath.Join(t.TempDir(), "x.profile.json"), fit.Defaults())
	return err
}

// Only the verb is left out of what a further calibration needs too, not what is called like it.
func TestFurtherCalibrationKeepsItsArguments(t *testing.T) {
	a := &app{args: []string{"calibrate", "-q", "--out", "calibrate", "--budget", "1m"}}
	if got := a.further(); got != "--out calibrate" {
		t.Errorf("%q", got)
	}
}

package main

import (
	"context"
	"io"
	"path/filepath"
	"testing"
	"time"
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

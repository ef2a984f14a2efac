package fit

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/doc"
)

// TestReplayLimits: the built-in ones are what the project promises, a file
// without any has these, one with its own has those.
func TestReplayLimits(t *testing.T) {
	f := DefaultLimits()
	promised := f.Replayed()
	if promised.Step != 0.15 || promised.Compute != 0.15 || promised.TauB != 0.8 || promised.Regret != 0.05 {
		t.Errorf("built in: %+v", promised)
	}
	old := *f
	old.Replay = nil
	data, err := doc.Encode(&old)
	if err != nil || strings.Contains(string(data), "replay") {
		t.Fatalf("%v: %s", err, data)
	}
	read, err := ReadLimits("old.json", strings.NewReader(string(data)))
	if err != nil || read.Replayed() != promised {
		t.Errorf("a file of before: %+v, %v", read, err)
	}
	own := *f
	own.Replay = &ReplayLimits{Step: 0.3, Compute: 0.2, TauB: 0.5, Regret: 0.1, Reason: "a noisy machine"}
	if own.Replayed() != *own.Replay || own.Validate() != nil {
		t.Errorf("own: %+v, %v", own.Replayed(), own.Validate())
	}
}

func TestReplayLimitsAreValid(t *testing.T) {
	for want, broken := range map[string]ReplayLimits{
		"replay.step: 0:":      {Compute: 1, TauB: 0.8, Regret: 0.1, Reason: "x"},
		"replay.compute: 15:":  {Step: 0.1, Compute: 15, TauB: 0.8, Regret: 0.1, Reason: "x"},
		"replay.tau_b: 1.5:":   {Step: 0.1, Compute: 0.1, TauB: 1.5, Regret: 0.1, Reason: "x"},
		"replay.regret: -1:":   {Step: 0.1, Compute: 0.1, TauB: 0.5, Regret: -1, Reason: "x"},
		"replay.reason: missi": {Step: 0.1, Compute: 0.1, TauB: 0.5, Regret: 0.1},
	} {
		f := DefaultLimits()
		f.Replay = &broken
		if err := f.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", broken, err, want)
		}
	}
}

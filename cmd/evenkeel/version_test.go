package main

import (
	"runtime/debug"
	"testing"
)

func TestVersionNamesTheCommit(t *testing.T) {
	at := debug.BuildSetting{Key: "vcs.revision", Value: "0123abc"}
	for want, settings := range map[string][]debug.BuildSetting{
		"":                     nil,
		" (0123abc)":           {at, {Key: "vcs.modified", Value: "false"}},
		" (0123abc, modified)": {{Key: "vcs.modified", Value: "true"}, at},
	} {
		if got := built(settings); got != want {
			t.Errorf("%v: %q, want %q", settings, got, want)
		}
	}
}

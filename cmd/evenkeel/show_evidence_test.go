package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
)

// Plans outlive the version that made them: those that ran years ago are still shown.
func TestPlansOfTheEvidenceAreShown(t *testing.T) {
	plans, err := filepath.Glob("../../results/evidence/*/*.plan.json")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../../results/evidence/*/*/*.plan.json")
	if err != nil || len(plans) == 0 || len(more) == 0 {
		t.Fatal("no plans found", err)
	}
	for _, path := range append(plans, more...) {
		var said strings.Builder
		if code := run([]string{"show", path}, strings.NewReader(""), io.Discard, &said); code != 0 {
			t.Errorf("%s: exit code %d: %s", path, code, &said)
		}
	}
}

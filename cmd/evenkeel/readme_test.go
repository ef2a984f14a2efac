package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The README's console lines run as they stand, in order, in one folder, with the model
// that it says is at hand.
func TestREADMECommandsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("long; the goroutines in it have shorter tests")
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, model, found := strings.Cut(string(readme), "`cp ")
	model, _, ended := strings.Cut(model, " .`")
	if !found || !ended {
		t.Fatal("the README names no model to copy")
	}
	config, err := os.ReadFile(filepath.Join("../..", model))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for line := range strings.Lines(string(readme)) {
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
		if !ok {
			continue
		}
		ran++
		c := exec.Command("sh", "-c", command)
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	if ran < 4 {
		t.Errorf("only %d commands were found", ran)
	}
}

// A rank has None where it has no work in a micro-batch, and a loop over its parts leaves that out.
func TestREADMELoopsPassOverMicroBatchesWithoutWork(t *testing.T) {
	for _, path := range []string{"../../README.md", "../../python/README.md"} {
		readme, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		loops := 0
		for line := range strings.Lines(string(readme)) {
			if !strings.Contains(line, "for part in ") || !strings.Contains(line, ".of_rank(") {
				continue
			}
			loops++
			if !strings.Contains(line, "filter(None, ") {
				t.Errorf("%s: %s", path, line)
			}
		}
		if loops == 0 {
			t.Errorf("%s: no loop over the parts of a rank was found", path)
		}
	}
}

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The README's console lines run as they stand, in order, in one folder with nothing in it.
func TestREADMECommandsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("long; the goroutines in it have shorter tests")
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
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
	if ran < 5 {
		t.Errorf("only %d commands were found", ran)
	}
}

// A rank has None where it has no work in a micro-batch, and a loop over its parts leaves that out.
func TestREADMELoopsPassOverMicroBatchesWithoutWork(t *testing.T) {
	for _, path := range []string{"../../docs/batches.md", "../../python/README.md"} {
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

// pages are the README and the pages that it leads to.
func pages(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) < 8 {
		t.Fatalf("%d pages, %v", len(docs), err)
	}
	return append(docs, "../../README.md", "../../python/README.md")
}

// Every verb and flag in the commands that the README and its pages show exists.
func TestREADMECommandsUseFlagsThatExist(t *testing.T) {
	call := regexp.MustCompile(`(?m)^(?:\$ |srun -N4 )?evenkeel ([a-z]+)([^\n|#]*)`)
	calls := 0
	for _, page := range pages(t) {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range strings.Split(string(data), "```") {
			if i%2 == 0 { // between blocks
				continue
			}
			calls += knownCalls(t, page, block, call)
		}
	}
	if calls < 40 {
		t.Errorf("%d calls were found: the pattern misses most", calls)
	}
}

// What the README and its pages link to in this repository is there.
func TestREADMELinksToWhatIsThere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	for _, page := range append(pages(t), "../../CONTRIBUTING.md", "../../results/evidence/README.md") {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(data), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

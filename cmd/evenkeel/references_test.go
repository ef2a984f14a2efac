package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The committed reference profiles are what the script makes of the recordings,
// byte for byte: here that of the GPU type with the fewest rows.
func TestReferencesAreReproducible(t *testing.T) {
	if testing.Short() {
		t.Skip("fits a GPU type's tables, which takes seconds")
	}
	const gpu = "b60"
	data := recordedFolder(t)
	dir := t.TempDir()
	binary, err := exec.LookPath("evenkeel") // this test's own, as in TestMain
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sh", filepath.Join("..", "..", "docs", "references.sh"), data, dir, gpu)
	c.Env = append(os.Environ(), "EVENKEEL="+binary)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	made, err := os.ReadFile(filepath.Join(dir, gpu+".profile.json"))
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile(filepath.Join("..", "..", "results", "profiles", gpu+".profile.json"))
	if err != nil {
		t.Fatal(err)
	}
	if string(made) != string(committed) {
		t.Errorf("%s.profile.json differs from what the recordings give: run docs/references.sh %s results/profiles", gpu, data)
	}
}

// recordedFolder finds others' recordings, or skips the test; with CI=true a
// missing folder fails it.
func recordedFolder(t *testing.T) string {
	dir := os.Getenv("EVENKEEL_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the recordings are missing: %v; set EVENKEEL_DATA", err)
		}
		t.Skipf("the recordings are missing: %v; set EVENKEEL_DATA to their folder", err)
	}
	return filepath.Join(dir, "recorded")
}

func TestOriginOf(t *testing.T) {
	if o, err := originOf(" Tables | example.org/tables|MIT|0123 "); err != nil || o.Title != "Tables" || o.Commit != "0123" {
		t.Errorf("%+v, %v", o, err)
	}
	for text, want := range map[string]string{"Tables|MIT": "four parts", "a| |c|d": "part 2"} {
		if _, err := originOf(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

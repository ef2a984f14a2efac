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
	reproduced(t, "b60", recordedFolder(t), t.TempDir())
}

// That of the H200 is made of the recording in results/evidence, and borrows from the H100's.
func TestTheOwnReferenceIsReproducible(t *testing.T) {
	if testing.Short() {
		t.Skip("fits the laws of a GPU, which takes seconds")
	}
	dir := t.TempDir()
	const lender = "h100_sxm.profile.json"
	if err := os.WriteFile(filepath.Join(dir, lender), committedProfile(t, lender), 0o644); err != nil {
		t.Fatal(err)
	}
	reproduced(t, "h200_sxm", dir, dir)
}

func reproduced(t *testing.T, gpu, data, dir string) {
	t.Helper()
	binary, err := exec.LookPath("evenkeel") // this test's own, as in TestMain
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sh", filepath.Join("..", "..", "docs", "references.sh"), data, dir, gpu)
	c.Env = append(os.Environ(), "EVENKEEL="+binary)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	name := gpu + ".profile.json"
	made, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if string(made) != string(committedProfile(t, name)) {
		t.Errorf("%s differs from what the recordings give: run docs/references.sh %s results/profiles", name, data)
	}
}

func committedProfile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "results", "profiles", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
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

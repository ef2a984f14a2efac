package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/profile/importer"
)

// An import that is interrupted leaves what was there, and nothing beside it.
func TestInterruptedImportLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.csv"), filepath.Join(dir, "out.rec.jsonl")
	old := `{"t":"header","schema":"evenkeel.recording/v1","backend":"import:table"}` + "\n"
	table := "gpu,dtype,m,n,k,latency_us\n" + strings.Repeat("l4,bf16,64,64,64,9\n", 50_000)
	if err := errors.Join(os.WriteFile(in, []byte(table), 0o644), os.WriteFile(out, []byte(old), 0o644)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	a := &app{out: &stdout, errOut: &stderr}
	err := a.runImport(ctx, importing{from: "table", out: out}, []string{in})
	if err == nil || !strings.HasPrefix(err.Error(), "interrupted while the files were read; ") || stdout.Len() > 0 {
		t.Errorf("%v, stdout %q", err, stdout.String())
	}
	entries, _ := os.ReadDir(dir)
	if data, _ := os.ReadFile(out); string(data) != old || len(entries) != 2 {
		t.Errorf("%q, %v", data, entries)
	}
}

// Without a terminal a long import says every few seconds how far it is.
func TestImportProgress(t *testing.T) {
	var out bytes.Buffer
	r := newReading(&out, false)
	r.expect(500)
	r.add("a.csv", 100)
	if out.Len() > 0 {
		t.Errorf("said something at once: %q", out.String())
	}
	r.last = time.Now().Add(-2 * plainEvery)
	r.add("a.csv", 150)
	r.add("a.csv", 10)
	if got := out.String(); got != "reading a.csv, 25 % done\n" {
		t.Errorf("%q", got)
	}
	r.quiet, r.last = true, time.Time{}
	r.add("a.csv", 1000)
	r.close()
	if got := out.String(); strings.Count(got, "\n") != 1 {
		t.Errorf("quiet: %q", got)
	}
}

// Long lists are cut in the table; JSON has all of them.
func TestImportReport(t *testing.T) {
	r := &importer.Report{Format: "table", Files: []string{"a", "b"}, Rows: 100, Points: 100}
	for range mostNamed + 5 {
		r.Devices = append(r.Devices, "gpu")
	}
	var out bytes.Buffer
	if err := writeImport(&out, r, "x.rec.jsonl", true); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	if !strings.HasPrefix(got, "x.rec.jsonl: 100 points of 100 rows from 2 files (table)\n  devices  gpu\n") ||
		!strings.HasSuffix(got, "           and 5 more\n") || strings.Contains(got, "not used") {
		t.Error(got)
	}
}

func TestImportOfOneRow(t *testing.T) {
	var b bytes.Buffer
	if err := writeImport(&b, &importer.Report{Format: "table", Files: []string{"a.csv"}, Rows: 1, Points: 1}, "a.rec.jsonl", true); err != nil {
		t.Fatal(err)
	}
	if want := "a.rec.jsonl: 1 point of 1 row from 1 file (table)\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

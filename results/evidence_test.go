package results_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/results/profiles"
)

// The committed profiles and accuracy tables follow from the committed
// recordings, to the byte; and docs/accuracy.md quotes the first.
func TestEvidenceDerivesAgain(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skipf("on %s multiply-adds are fused, so the last digits differ", runtime.GOARCH)
	}
	folders, err := filepath.Glob("evidence/*/calibration.rec.jsonl")
	if err != nil || len(folders) < 2 {
		t.Fatal(folders, err)
	}
	for _, recording := range folders {
		t.Run(filepath.Base(filepath.Dir(recording)), func(t *testing.T) { derives(t, filepath.Dir(recording)+"/") })
	}
	quoted(t, read(t, "evidence/cpu/check.txt"))
}

// derives checks one folder of evidence.
func derives(t *testing.T, evidence string) {
	var committed costmodel.Profile
	if err := doc.Load(evidence+"calibration.profile.json", &committed); err != nil {
		t.Fatal(err)
	}
	const mostBytes = 200_000 // a calibration of everything that one GPU shows, with its slower kernels
	if file, err := os.Stat(evidence + "calibration.profile.json"); err != nil || file.Size() >= mostBytes {
		t.Errorf("a profile of more than %d bytes: %v", mostBytes, err)
	}
	recording, err := os.Open(evidence + "calibration.rec.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer recording.Close()
	d := fit.NewData()
	if err := d.Add("calibration.rec.jsonl", recording); err != nil {
		t.Fatal(err)
	}
	var lenders []*costmodel.Profile
	for _, r := range profiles.All() {
		lenders = append(lenders, r.Profile)
	}
	p, err := fit.Fit(d, fit.Options{Seed: committed.Holdout.Seed, Share: committed.Holdout.Share, Donors: fit.Donors(lenders...)})
	if err != nil {
		t.Fatal(err)
	}
	p.Header = committed.Header
	if diff := cmp.Diff(&committed, p, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the profile differs from a fit of its recording (run `make evidence` after a change of the fit): %.2000s", diff)
	}
	hash, err := doc.HashFile(evidence + "calibration.rec.jsonl")
	if err != nil || hash != committed.Inputs[0].SHA256 {
		t.Errorf("the profile names another recording: %v, %s", err, hash)
	}
	held := d.Held(p.Holdout.Seed, p.Holdout.Share)
	checked(t, evidence+"check.txt", p, d, held)
	if long := evidence + "check-long.txt"; exists(long) { // check --min-len 4k
		checked(t, long, p, d, fit.LongAttention(held, 4*1024))
	}
	if steps := evidence + "training.json"; exists(steps) {
		trained(t, evidence, p)
	}
}

// trained compares what check says of whole training steps with the committed reports: by a
// profile of calls, by the same with the ratios of the steps, and by the GPU's reference profile.
func trained(t *testing.T, evidence string, p *costmodel.Profile) {
	t.Helper()
	var steps fit.Training
	if err := doc.Load(evidence+"training.json", &steps); err != nil {
		t.Fatal(err)
	}
	steps.Model = costmodel.ModelOf(steps.Steps[0].Device()) // as the command finds it by the GPU's name
	hash, err := doc.HashFile(evidence + "training.json")
	if err != nil {
		t.Fatal(err)
	}
	said := func(name string, by *costmodel.Profile) {
		r, err := steps.Check(by, hash, fit.DefaultLimits().Replayed())
		if err != nil {
			t.Fatal(err)
		}
		var table bytes.Buffer
		if err := results.TrainingReport(&table, r); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(read(t, evidence+name), table.String()); diff != "" {
			t.Errorf("%s differs: %s", evidence+name, diff)
		}
	}
	said("check-training.txt", p)
	if err := steps.Onto(p, doc.Input{Path: "training.json", SHA256: hash}); err != nil {
		t.Fatal(err)
	}
	said("check-training-fitted.txt", p)
	ref, err := profiles.Lookup(steps.Steps[0].Device())
	if err != nil {
		t.Fatal(err)
	}
	said("check-training-references.txt", ref.Profile)
}

// checked compares the report on some points with a committed one.
func checked(t *testing.T, path string, p *costmodel.Profile, d *fit.Data, points []fit.Point) {
	t.Helper()
	r, err := fit.Check(p, d, points, fit.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := results.Report(&table, r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(read(t, path), table.String()); diff != "" {
		t.Errorf("%s differs: %s", path, diff)
	}
}

// quoted checks that what docs/accuracy.md shows between ```accuracy fences stands in
// the table, and that the README, which leads to it, has the medians of the families.
func quoted(t *testing.T, table string) {
	_, block, ok := strings.Cut(read(t, "../docs/accuracy.md"), "```accuracy\n")
	block, _, ended := strings.Cut(block, "```")
	if !ok || !ended {
		t.Fatal("docs/accuracy.md has no accuracy block")
	}
	for line := range strings.Lines(block) {
		if !strings.Contains(table, line) {
			t.Errorf("docs/accuracy.md states what the evidence does not: %s", line)
		}
	}
	words := strings.Join(strings.Fields(read(t, "../README.md")), " ")
	medians := regexp.MustCompile(`(?m)^(attention|gemm|bandwidth|collective) +(?:all|2 cpu:1 over) +\d+ +([0-9.]+ %)`).FindAllStringSubmatch(block, -1)
	if len(medians) != 4 {
		t.Fatalf("docs/accuracy.md has the medians of %d families", len(medians))
	}
	for i, name := range []string{"(attention)", "(GEMM)", "(bandwidth ops)", "(collectives)"} {
		if want := medians[i][2] + " " + name; !strings.Contains(words, want) {
			t.Errorf("the README does not say %q", want)
		}
	}
}

// exists says whether a folder of evidence holds a file.
func exists(path string) bool {
	_, err := os.Stat(filepath.FromSlash(path))
	return err == nil
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

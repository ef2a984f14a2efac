package results_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/replay/comparison"
	"github.com/evenkeel/evenkeel/results"
)

// loops are the folders of evidence that docs/loop.sh, docs/pipeline_loop.sh, docs/tasks_loop.sh and docs/steps_loop.sh
// made, with their traces.
func loops() map[string][]string {
	return map[string][]string{"loop": {"loop", "ranking"}, "pipeline_loop": {"loop"}, "tasks_loop": {"loop"}, "steps_loop": {"loop", "batch"}}
}

// The traces of the loops on two unequal ranks, compared with the profile again, give
// the reports that lie beside them.
func TestLoopEvidenceStands(t *testing.T) {
	for folder, traces := range loops() {
		folder := filepath.Join("evidence", folder)
		var p costmodel.Profile
		if err := doc.Load(filepath.Join(folder, "profile.json"), &p); err != nil {
			t.Fatal(err)
		}
		for _, name := range traces {
			packed, err := os.ReadFile(filepath.Join(folder, name+".trace.jsonl.gz"))
			if err != nil {
				t.Fatal(err)
			}
			trace, err := gzip.NewReader(bytes.NewReader(packed))
			if err != nil {
				t.Fatal(err)
			}
			rec, err := comparison.Read(name+".trace.jsonl", trace)
			if err != nil {
				t.Fatal(err)
			}
			report, err := comparison.New(rec, &p, fit.DefaultLimits(), comparison.Links{})
			if err != nil {
				t.Fatal(err)
			}
			var page bytes.Buffer
			if err := results.TraceReport(&page, report); err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join(folder, name+".check.txt"))
			if err != nil || page.String() != string(want) {
				t.Errorf("%s: the report is not the one of %s.check.txt (%v); run its script in docs", folder, name, err)
			}
		}
	}
}

// The loops' profiles follow from their two recordings.
func TestLoopProfileDerivesAgain(t *testing.T) {
	switch {
	case runtime.GOARCH != "amd64":
		t.Skipf("on %s multiply-adds are fused, so the last digits differ", runtime.GOARCH)
	case testing.Short():
		t.Skip("fits thousands of points")
	}
	for folder := range loops() {
		derivesAgain(t, filepath.Join("evidence", folder))
	}
}

func derivesAgain(t *testing.T, folder string) {
	t.Helper()
	var committed costmodel.Profile
	if err := doc.Load(filepath.Join(folder, "profile.json"), &committed); err != nil {
		t.Fatal(err)
	}
	d := fit.NewData()
	for _, name := range []string{"compute", "rest"} {
		f, err := os.Open(filepath.Join(folder, name, "calibration.rec.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		err = d.Add(name, f)
		if closeErr := f.Close(); err != nil || closeErr != nil {
			t.Fatal(err, closeErr)
		}
	}
	p, err := fit.Fit(d, fit.Options{Seed: committed.Holdout.Seed, Share: committed.Holdout.Share})
	if err != nil {
		t.Fatal(err)
	}
	p.Header = committed.Header
	if diff := cmp.Diff(&committed, p); diff != "" {
		t.Errorf("the profile differs from a fit of its recordings (run the script of %s in docs after a change of the fit): %.2000s", folder, diff)
	}
}

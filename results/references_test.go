package results

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/results/profiles"
)

func TestReferencesTellMeasuredFromAssumed(t *testing.T) {
	p := &costmodel.Profile{
		Origins: []costmodel.Origin{{Title: "Tables", Repository: "example.org/tables", Licence: "MIT", Commit: "0123456789abcdef"}},
		Devices: []op.DeviceType{{Name: "gpu/engine-1", Fingerprint: profile.Fingerprint("gpu/engine-1")}, {Name: "gpu/net-2", Fingerprint: profile.Fingerprint("gpu/net-2")}}, // imported
		Laws: []costmodel.Law{
			{Op: op.KindAttnFwd, Variant: op.Variant{Mask: op.Diag, HeadDim: 64}, Attention: &costmodel.AttentionCore{}, Held: costmodel.FitError{Points: 30, Median: 0.01, P90: 0.04}},
			{Op: op.KindAttnFwd, Variant: op.Variant{Mask: op.Diag, HeadDim: 128}, Attention: &costmodel.AttentionCore{}, Held: costmodel.FitError{Points: 20, Median: 0.02, P90: 0.03}},
			{Op: op.KindGEMM, Variant: op.Variant{Pass: op.WGrad}, GEMM: &costmodel.GEMMCore{}, Assumed: "because"},
			{Op: op.KindAllGather, Curve: &costmodel.Curve{}, Held: costmodel.FitError{Points: 5, Median: 0.5, P90: 0.6}},
		},
	}
	assumed := *p
	assumed.Training = []costmodel.TrainingFact{{Device: "gpu/engine-1", Assumed: "steps of another"}}
	if s := SummariseReferences([]profiles.Reference{{Name: "gpu", Profile: &assumed}}); !slices.Contains(s[0].Assumed, wholeSteps) || slices.Contains(s[0].Measured, wholeSteps) {
		t.Errorf("assumed steps: %+v", s)
	}
	p.Training = []costmodel.TrainingFact{{Device: "gpu/engine-1", Steps: 3}}
	s := SummariseReferences([]profiles.Reference{{Name: "gpu", Profile: p}})
	if len(s) != 1 || len(s[0].Measured) != 3 || len(s[0].Assumed) != 1 || s[0].Points != 50 || s[0].Median != 0.02 || s[0].P90 != 0.04 {
		t.Fatalf("%+v", s)
	}
	var b bytes.Buffer
	if err := References(&b, s, []string{"gpu", "gpv"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"engine-1, net-2", "attn_fwd diag", "gemm wgrad", "2.0 %, 4.0 %", "measured by this project: training steps of gpu; of the others", "Tables: example.org/tables at 0123456789ab, MIT", "the ratios of their datasheets: gpv\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
	for line := range strings.Lines(b.String()) {
		if len(strings.TrimRight(line, "\n")) > Width {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
}

// A profile's table marks what was assumed, with the reason, and asks for no
// better measurement of it.
func TestProfileMarksAssumedLaws(t *testing.T) {
	n := &notes{}
	l := &costmodel.Law{Op: op.KindNorm, Spread: costmodel.Spread{Lo: 0.5, Hi: 2}, Assumed: "the reason"}
	if mark := lawMarks(n, l, true, false); mark != "(1)" || len(n.texts) != 1 || !strings.Contains(n.texts[0], "50 % to 200 % of the time: the reason") {
		t.Errorf("%q %q", mark, n.texts)
	}
}

// Laws of every form that is shipped show their coefficients; those of a GPU's
// cores are in no made-up profile here.
func TestCoefficientsOfTheReferences(t *testing.T) {
	for _, r := range profiles.All() {
		var b bytes.Buffer
		if err := Coefficients(&b, r.Profile); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"tile_s ", "memory_bytes_per_s ", "field over", "tiles laws: ", "peak ", "most cells ", "peak: "} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s lacks %q", r.Name, want)
			}
		}
		for line := range strings.Lines(b.String()) {
			if len(strings.TrimRight(line, "\n")) > Width || strings.Contains(line, "NaN") {
				t.Errorf("%s: %s", r.Name, line)
			}
		}
	}
}

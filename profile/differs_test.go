package profile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
)

// pastOf is what a recording holds for a resume.
func pastOf(t *testing.T, path string) *profile.Past {
	t.Helper()
	past, visitor := profile.NewPast()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := profile.Read(path, bytes.NewReader(data), visitor); err != nil {
		t.Fatal(err)
	}
	return past
}

// A recording differs from another calibration than its own in what that would choose
// otherwise, and from its own in nothing, however its points were chosen and whatever its
// budget had no time for.
func TestRecordingsDifferFromOtherCalibrations(t *testing.T) {
	const spec = "1xbig"
	made, err := sim.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	inv, err := sim.New(made).Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own := config(20 * time.Second)
	own.Only = []op.Kind{op.KindNorm, op.KindGEMM}
	adaptive := own
	adaptive.Chooser, adaptive.Points = fit.Adaptive{}, 12
	for name, begun := range map[string]profile.Config{"spread": own, "adaptive": adaptive} {
		path := filepath.Join(t.TempDir(), "x.rec.jsonl")
		if err := calibrate(t, t.Context(), path, spec, begun, silent); err != nil {
			t.Fatal(err)
		}
		past := pastOf(t, path)
		if got := past.Differs(inv, begun); len(got) != 0 {
			t.Errorf("%s: its own: %v", name, got)
		}
		other := begun
		other.Seed, other.Points, other.Only = 7, 30, []op.Kind{op.KindNorm, op.KindGELU}
		if other.Chooser = nil; begun.Chooser == nil {
			other.Chooser = fit.Adaptive{}
		}
		got := past.Differs(inv, other)
		if len(got) != 4 || got[0].Text != "has the seed 1" || !strings.HasPrefix(got[3].Text, "measures gemm") {
			t.Errorf("%s: others: %v", name, got)
		}
		narrow := *inv
		narrow.Spaces = slices.DeleteFunc(slices.Clone(inv.Spaces), func(sp profile.Space) bool { return sp.Kind == op.KindNorm })
		for _, sp := range inv.Spaces {
			if sp.Kind == op.KindNorm {
				sp.Make = func(u []float64) op.Shape { return op.Norm{Rowwise: op.Rowwise{Tokens: 64, Width: 64, DType: op.F32}} }
				narrow.Spaces = append(narrow.Spaces, sp)
			}
		}
		if got := past.Differs(&narrow, begun); len(got) != 1 || got[0].Text != "measures norm bf16" {
			t.Errorf("%s: another type: %v", name, got)
		}
		if other = begun; name == "spread" {
			other.Only = append(other.Only, op.KindGELU)
			if got := past.Differs(inv, other); len(got) != 1 || got[0].Text != "does not measure gelu" {
				t.Errorf("more: %v", got)
			}
		}
	}
}

package comparison

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// What looking tokens up takes, and the optimizer more than predicted, is told apart from
// linear parts; for the former there is no law.
func TestUpdatesAreComputingOfTheirOwn(t *testing.T) {
	for _, name := range []string{"zero1", "zero3", "step alone"} {
		w := worlds(t)[name]
		w.slower = func(k costmodel.ReplayKey) float64 {
			if k.Op == costmodel.OptimizerOp {
				return 3
			}
			return 1
		}
		r := compared(t, &w)
		x := &r.Plans[0]
		of := slices.IndexFunc(x.Compute, func(p Part) bool { return p.Name == "update" })
		if len(x.Compute) != 3 || of != 2 {
			t.Fatalf("%s: %+v", name, x.Compute)
		}
		// A rank with new parameters may still wait for those of a slower one.
		update, skew := x.Compute[of], x.Parts[2]
		if math.Abs(float64(update.Measured/update.Predicted)-3) > 1e-3 || math.Abs(float64((update.Difference+skew.Difference)/x.Difference)-1) > 1e-3 {
			t.Errorf("%s: %v more: %+v, %+v", name, x.Difference, update, skew)
		}
		if c := slices.IndexFunc(x.Classes, func(c Class) bool { return c.Op == costmodel.OptimizerOp }); c < 0 || math.Abs(x.Classes[c].Bias+math.Log(3)) > 1e-3 {
			t.Errorf("%s: %+v", name, x.Classes)
		}
	}
}

// Gradients that no reduce_scatter adds up are predicted as they were run.
func TestUpdatesAreOfTheCollectiveThatRan(t *testing.T) {
	predicted := func(kind op.Kind) units.Seconds {
		w := worlds(t)["zero1"]
		w.job.OverlapZero = false
		w.change = func(h *replay.Header) { h.Numerics[0].Exchange.Kind = kind }
		r, err := New(read(t, w.play(t)), madeUp(t, linkRate), fit.DefaultLimits(), Links{})
		if err != nil {
			t.Fatal(err)
		}
		said := slices.ContainsFunc(r.Warnings, func(s string) bool { return strings.Contains(s, "the library has no reduce_scatter") })
		if said != (kind == op.KindAllReduce) {
			t.Errorf("%s: %q", kind, r.Warnings)
		}
		return r.Plans[0].Predicted.Mid
	}
	all, scatter := predicted(op.KindAllReduce), predicted(op.KindReduceScatter)
	j := worlds(t)["zero1"].job
	// Of four ranks, 3/4 of the gradients less; by the law of another group.
	want := 1.15 * 0.75 * float64(units.Bytes(j.Model.Params())*4) / linkRate
	if got := float64(all - scatter); math.Abs(got/want-1) > 0.01 {
		t.Errorf("%v and %v: %v less, want %v", all, scatter, got, want)
	}
}

// What a whole step leaves out, and does otherwise than it is priced, is said.
func TestUpdatesSayWhatTheyAreNot(t *testing.T) {
	w := worlds(t)["zero3"]
	w.job.Accumulate = 4
	w.change = func(h *replay.Header) { h.Numerics[0].Exchange.DType = op.F16 } // no library does that of f32
	path := w.play(t)
	r, err := New(read(t, path), madeUp(t, linkRate), fit.DefaultLimits(), Links{})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(r.Warnings, "\n")
	for _, want := range []string{"one micro-batch of a step is run", "gathered once in a micro-batch of zero3", "gradients travelled in f16, for the library does not add up f32, and so it is predicted", "by all_reduce", "looking tokens up"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in %s", want, all)
		}
	}
	if strings.Contains(all, "no embedding") {
		t.Error(all)
	}
}

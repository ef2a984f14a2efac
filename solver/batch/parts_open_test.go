package batch_test

import (
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// What nothing hides of the exchange is all of a step but its groups and its optimizer: nothing of
// one device, most of a short step over a slow network, and little over none.
func TestOpenExchange(t *testing.T) {
	lengths := drawn(t, "lognormal:median=1000,sd=1.7,seed=12", 8)
	for cluster, want := range map[string][2]float64{"1x1 b200_sxm": {0, 0}, "2x4 h100_sxm": {0.5, 1}, "1x8 h100_sxm": {0.01, 0.5}} {
		for _, zero := range []costmodel.ZeRO{costmodel.Zero1, costmodel.Zero2, costmodel.Zero3} {
			p, err := batch.NewProblem(overNetwork(t, cluster, slowNet, zero), lengths)
			if err != nil {
				t.Fatal(err)
			}
			plan := batch.Try(t.Context(), batch.Evenkeel{}, p, stopped).Plan
			share := float64(p.Open(plan) / plan.Time)
			if !(p.Update > 0 && p.Update <= p.Fixed) || share < want[0]-1e-9 || share > want[1]+1e-9 || math.IsNaN(share) {
				t.Errorf("%s, %s: %v of %v are open, without the optimizer's %v of %v", cluster, zero, p.Open(plan), plan.Time, p.Update, p.Fixed)
			}
		}
	}
}

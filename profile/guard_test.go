package profile

import (
	"slices"
	"testing"
)

// The guard of a point holds the extremes over its batches.
func TestGuardsOfBatchesAreTakenTogether(t *testing.T) {
	g := Guard{WaitShare: 0.1}
	g = g.With(Guard{WaitShare: 0.05, GPU: &GPUGuard{MinSMClock: 1.5e9, MaxSMClock: 1.9e9, Power: 500, Temperature: 60, Reasons: []string{"a"}, PowerShare: 0.2}})
	g = g.With(Guard{WaitShare: 0.3})
	g = g.With(Guard{GPU: &GPUGuard{MinSMClock: 1.4e9, MaxSMClock: 1.8e9, Power: 600, Temperature: 50, Reasons: []string{"a", "b"}, ThermalShare: 0.1}})
	g = g.With(Guard{GPU: &GPUGuard{Unknown: "hidden"}})
	x := *g.GPU
	if g.WaitShare != 0.3 || x.MinSMClock != 1.4e9 || x.MaxSMClock != 1.9e9 || x.Power != 600 || x.Temperature != 60 || x.PowerShare != 0.2 || x.ThermalShare != 0.1 || !slices.Equal(x.Reasons, []string{"a", "b"}) {
		t.Errorf("%+v %+v", g, x)
	}
	if g.Throttled || !g.With(Guard{Throttled: true}).Throttled || !(Guard{Throttled: true}).With(Guard{}).Throttled {
		t.Error("one batch that was slowed down is enough")
	}
}

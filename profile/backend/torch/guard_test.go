package torch

import (
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Which samples are dropped: those taken while the hardware slowed itself down,
// not those of a dense GEMM at its power cap.
func TestGuardsDropWhatTheHardwareSlowedDown(t *testing.T) {
	batch := []units.Seconds{0.5, 0.5} // 2 s of two calls a sample
	for name, c := range map[string]struct {
		state     gpuState
		throttled bool
		reason    string
	}{
		"quiet":            {gpuState{SMMHz: []float64{1980, 1980}}, false, ""},
		"power cap":        {gpuState{SMMHz: []float64{1980, 1500}, Reasons: 0x4, ViolNS: map[string]int64{"power": 5e8}}, false, "sw_power_cap"},
		"hardware slowing": {gpuState{SMMHz: []float64{1980, 1980}, Reasons: 0x8}, true, "hw_slowdown"},
		"software heat":    {gpuState{Reasons: 0x20}, true, "sw_thermal_slowdown"},
		"hardware heat":    {gpuState{Reasons: 0x40}, true, "hw_thermal_slowdown"},
		"power brake":      {gpuState{Reasons: 0x80}, true, "hw_power_brake"},
		"a short heat":     {gpuState{ViolNS: map[string]int64{"thermal": 1e8}}, true, ""},
		"hardly any heat":  {gpuState{ViolNS: map[string]int64{"thermal": 1e6}}, false, ""},
		"a low clock":      {gpuState{SMMHz: []float64{1300, 1300}}, true, ""},
		"an unread clock":  {gpuState{Unknown: "hidden"}, false, ""},
		// H200s at 700 W hold about 1500 MHz under full load (tile-ai/TileOPs#1588), others less.
		"capped for good":   {gpuState{SMMHz: []float64{1400, 1380}, Reasons: 0x4}, false, "sw_power_cap"},
		"capped by the way": {gpuState{SMMHz: []float64{1400, 1380}, ViolNS: map[string]int64{"power": 1e9}}, false, ""},
		"hardly capped":     {gpuState{SMMHz: []float64{1400, 1380}, ViolNS: map[string]int64{"power": 1e7}}, true, ""},
		"capped and hot":    {gpuState{SMMHz: []float64{1400, 1380}, Reasons: 0x24}, true, "sw_thermal_slowdown"},
	} {
		r := &rank{best: map[op.Kind]float64{op.KindGEMM: 1980e6}}
		g := r.guard(frame{GPU: &c.state}, op.KindGEMM, batch, 2)
		if g.Throttled != c.throttled || c.reason != "" && !slices.Contains(g.GPU.Reasons, c.reason) {
			t.Errorf("%s: %+v %+v", name, g, *g.GPU)
		}
		if name == "power cap" && (g.GPU.PowerShare != 0.25 || g.GPU.MinSMClock != 1500e6 || g.GPU.MaxSMClock != 1980e6) {
			t.Errorf("%+v", *g.GPU)
		}
		if c.state.Unknown != g.GPU.Unknown {
			t.Errorf("%s: %+v", name, *g.GPU)
		}
	}
	// Another op may run at another clock.
	r := &rank{best: map[op.Kind]float64{op.KindNorm: 1980e6}}
	if g := r.guard(frame{GPU: &gpuState{SMMHz: []float64{1300, 1300}}}, op.KindGEMM, batch, 1); g.Throttled {
		t.Error("a GEMM's clock was compared with a norm's")
	}
	if g := (&rank{}).guard(frame{WaitShare: 0.3}, op.KindGEMM, batch, 1); g.GPU != nil || g.WaitShare != 0.3 {
		t.Errorf("a processor's guard: %+v", g)
	}
}

// What a worker saw of its GPU reaches the guard of the batch, of a device as of a group, by
// which samples are dropped.
func TestABatchOfAHotGPUIsThrottled(t *testing.T) {
	for reasons, want := range map[string]bool{"4": false, "64": true} { // at its power cap; hot
		b := gpus(t, nil, "EVENKEEL_FAKE_REASONS="+reasons)
		inv := discover(t, b)
		for on, s := range map[string]op.Shape{"h200": gemm, inv.Groups[0].Name: op.AllReduce{Message: op.Message{Group: 2, Bytes: 1 << 20}}} {
			batch, err := run(t.Context(), b, on, s)
			if err != nil {
				t.Fatal(err)
			}
			if g := batch.Guard; g.Throttled != want || g.GPU == nil || len(g.GPU.Reasons) != 1 {
				t.Errorf("%s, reasons %s: %+v", on, reasons, g)
			}
		}
	}
}

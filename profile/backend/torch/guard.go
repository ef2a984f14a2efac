package torch

import (
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// gpuState is what a worker read from the driver before and after a batch.
type gpuState struct {
	SMMHz   []float64        `json:"sm_mhz"` // before, after
	PowerW  float64          `json:"power_w"`
	TempC   float64          `json:"temp_c"`
	Reasons uint64           `json:"reasons"` // clock event reasons, NVML's bits
	ViolNS  map[string]int64 `json:"viol_ns"` // growth of the violation counters over the batch
	Unknown string           `json:"unknown"`
}

// reasons are NVML's clock event reasons (nvml.h, nvmlClocksEventReason*) by the
// words of package nvml, and
// whether samples taken under one are dropped. A power cap is kept: it is the
// steady state of a dense GEMM.
var reasons = []struct {
	bit  uint64
	name string
	drop bool
}{
	{0x2, "application_clocks", false},
	{powerCap, "sw_power_cap", false},
	{0x8, "hw_slowdown", true},
	{0x10, "sync_boost", false},
	{0x20, "sw_thermal_slowdown", true},
	{0x40, "hw_thermal_slowdown", true},
	{0x80, "hw_power_brake", true},
	{0x100, "display_clocks", false},
}

// powerCap is the bit of a clock that the power limit holds back.
const powerCap = 0x4

// slowest is the least share of a rank's best clock that samples are kept at
// (nvbench's rule), unless its power limit is what slowed it.
const slowest = 0.75

// cappedShare of a batch spent at the power limit explains a low clock, where the
// bits, which are read after the batch, no longer tell.
const cappedShare = 0.1

// thermalShare of a batch spent slowed down for heat drops its samples; the
// counter also grows by itself a little on some cards.
const thermalShare = 0.01

// guard turns what a worker noticed during a batch into the guard of its
// samples. Clocks are compared with the best that this rank showed for the same
// op: a GEMM's clock is lower than a copy's by nature.
func (r *rank) guard(f frame, k op.Kind, times []units.Seconds, inner int) profile.Guard {
	g := profile.Guard{WaitShare: f.WaitShare}
	if f.GPU == nil {
		return g
	}
	var wall float64
	for _, t := range times {
		wall += float64(t) * float64(inner)
	}
	s := f.GPU
	out := &profile.GPUGuard{Power: s.PowerW, Temperature: s.TempC, Unknown: s.Unknown}
	for _, known := range reasons {
		if s.Reasons&known.bit != 0 {
			out.Reasons = append(out.Reasons, known.name)
			g.Throttled = g.Throttled || known.drop
		}
	}
	if wall > 0 {
		out.PowerShare = share(s.ViolNS["power"], wall)
		out.ThermalShare = share(s.ViolNS["thermal"], wall)
	}
	for _, mhz := range s.SMMHz {
		hz := mhz * 1e6
		if out.MinSMClock == 0 || hz < out.MinSMClock {
			out.MinSMClock = hz
		}
		out.MaxSMClock = max(out.MaxSMClock, hz)
	}
	// A 700 W card's best clock is that of its small calls: a large GEMM may stay
	// below three quarters of it for good.
	capped := s.Reasons&powerCap != 0 || out.PowerShare > cappedShare
	low := r.slowed(k, out.MaxSMClock) && !capped
	g.Throttled = g.Throttled || out.ThermalShare > thermalShare || low
	g.GPU = out
	return g
}

// slowed says whether a clock is far below the best this rank showed for an op.
func (r *rank) slowed(k op.Kind, hz float64) bool {
	if r.best == nil {
		r.best = map[op.Kind]float64{}
	}
	r.best[k] = max(r.best[k], hz)
	return hz > 0 && hz < slowest*r.best[k]
}

// share of a batch's wall time that a counter grew by; counters start again when
// the driver is reloaded.
func share(ns int64, wall float64) float64 {
	return max(0, min(1, float64(ns)/1e9/wall))
}

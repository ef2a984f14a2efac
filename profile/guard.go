package profile

import "slices"

// Guard is what a backend noticed while a batch ran. Signals that cannot be
// read on a machine stay zero; the inventory's notes name them, and canaries
// take over.
type Guard struct {
	// Throttled: the hardware slowed itself down. Such samples are discarded.
	Throttled bool `json:"throttled,omitzero"`
	// WaitShare is the share of the batch that runnable threads spent waiting for
	// a core that somebody else held.
	WaitShare float64 `json:"wait_share"`
	// GPU is what the driver said about the GPU; absent where there is none.
	GPU *GPUGuard `json:"gpu,omitempty"`
}

// GPUGuard is the state of a GPU over the batches of a point: extremes of what
// was read before and after each, and the largest shares of a batch.
type GPUGuard struct {
	MinSMClock   float64  `json:"min_sm_clock_hz,omitzero"`
	MaxSMClock   float64  `json:"max_sm_clock_hz,omitzero"`
	Power        float64  `json:"power_w,omitzero"`
	Temperature  float64  `json:"temperature_c,omitzero"`
	Reasons      []string `json:"clock_reasons,omitempty"` // why clocks were below the most, by NVML's names
	PowerShare   float64  `json:"power_violation_share,omitzero"`
	ThermalShare float64  `json:"thermal_violation_share,omitzero"`
	Unknown      string   `json:"unknown,omitempty"` // why nothing could be read
}

// With takes the guard of another batch of the same point in.
func (g Guard) With(b Guard) Guard {
	g.WaitShare = max(g.WaitShare, b.WaitShare)
	if b.GPU == nil {
		return g
	}
	if g.GPU == nil {
		g.GPU = b.GPU
		return g
	}
	x, y := *g.GPU, *b.GPU
	if y.MinSMClock > 0 && (x.MinSMClock == 0 || y.MinSMClock < x.MinSMClock) {
		x.MinSMClock = y.MinSMClock
	}
	x.MaxSMClock = max(x.MaxSMClock, y.MaxSMClock)
	x.Power, x.Temperature = max(x.Power, y.Power), max(x.Temperature, y.Temperature)
	x.PowerShare, x.ThermalShare = max(x.PowerShare, y.PowerShare), max(x.ThermalShare, y.ThermalShare)
	for _, r := range y.Reasons {
		if !slices.Contains(x.Reasons, r) {
			x.Reasons = append(slices.Clone(x.Reasons), r)
		}
	}
	g.GPU = &x
	return g
}

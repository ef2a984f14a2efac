package profile

import "slices"

// Guard holds the disturbances that a backend noticed while a batch ran. A signal that
// cannot be read on a machine is zero. The inventory's notes name such signals, and drift
// then shows in the canaries.
type Guard struct {
	// Throttled says that the hardware slowed itself down. The samples are discarded.
	Throttled bool `json:"throttled,omitzero"`
	// WaitShare is the share of the batch that runnable threads spent waiting for a core
	// that another process held.
	WaitShare float64 `json:"wait_share"`
	// GPU is the state of the GPU as read from the driver; absent without a GPU.
	GPU *GPUGuard `json:"gpu,omitempty"`
}

// GPUGuard is the state of a GPU over all batches of a point: extremes of the values read
// before and after each batch, and the largest share of a batch under a limit.
type GPUGuard struct {
	MinSMClock   float64  `json:"min_sm_clock_hz,omitzero"`
	MaxSMClock   float64  `json:"max_sm_clock_hz,omitzero"`
	Power        float64  `json:"power_w,omitzero"`
	Temperature  float64  `json:"temperature_c,omitzero"`
	Reasons      []string `json:"clock_reasons,omitempty"` // why clocks were below their maximum, see package nvml
	PowerShare   float64  `json:"power_violation_share,omitzero"`
	ThermalShare float64  `json:"thermal_violation_share,omitzero"`
	Unknown      string   `json:"unknown,omitempty"` // why nothing could be read
}

// With merges the guard of another batch of the same point, or of another rank.
func (g Guard) With(b Guard) Guard {
	g.Throttled = g.Throttled || b.Throttled
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

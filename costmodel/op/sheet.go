package op

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Sheet holds datasheet figures of a device: what a law without points is
// scaled by, what bounds the rate of one with few, and what no measured point
// may beat. Peaks are dense, without sparsity; rates are of one direction. Zero
// means unknown.
type Sheet struct {
	BF16PerS   float64     `json:"bf16_flops_per_s,omitzero"`
	FP8PerS    float64     `json:"fp8_flops_per_s,omitzero"`
	MemoryPerS float64     `json:"memory_bytes_per_s,omitzero"`
	L2         units.Bytes `json:"l2_bytes,omitzero"`
	// Link is the device's rate to the others of its node, Net to other nodes
	// and Host to its host.
	LinkPerS float64 `json:"link_bytes_per_s,omitzero"`
	NetPerS  float64 `json:"net_bytes_per_s,omitzero"`
	HostPerS float64 `json:"host_bytes_per_s,omitzero"`
	// Arch names the generation whose kernels the device runs, such as sm90.
	Arch string `json:"arch,omitzero"`
}

// PeakSlack is how far above the datasheet's peak a measured rate may lie: boards clock a
// few percent above the figure that is printed for them.
const PeakSlack = 1.05

// PeakPerS is the datasheet's peak for a precision, in FLOPs a second; 0 where
// it is unknown.
func (s Sheet) PeakPerS(d DType) float64 {
	if d == FP8 && s.FP8PerS > 0 {
		return s.FP8PerS
	}
	return s.BF16PerS
}

// Tensors of beyondCache times the cache reach CachedRate times the memory's rate at most,
// whatever of them still lies in caches that a datasheet leaves out: one of MI300X is eight
// times its L2 and three times as fast as its memory.
const (
	beyondCache = 20
	CachedRate  = 10
)

// Least is the time that one device takes at least for a shape, by the figures as they are
// printed: that of its arithmetic, or of an op that streams its tensors, the memory's at
// CachedRate. 0 where they bound nothing, as those of small tensors, which come from the
// cache; of collectives see Port.
func (s Sheet) Least(shape Shape) units.Seconds {
	spec, err := Lookup(shape.Kind())
	if err != nil {
		return 0
	}
	work, least := shape.Work(), math.Inf(1)
	switch spec.Class {
	case Compute:
		least = float64(work.FLOPs) / s.PeakPerS(shape.Variant().DType)
	case Bandwidth:
		if size := work.Bytes(); s.L2 > 0 && size >= beyondCache*s.L2 {
			least = float64(size) / (CachedRate * s.MemoryPerS)
		}
	}
	if math.IsInf(least, 0) || math.IsNaN(least) {
		return 0 // nothing is known
	}
	return units.Seconds(least)
}

// Validate reports the first figure that is negative or not finite.
func (s Sheet) Validate() error {
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"bf16_flops_per_s", s.BF16PerS},
		{"fp8_flops_per_s", s.FP8PerS},
		{"memory_bytes_per_s", s.MemoryPerS},
		{"l2_bytes", float64(s.L2)},
		{"link_bytes_per_s", s.LinkPerS},
		{"net_bytes_per_s", s.NetPerS},
		{"host_bytes_per_s", s.HostPerS},
	} {
		if !(f.value >= 0) || math.IsInf(f.value, 0) {
			return fmt.Errorf("sheet.%s: %v: must not be negative", f.name, f.value)
		}
	}
	return nil
}

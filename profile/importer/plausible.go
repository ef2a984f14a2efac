package importer

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// peakSlack is how far above the datasheet's peak a measured rate may lie:
// boards clock a few percent above the figure that is printed for them.
const peakSlack = 1.05

// implausible says why a row cannot be a measurement, or "".
func (s *Sink) implausible(on string, shape op.Shape, seconds []float64) string {
	if err := shape.Validate(); err != nil {
		return err.Error()
	}
	if len(seconds) == 0 {
		return "no time"
	}
	for _, t := range seconds {
		if !(t > 0) || math.IsInf(t, 0) {
			return fmt.Sprintf("a time of %v s: want a positive number", t)
		}
	}
	for _, d := range s.devices {
		peak := d.Sheet.PeakPerS(dtype(shape))
		if d.Name != on || peak == 0 {
			continue
		}
		for _, t := range seconds {
			if rate := float64(shape.Work().FLOPs) / t; rate > peakSlack*peak {
				return fmt.Sprintf("faster than the device's peak of %.4g FLOP/s", peak)
			}
		}
	}
	return ""
}

func dtype(shape op.Shape) op.DType { return shape.Variant().DType }

// fingerprint identifies what an import was made from: its format and the
// devices and groups it names.
func fingerprint(h profile.Header) string {
	text := h.Backend
	for _, d := range h.Devices {
		text += "\n" + d.Name + " " + d.Fingerprint
	}
	for _, g := range h.Groups {
		text += "\n" + g.Name
	}
	return profile.Fingerprint(text)
}

// Of makes the device type of a GPU model under a software stack. Both are part
// of its name, because times under different software are never pooled.
func (m Model) Of(stack string) op.DeviceType {
	name := m.Name
	if stack != "" {
		name += "/" + stack
	}
	return op.DeviceType{
		Name: name, Model: m.Name, Stack: stack, Fingerprint: profile.Fingerprint(name),
		Parallel: max(1, m.Parallel), Memory: m.Memory, Sheet: m.Sheet,
	}
}

// gib is a GiB, as datasheets and device tables mean it.
const gib units.Bytes = 1 << 30

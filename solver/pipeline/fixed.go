package pipeline

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// OnStagesOf has all plans be on the stages of an earlier one, with its ranks and its layers: a
// training run settles these once, for moving parameters and optimizer's states from device to
// device between two batches takes longer than a step. Chunks, their order, and what is computed
// again are each batch's own.
//
// Errors: what the earlier plan's devices and model differ in from the problem's.
func (p *Problem) OnStagesOf(d *Document) error {
	if n := len(d.Devices); n != p.Devices() {
		return fmt.Errorf("is of %s, and there are %d", units.Count(n, "device"), p.Devices())
	}
	for r, device := range d.Devices {
		if device != p.Device(r) {
			return fmt.Errorf("its rank %d is %s, and rank %d here %s", r, device, r, p.Device(r))
		}
	}
	if d.Layers != p.Layers {
		return fmt.Errorf("is of %s, and the model has %d", units.Count(d.Layers, "layer"), p.Layers)
	}
	for s, x := range d.Stages {
		if err := p.Fits(x.Ranks); err != nil {
			return fmt.Errorf("its stage %d: %w", s, err)
		}
	}
	p.Fixed, p.Stages = d.Stages, len(d.Stages)
	return nil
}

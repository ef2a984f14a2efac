package costmodel

import "github.com/evenkeel/evenkeel/internal/units"

// Attention is what one layer's attention takes under a layout without the
// linear work before and after it: all-to-alls, ring and blocks, forward and
// backward, as benchmarks of context parallelism time it; of a layout of two batches
// at once that of one alone.
//
// Errors: as of Time.
func (s *Simulator) Attention(l Layout) (forward, backward units.Seconds, err error) {
	bare, err := newSim(s.q, s.job)
	if err != nil {
		return 0, 0, err
	}
	bare.attentionOnly = true
	l.Schedule = l.OneByOne()
	if err := bare.run(l, SimOptions{}); err != nil {
		return 0, 0, err
	}
	return bare.layers[0].length, bare.layers[1].length, nil
}

package costmodel

import "github.com/evenkeel/evenkeel/costmodel/op"

// slowKey asks by how much attention and messages slow each other on a device
// type.
type slowKey struct {
	device  string
	compute op.Kind
	slowed  op.Slowed
}

// overlapFacts notes what was measured of attention beside messages between
// two ranks, by device type: what was measured in a group counts for its members.
func (q *Predictor) overlapFacts(p *Profile) {
	members := map[string][]op.Member{}
	for _, g := range p.Groups {
		members[g.Name] = g.Members
	}
	for _, f := range p.Overlaps {
		if f.Comm != op.KindSendRecv {
			continue
		}
		on := members[f.On]
		if on == nil {
			on = []op.Member{{Device: f.On}}
		}
		for _, m := range on {
			k := slowKey{m.Device, f.Compute, f.Slowed}
			q.overlaps[k] = max(q.overlaps[k], f.Ratio)
		}
	}
}

// slowed is the factor by which attention is slower while messages move, or
// messages while attention is computed; 1 where nobody measured it, and never
// less, for a ratio below 1 is noise.
func (q *Predictor) slowed(device string, back bool, side op.Slowed) float64 {
	kind := op.KindAttnFwd
	if back {
		kind = op.KindAttnBwd
	}
	return max(1, q.overlaps[slowKey{device, kind, side}])
}

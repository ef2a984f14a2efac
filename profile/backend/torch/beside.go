package torch

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// The sizes of attention beside messages between two ranks on processors: a
// message of a ring's size, and attention that lasts some such messages.
const (
	besideLen   = units.Tokens(512)
	besideBytes = 8 * units.MiB
)

// besideMessages are the overlaps of a rank on a processor: gloo moves bytes on
// the cores that compute, so both sides are slower while the other runs.
func besideMessages() []op.Shape {
	var shapes []op.Shape
	for _, k := range []op.Kind{op.KindAttnFwd, op.KindAttnBwd} {
		for _, side := range []op.Slowed{op.SlowedCompute, op.SlowedComm} {
			shapes = append(shapes, op.OverlapPair{Compute: k, Comm: op.KindSendRecv, Slowed: side, Tokens: besideLen, Bytes: besideBytes})
		}
	}
	return shapes
}

// pair is two ranks that compute and send to each other at once; own says which
// of them is asked about. A ratio belongs to a device type, for the ranks of a
// pair may be unlike.
type pair struct {
	ranks []*rank
	group string // as the workers name it
	own   int
}

// pairFor is the pair in which a shape is measured, nil for a shape that takes
// one rank or a whole group.
func (b *Backend) pairFor(r *rank, s op.Shape) *pair {
	if o, ok := s.(op.OverlapPair); !ok || o.Comm != op.KindSendRecv {
		return nil
	}
	return b.pairOf(r)
}

// pairOf is the first group of two that a rank on a processor is in.
func (b *Backend) pairOf(r *rank) *pair {
	if r.greeting.Device.Kind == "cuda" {
		return nil
	}
	for _, g := range b.groups {
		for i, set := range g.sets {
			own := slices.IndexFunc(set, func(k int) bool { return b.ranks[k] == r })
			if g.Ranks() == 2 && own >= 0 {
				return &pair{[]*rank{b.ranks[set[0]], b.ranks[set[1]]}, g.set(i), own}
			}
		}
	}
	return nil
}

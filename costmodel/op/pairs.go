package op

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// KindSendRecvPairs is the exchange between disjoint pairs of ranks.
const KindSendRecvPairs Kind = "send_recv_pairs"

// Pairs exchanges `bytes` each way, at once, between rank i and rank
// i + group/2 (rounded down) for every i < pairs; the other ranks idle. Against
// the one-pair time it shows what links shared by several pairs cost.
type Pairs struct {
	Group int         `json:"group"` // ranks
	Pairs int         `json:"pairs"` // at most group/2
	Bytes units.Bytes `json:"bytes"` // each way and pair
}

var sendRecvPairsSpec = Spec{
	Kind: KindSendRecvPairs, Class: Collective, Measures: Time,
	Doc:     "rank i < pairs exchanges bytes each way with rank i + group/2, all pairs at once; the other ranks idle",
	Example: Pairs{4, 2, 1 << 20},
}

// Kind implements Shape.
func (Pairs) Kind() Kind { return KindSendRecvPairs }

// Ranks implements Grouped.
func (p Pairs) Ranks() int { return p.Group }

// Variant implements Shape: each number of pairs is a curve of its own.
func (p Pairs) Variant() Variant { return Variant{Pairs: p.Pairs} }

// Validate implements Shape.
func (p Pairs) Validate() error {
	if err := ranks(KindSendRecvPairs, "group", p.Group); err != nil {
		return err
	}
	if p.Pairs < 1 || p.Pairs > p.Group/2 {
		return &AxisError{KindSendRecvPairs, "pairs", fmt.Sprintf("%d: want 1 to %d in a group of %d", p.Pairs, p.Group/2, p.Group)}
	}
	return within(KindSendRecvPairs, "bytes", p.Bytes, maxBytes)
}

// Idle says whether a rank has no part in the exchange.
func (p Pairs) Idle(rank int) bool {
	half := p.Group / 2
	return rank >= 2*half || rank%half >= p.Pairs
}

// Work implements Shape: every busy rank sends its whole buffer.
func (p Pairs) Work() Work { return onWire(p.Bytes) }

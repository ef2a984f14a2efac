package op

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// KindOverlap is the slow-down of a compute op by a communication op that runs
// at the same time.
const KindOverlap Kind = "overlap"

// Slowed says which of the two is timed.
type Slowed string

// The two sides of an overlap.
const (
	SlowedCompute Slowed = "compute" // T(compute while communicating) / T(compute alone)
	SlowedComm    Slowed = "comm"    // T(comm while computing) / T(comm alone)
)

// OverlapPair is a compute op and a communication op run at once. Neither
// slow-down is below 1 beyond noise, and they are not the same number: a
// scalar for both (as some planners use) mis-ranks plans.
type OverlapPair struct {
	Compute Kind         `json:"compute"`
	Comm    Kind         `json:"comm"`
	Slowed  Slowed       `json:"slowed"`
	Tokens  units.Tokens `json:"tokens"` // size of the compute side: q_len = kv_len, or m
	Bytes   units.Bytes  `json:"bytes"`  // size of the communication side
}

var overlapSpec = Spec{
	Kind: KindOverlap, Class: Overlap, Measures: Ratio,
	Doc:     "slow-down of a compute op and a communication op that run at once; the longer side outlasts the shorter",
	Example: OverlapPair{KindAttnFwd, KindSendRecv, SlowedCompute, 1024, 1 << 20},
}

// Kind implements Shape.
func (OverlapPair) Kind() Kind { return KindOverlap }

// Validate implements Shape.
func (o OverlapPair) Validate() error {
	if o.Compute != KindAttnFwd && o.Compute != KindAttnBwd && o.Compute != KindGEMM {
		return &AxisError{KindOverlap, "compute", fmt.Sprintf("%q: want attn_fwd, attn_bwd or gemm", string(o.Compute))}
	}
	switch o.Comm {
	case KindSendRecv, KindAllToAll, KindAllGather, KindReduceScatter, KindH2D, KindD2H:
	default:
		return &AxisError{KindOverlap, "comm", fmt.Sprintf("%q: want send_recv, all_to_all, all_gather, reduce_scatter, h2d or d2h", string(o.Comm))}
	}
	if o.Slowed != SlowedCompute && o.Slowed != SlowedComm {
		return &AxisError{KindOverlap, "slowed", fmt.Sprintf("%q: want compute or comm", string(o.Slowed))}
	}
	if err := within(KindOverlap, "tokens", o.Tokens, maxTokens); err != nil {
		return err
	}
	return within(KindOverlap, "bytes", o.Bytes, maxBytes)
}

// Variant implements Shape.
func (OverlapPair) Variant() Variant { return Variant{} }

// Work implements Shape: an overlap is a ratio and has no work of its own.
func (OverlapPair) Work() Work { return Work{} }

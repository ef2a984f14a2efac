package costmodel

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Job is what one training step computes, and on which devices: one long causal sequence,
// or several one after the other, through a decoder-only model under context and head
// parallelism.
type Job struct {
	Model     Model        `json:"model"`
	Cluster   Cluster      `json:"cluster"`
	SeqLen    units.Tokens `json:"seq_len_tokens"`
	DType     op.DType     `json:"dtype"`
	Recompute Recompute    `json:"recompute"`
	// RingBuffers is the number of buffers for KV blocks that a rank has besides its own
	// block. A block is sent on only when the receiver has a free buffer.
	RingBuffers int `json:"ring_buffers"`
	// LossChunk is the number of tokens whose logits are in memory at the same time.
	LossChunk units.Tokens `json:"loss_chunk_tokens"`
	// Zero says what is sharded over the ranks; empty is Zero3.
	Zero ZeRO `json:"zero,omitzero"`
	// OverlapZero says that parameters are gathered and gradients reduced while layers
	// compute, as in FSDP.
	OverlapZero bool `json:"overlap_zero,omitzero"`
	// Accumulate is the number of micro-batches, of one sequence each, whose gradients
	// are accumulated in a step; 0 is one.
	Accumulate int `json:"grad_accumulation,omitzero"`
	// MemoryReserve is the part of what plans may use of every device's memory that they leave
	// to what the memory model does not count: context and kernels where nobody measured them,
	// buffers of communicators, fragmentation of the allocator.
	MemoryReserve float64 `json:"memory_reserve_ratio,omitzero"`
}

// MostReserve bounds Job.MemoryReserve.
const MostReserve = 0.9

// microBatches is the number of sequences in a step.
func (j Job) microBatches() float64 { return float64(max(1, j.Accumulate)) }

// inTwos says in how many pairs the micro-batches go through the layers under a schedule,
// and how many go alone.
func (j Job) inTwos(s Schedule) (pairs, alone int) {
	n := max(1, j.Accumulate)
	if !s.TwoBatch {
		return 0, n
	}
	return n / 2, n % 2
}

// ZeRO is the stage of ZeRO sharding (Rajbhandari et al. 2020): which of parameters,
// gradients and optimizer state are sharded evenly over the ranks that take part in the
// step, those with tokens or heads.
type ZeRO string

// The stages of ZeRO: each shards what the one before does, and more.
const (
	Zero0 ZeRO = "zero0" // nothing: every rank holds everything, gradients are all-reduced
	Zero1 ZeRO = "zero1" // optimizer state
	Zero2 ZeRO = "zero2" // and gradients
	Zero3 ZeRO = "zero3" // and parameters, gathered layer by layer in either pass
)

func (j Job) zero() ZeRO {
	if j.Zero == "" {
		return Zero3
	}
	return j.Zero
}

// Validate reports the first field of the job that is missing, out of range or
// asks for what the cost model does not know.
func (j Job) Validate() error {
	if err := j.Model.Validate(); err != nil {
		return fmt.Errorf("model.%w", err)
	}
	if err := j.Cluster.Validate(); err != nil {
		return fmt.Errorf("cluster.%w", err)
	}
	switch {
	case j.Model.PositionRows > 0 && j.SeqLen > j.Model.MaxLen:
		return fmt.Errorf("seq_len_tokens: %d: %s", int64(j.SeqLen), j.Model.TooLong())
	case j.SeqLen < 1 || j.SeqLen > maxSeqLen:
		return fmt.Errorf("seq_len_tokens: %d: want 1 to %d", int64(j.SeqLen), maxSeqLen)
	case j.Model.MaxLen > 0 && j.SeqLen > j.Model.MaxLen:
		return fmt.Errorf("seq_len_tokens: %d: %s", int64(j.SeqLen), j.Model.TooLong())
	case !j.DType.Computes():
		return fmt.Errorf("dtype: %q: want f32, bf16, f16 or fp8", string(j.DType))
	case j.Recompute != RecomputeNone && j.Recompute != RecomputeFull:
		return fmt.Errorf("recompute: %q: want none or full", string(j.Recompute))
	case j.RingBuffers < 2 || j.RingBuffers > MaxRanks:
		return fmt.Errorf("ring_buffers: %d: want at least 2, for with one every rank of a ring waits for the next to empty it, and at most %d", j.RingBuffers, MaxRanks)
	case j.LossChunk < 1 || j.LossChunk > maxSeqLen:
		return fmt.Errorf("loss_chunk_tokens: %d: want 1 to %d", int64(j.LossChunk), maxSeqLen)
	case j.Accumulate < 0 || j.Accumulate > maxAccumulate:
		return fmt.Errorf("grad_accumulation: %d: want 1 to %d", j.Accumulate, maxAccumulate)
	case !(j.MemoryReserve >= 0 && j.MemoryReserve <= MostReserve):
		return fmt.Errorf("memory_reserve_ratio: %v: want 0 to %v", j.MemoryReserve, MostReserve)
	case !slices.Contains([]ZeRO{Zero0, Zero1, Zero2, Zero3}, j.zero()):
		return fmt.Errorf("zero: %q: want zero0, zero1, zero2 or zero3", string(j.Zero))
	}
	return nil
}

// maxSeqLen is the most tokens that op shapes allow.
const maxSeqLen = 1 << 31

const maxAccumulate = 1 << 20

// Recompute says what is computed a second time in the backward pass instead
// of being kept.
type Recompute string

// The choices of recomputation.
const (
	RecomputeNone Recompute = "none"
	RecomputeFull Recompute = "full" // every layer's forward, communication included
)

// Step is the account of one simulated training step.
type Step struct {
	Time     Estimate   `json:"time"`
	Parts    []Part     `json:"parts"` // of Time, along the critical path, in order of execution
	Ranks    []RankStep `json:"ranks"`
	Traffic  []Traffic  `json:"traffic"`
	Warnings []string   `json:"warnings,omitempty"`
	// Contention is how much longer the step would take if, on devices where nobody
	// measured it, communication slowed down simultaneous computing by as much as the
	// worst published case. The predicted time assumes no slow-down there; the upper end of its interval
	// includes this.
	Contention units.Seconds `json:"contention_s,omitzero"`

	Timeline []Span `json:"-"` // filled only on request
	Path     []Hop  `json:"-"` // critical path of a layer; only on request

	sides []side  // of the device types at work, that of the rank which idles least first
	turns []*Step // instead: what is done one after the other (see InTurn)
}

// Relabelled is the account of the same step with its ranks called otherwise: to[r] is the new
// number of rank r. Timeline and Path are left out.
func (s *Step) Relabelled(to []int) *Step {
	x := *s
	x.Timeline, x.Path = nil, nil
	x.Ranks = make([]RankStep, len(s.Ranks))
	for r, k := range s.Ranks {
		x.Ranks[to[r]] = k
	}
	return &x
}

// Part is one named component of a step's time along the critical path.
type Part struct {
	Name string   `json:"name"`
	Time Estimate `json:"time"`
}

// RankStep says how one rank spends a step. Busy, Exposed and Idle add up to the step's
// time.
type RankStep struct {
	Device  string        `json:"device"`
	Tokens  units.Tokens  `json:"tokens"`
	Busy    units.Seconds `json:"busy_s"`    // computing
	Exposed units.Seconds `json:"exposed_s"` // waiting for bytes that are on the wire or queued for it
	Idle    units.Seconds `json:"idle_s"`    // waiting for slower ranks
	Memory  Memory        `json:"memory"`
}

// Traffic is the number of bytes that all ranks together send over one link class in a
// step; a collective of all ranks counts as a ring that leaves every node once.
type Traffic struct {
	Link  string      `json:"link"`
	Bytes units.Bytes `json:"bytes"`
}

// Memory is the predicted peak memory of one rank, by component. All of it comes from
// formulas and counts as assumed, except Activations where LayerToken is given.
type Memory struct {
	States      units.Bytes `json:"states_bytes"`      // parameters, gradients, optimizer
	Activations units.Bytes `json:"activations_bytes"` // kept for the backward pass
	Transient   units.Bytes `json:"transient_bytes"`   // on top in the fullest phase of the last layer's backward pass, less what is free again by then
	Logits      units.Bytes `json:"logits_bytes"`      // one loss chunk
	Capacity    units.Bytes `json:"capacity_bytes"`    // of the device, less its measured reserve and the reserve that the job asks for
	// LayerToken is the measured memory per token and layer that Activations were computed
	// from; 0 where they come from the formula.
	LayerToken units.Bytes `json:"layer_token_bytes,omitzero"`
}

// Peak is the sum of the components.
func (m Memory) Peak() units.Bytes {
	return m.States.Plus(m.Activations).Plus(m.Transient).Plus(m.Logits)
}

// Usable is the part of the capacity a plan may fill.
const Usable = 0.97

// Room is what the peak leaves of the usable capacity, in bytes; below zero where it is more.
func (m Memory) Room() float64 { return Usable*float64(m.Capacity) - float64(m.Peak()) }

// Fits says whether the peak stays within the usable capacity.
func (m Memory) Fits() bool { return m.Room() >= 0 }

// Span is a stretch of time in which one resource of a rank is busy, for timelines.
type Span struct {
	Rank     int
	Resource string // "compute", "egress", "ingress"
	Name     string
	Start    units.Seconds
	End      units.Seconds
}

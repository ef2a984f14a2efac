package solver

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// PlanSchema is the schema of the plan documents this version writes.
const PlanSchema = "evenkeel.plan/v2"

// Plan is the document that solve writes: who owns which tokens, what that is
// predicted to take, how far it can be from the best possible, and what the
// alternatives would take. Header.Inputs names the profile by its hash; whoever
// read the files fills the header.
type Plan struct {
	doc.Header
	Simulated bool          `json:"simulated"` // from a profile that was made on a simulated backend
	Job       costmodel.Job `json:"job"`
	Strategy  string        `json:"strategy"` // whose layout this is
	Ranks     []PlanRank    `json:"ranks"`    // by rank
	// Taken: whoever asked named the strategy, and it is not the recommended one: a
	// plan that gains no more over today's than the model can tell is not, nor is a
	// slower one.
	Taken  bool              `json:"taken,omitzero"`
	Groups []costmodel.Group `json:"groups"` // all-to-all groups in the order of their ring
	// OwnLast is that of costmodel.Layout: backward each group computes its own block last.
	OwnLast bool `json:"own_last,omitzero"`
	// KeepTail is that of costmodel.Layout: tokens that no other group needs stay at home.
	KeepTail bool `json:"keep_tail,omitzero"`
	// HeadChunks is that of costmodel.Layout: the heads of the one group are computed in so
	// many chunks, one after the other.
	HeadChunks int `json:"head_chunks,omitzero"`
	// TwoBatch is that of costmodel.Layout: micro-batches go through the layers in twos.
	TwoBatch bool           `json:"two_batch_overlap,omitzero"`
	Step     costmodel.Step `json:"step"` // predicted
	Bound    units.Seconds  `json:"lower_bound_s"`
	// Gap is step time / lower bound - 1: the most that any plan could still gain that has
	// all micro-batches in the same layout, one after the other or in twos.
	Gap float64 `json:"gap"`
	// SideBySide is what another kind of plan would take; nil where nobody asked.
	SideBySide *SideBySide `json:"side_by_side,omitempty"`
	Compared   []Candidate `json:"considered"`
	Warnings   []string    `json:"warnings,omitempty"`
	Notes      []string    `json:"notes"` // what the cost model leaves out
}

// SideBySide is what a step takes whose sequences train at the same time, each in devices
// of its own, as a plan of a batch (package solver/batch) has them.
type SideBySide struct {
	Time         units.Seconds `json:"step_s"`
	MicroBatches int           `json:"micro_batches"`
	Groups       int           `json:"groups"` // of devices, in the micro-batch that has most
}

// PlanRank is what one rank owns.
type PlanRank struct {
	Rank     int                 `json:"rank"`
	Device   string              `json:"device"` // device type
	Node     string              `json:"node"`
	Tokens   units.Tokens        `json:"tokens"`
	Segments []costmodel.Segment `json:"segments"`     // of global positions, rising
	Group    int                 `json:"group"`        // index into the plan's groups, -1 for a rank without work
	FirstQ   int                 `json:"first_q_head"` // it computes query heads first_q_head to first_q_head + q_heads
	QHeads   int                 `json:"q_heads"`
	KVHeads  int                 `json:"kv_heads"` // that these need
}

// Candidate is the result of one strategy.
type Candidate struct {
	Strategy string  `json:"strategy"`
	Baseline bool    `json:"baseline"`
	Verdict  Verdict `json:"verdict"`
	Why      string  `json:"why"`
	// Time and what follows from it are of the layout even if it does not fit.
	Time costmodel.Estimate `json:"time,omitzero"`
	Gap  float64            `json:"gap"`
	Peak units.Bytes        `json:"peak_memory_bytes"` // of the fullest rank, in proportion to its capacity
	// Speedup is the strongest baseline's time over this one's; 0 if either
	// does not fit.
	Speedup float64 `json:"speedup_vs_baseline"`
	// GainError is the half of the 90 % interval of the time gained over, or lost to,
	// the strongest baseline on the side of no difference; 0 where there is none to
	// compare with.
	GainError units.Seconds `json:"gain_error_s"`
	// Busy, Exposed and Idle are how the ranks of the cluster spend the step on
	// average: computing, waiting for bytes, waiting for slower ranks or without work.
	Busy    units.Seconds `json:"busy_s,omitzero"`
	Exposed units.Seconds `json:"exposed_s,omitzero"`
	Idle    units.Seconds `json:"idle_s,omitzero"`
	// Layout is left out where it is the plan's own.
	Layout *costmodel.Layout `json:"layout,omitempty"`
}

// Runs says that the candidate has a layout, and one that fits.
func (c *Candidate) Runs() bool { return c.Verdict != Infeasible && c.Verdict != NotLegal }

// Verdict says what became of a candidate.
type Verdict = recommend.Verdict

// The verdicts.
const (
	Chosen             = recommend.Chosen
	Tie                = recommend.Tie
	Equal              = recommend.Equal
	Slower             = recommend.Slower
	Infeasible Verdict = "infeasible" // does not fit a device's memory
	NotLegal   Verdict = "not legal"  // has no layout on this cluster, as Why says; so no time either
)

// Head implements doc.Document.
func (p *Plan) Head() *doc.Header { return &p.Header }

// SchemaName implements doc.Document.
func (*Plan) SchemaName() string { return PlanSchema }

// Validate implements doc.Document: everything that can be checked without the
// profile. Check does the rest.
func (p *Plan) Validate() error {
	if err := p.Job.Validate(); err != nil {
		return errIn("job", err)
	}
	if found := structure(p); len(found) > 0 {
		return found[0]
	}
	return nil
}

// old says that the plan was read from a document of an older version.
func (p *Plan) old() bool { return p.Schema == PlanSchemaV1 }

// Layout is who owns what, as the simulator takes it.
func (p *Plan) Layout() costmodel.Layout {
	l := costmodel.Layout{Shards: make([]costmodel.Shard, len(p.Ranks)), Groups: p.Groups, OwnLast: p.OwnLast, KeepTail: p.KeepTail, HeadChunks: p.HeadChunks, TwoBatch: p.TwoBatch}
	for r, k := range p.Ranks {
		l.Shards[r].Segments = k.Segments
	}
	return l
}

// Baseline is the strongest baseline that fits, or nil.
func (p *Plan) Baseline() *Candidate {
	var best *Candidate
	for i := range p.Compared {
		c := &p.Compared[i]
		if c.Baseline && c.Runs() && (best == nil || c.Time.Mid < best.Time.Mid) {
			best = c
		}
	}
	return best
}

// notModelled is what every plan says of the model behind its numbers.
func notModelled() []string {
	return []string{
		"all layers are taken as alike and ranks meet at the end of each",
		"computing and moving bytes slow each other only as far as the profile has measured it of attention beside send_recv; the interval alone allows for what was not",
		"every device type was measured alone: devices that share cores or memory slow each other, which is not counted",
		"the embedding lookup, residual additions and the input pipeline are not counted",
		"memory is by formula; the context, communicators and fragmentation are counted only as far as the profile's capacity leaves them out",
	}
}

package solver

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// PlanSchema is the schema of the plan documents this version writes.
const PlanSchema = "evenkeel.plan/v2"

// Plan is the document that evenkeel solve writes: which rank owns which tokens and
// heads, the predicted step, how far the step can be from optimal, and how all other
// strategies compare. The inputs in its header name the profile by its hash;
// the caller that read the files fills in the header.
type Plan struct {
	doc.Header
	Simulated bool          `json:"simulated"` // from a profile that was made on a simulated backend
	Job       costmodel.Job `json:"job"`
	Strategy  string        `json:"strategy"` // whose layout this is
	Ranks     []PlanRank    `json:"ranks"`    // by rank
	// Taken says that the caller chose the strategy (--take) and that it is not the
	// one that would be recommended: it is slower, or its gain over the strongest baseline is
	// within the cost model's error.
	Taken  bool              `json:"taken,omitzero"`
	Groups []costmodel.Group `json:"groups"` // all-to-all groups in the order of their ring
	// The keys of the schedule are the plan's own.
	costmodel.Schedule
	Step  costmodel.Step `json:"step"` // predicted
	Bound units.Seconds  `json:"lower_bound_s"`
	// Gap is step time / lower bound - 1: no plan with the same layout for all micro-batches,
	// run one by one or in pairs, can gain more.
	Gap float64 `json:"gap"`
	// SideBySide is the step time of sequences in parallel; nil where it was not asked for.
	SideBySide *SideBySide `json:"side_by_side,omitempty"`
	// Settings are those that were left open (--zero auto, --recompute auto), with the chosen one, whose
	// values Job has; empty where none was.
	Settings []Setting   `json:"settings,omitempty"`
	Compared []Candidate `json:"considered"`
	Warnings []string    `json:"warnings,omitempty"`
	Notes    []string    `json:"notes"` // what the cost model leaves out
}

// SideBySide is the step time if the sequences train at the same time, each on devices of
// its own, as in a plan of a batch (package solver/batch).
type SideBySide struct {
	Time         units.Seconds `json:"step_s"`
	MicroBatches int           `json:"micro_batches"`
	Groups       int           `json:"groups"` // groups of devices in the micro-batch with the most groups
}

// PlanRank is the work of one rank.
type PlanRank struct {
	Rank     int                 `json:"rank"`
	Device   string              `json:"device"` // device type
	Node     string              `json:"node"`
	Tokens   units.Tokens        `json:"tokens"`
	Segments []costmodel.Segment `json:"segments"`     // of global positions, rising
	Group    int                 `json:"group"`        // index into the groups of the plan; -1 for a rank without work
	FirstQ   int                 `json:"first_q_head"` // the rank computes query heads FirstQ to FirstQ + QHeads - 1
	QHeads   int                 `json:"q_heads"`
	KVHeads  int                 `json:"kv_heads"` // KV heads that these need
}

// Candidate is the result of one strategy, compared with the strongest baseline.
type Candidate struct {
	Strategy string  `json:"strategy"`
	Baseline bool    `json:"baseline"`
	Verdict  Verdict `json:"verdict"`
	Why      string  `json:"why"`
	// Time, and the numbers derived from it, are those of the layout even if it does not
	// fit a device's memory.
	Time costmodel.Estimate `json:"time,omitzero"`
	Gap  float64            `json:"gap"`
	Peak units.Bytes        `json:"peak_memory_bytes"` // of the rank that uses the largest share of its capacity
	// Speedup is the step time of the strongest baseline over that of this layout; 0 if
	// either does not fit.
	Speedup float64 `json:"speedup_vs_baseline"`
	// GainError is the error of the time gained over the strongest baseline, or lost to it:
	// half the 90 % interval, on the side of no difference. 0 without
	// a baseline.
	GainError units.Seconds `json:"gain_error_s"`
	// Busy, Exposed and Idle are averages over all ranks of the cluster: time computing,
	// waiting for bytes, and waiting for slower ranks or without work.
	Busy    units.Seconds `json:"busy_s,omitzero"`
	Exposed units.Seconds `json:"exposed_s,omitzero"`
	Idle    units.Seconds `json:"idle_s,omitzero"`
	// Layout is left out where it is the plan's own.
	Layout *costmodel.Layout `json:"layout,omitempty"`
}

// Runs says whether the candidate has a layout that fits.
func (c *Candidate) Runs() bool { return c.Verdict != Infeasible && c.Verdict != NotLegal }

// Verdict is the judgement of a candidate beside the others.
type Verdict = recommend.Verdict

// The verdicts.
const (
	Chosen     = recommend.Chosen
	Tie        = recommend.Tie
	Equal      = recommend.Equal
	Slower     = recommend.Slower
	Infeasible = recommend.Infeasible
	NotLegal   = recommend.NotLegal // the cluster allows no layout of this kind (see Candidate.Why), so it has no time
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
	l := costmodel.Layout{Shards: make([]costmodel.Shard, len(p.Ranks)), Groups: p.Groups, Schedule: p.Schedule}
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
		"a slower clock under the load of training, and what no law is of (embedding, residual additions, conversions), are counted only as far as whole training steps were measured or are assumed (fit --training, --assume): of nine on one H100 they made 11 to 30 % of the sum of the calls; the input pipeline is never counted",
		"memory is by formula; the context, communicators and fragmentation are counted only as far as the profile's capacity leaves them out",
	}
}

package solver

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// PlanSchemaV1 is the schema of plans from before all-to-all groups, which stay
// readable.
const PlanSchemaV1 = "evenkeel.plan/v1"

// PlanV1 is a plan document of schema v1, which knew only ring attention: it has a ring
// of ranks in place of groups.
type PlanV1 struct {
	doc.Header
	Simulated bool           `json:"simulated"`
	Job       costmodel.Job  `json:"job"`
	Strategy  string         `json:"strategy"`
	Ranks     []RankV1       `json:"ranks"`
	Ring      []int          `json:"ring"` // ring[i] sends to ring[i+1]
	Step      costmodel.Step `json:"step"`
	Bound     units.Seconds  `json:"lower_bound_s"`
	Gap       float64        `json:"gap"`
	Compared  []CandidateV1  `json:"considered"`
	Warnings  []string       `json:"warnings,omitempty"`
	Notes     []string       `json:"notes"`
}

// RankV1 is what one rank owns.
type RankV1 struct {
	Rank     int                 `json:"rank"`
	Device   string              `json:"device"`
	Node     string              `json:"node"`
	Tokens   units.Tokens        `json:"tokens"`
	Segments []costmodel.Segment `json:"segments"`
	QHeads   int                 `json:"q_heads"` // all of the model's; 0 on a rank without tokens
	KVHeads  int                 `json:"kv_heads"`
}

// CandidateV1 is the result of one strategy.
type CandidateV1 struct {
	Strategy  string             `json:"strategy"`
	Baseline  bool               `json:"baseline"`
	Verdict   Verdict            `json:"verdict"`
	Why       string             `json:"why"`
	Time      costmodel.Estimate `json:"time"`
	Gap       float64            `json:"gap"`
	Peak      units.Bytes        `json:"peak_memory_bytes"`
	Speedup   float64            `json:"speedup_vs_baseline"`
	GainError units.Seconds      `json:"gain_error_s"`
	Layout    *LayoutV1          `json:"layout,omitempty"`
}

// LayoutV1 is shards and the ring of the ranks that have some.
type LayoutV1 struct {
	Shards []costmodel.Shard `json:"shards"`
	Ring   []int             `json:"ring"`
}

// SchemaName implements doc.Document.
func (*PlanV1) SchemaName() string { return PlanSchemaV1 }

// Validate implements doc.Document: that the plan becomes one of today in which
// every token has one owner and every rank with tokens a place in the ring. Its
// numbers are those of the simulator that made it and are not judged.
func (v *PlanV1) Validate() error {
	if err := v.Job.Validate(); err != nil {
		return errIn("job", err)
	}
	for i, c := range v.Compared {
		if c.Layout == nil {
			continue
		}
		if err := c.Layout.today(v.Job.Model.QHeads).Validate(v.Job.SeqLen, len(v.Ranks), v.Job.Model.QHeads); err != nil {
			return fmt.Errorf("considered[%d].layout.%w", i, err)
		}
	}
	p := v.Plan()
	var f findings
	f.owners(p)
	if len(f) == 0 {
		f.cover(p)
		f.groups(p)
	}
	if len(f) > 0 {
		return f[0]
	}
	return nil
}

// Plan is the plan as today's documents have it: each rank of the ring a group
// of its own with all heads. It keeps the old schema's name, by which Check
// knows that its times and memory are those of an older simulator.
func (v *PlanV1) Plan() *Plan {
	p := &Plan{
		Header: v.Header, Simulated: v.Simulated, Job: v.Job, Strategy: v.Strategy, Groups: groupsOf(v.Ring, v.Job.Model.QHeads), Step: v.Step,
		Bound: v.Bound, Gap: v.Gap, Warnings: append([]string{olderSimulator().Error()}, v.Warnings...), Notes: v.Notes,
	}
	place := map[int]int{}
	for i, r := range v.Ring {
		place[r] = i
	}
	for _, r := range v.Ranks {
		group, ok := place[r.Rank]
		if !ok {
			group = -1
		}
		p.Ranks = append(p.Ranks, PlanRank{
			Rank: r.Rank, Device: r.Device, Node: r.Node, Tokens: r.Tokens, Segments: r.Segments, Group: group, QHeads: r.QHeads, KVHeads: r.KVHeads,
		})
	}
	for _, c := range v.Compared {
		n := Candidate{
			Strategy: c.Strategy, Baseline: c.Baseline, Verdict: c.Verdict, Why: c.Why, Time: c.Time, Gap: c.Gap, Peak: c.Peak, Speedup: c.Speedup, GainError: c.GainError,
		}
		if c.Layout != nil {
			l := c.Layout.today(v.Job.Model.QHeads)
			n.Layout = &l
		}
		p.Compared = append(p.Compared, n)
	}
	return p
}

// today is the layout with a group for each rank of the ring.
func (l *LayoutV1) today(qHeads int) costmodel.Layout {
	return costmodel.Layout{Shards: l.Shards, Groups: groupsOf(l.Ring, qHeads)}
}

func groupsOf(ring []int, qHeads int) []costmodel.Group {
	groups := make([]costmodel.Group, len(ring))
	for i, r := range ring {
		groups[i] = costmodel.Group{{Rank: r, QHeads: qHeads}}
	}
	return groups
}

func olderSimulator() Finding {
	return Finding{"schema", PlanSchemaV1 + ": its times and memory are those of an older simulator, without all-to-all groups, and cannot be computed anew; for numbers of today make the plan again: evenkeel solve"}
}

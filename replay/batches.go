package replay

import (
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile/backend/torch"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/go-json-experiment/json"
)

// batchKind begins the schemas of plans of batches, of any version.
const batchKind = "evenkeel.batchplan/"

// Trained is what a plan of batches or of a pipeline does not say: whose layers the ranks run.
type Trained struct {
	Model costmodel.Model
	DType op.DType // "": f32 on processors, bf16 on GPUs
}

// part is one group of ranks in a micro-batch, as the rank program takes it: a
// plan over places in Ranks, which rise as those of a process group do.
type part struct {
	Plan  partPlan       `json:"plan"`
	Ranks []int          `json:"ranks"`
	Docs  []units.Tokens `json:"docs_tokens"`
}

// partPlan is the plan document of a part, and without groups and segments the
// head of a plan of batches, as far as the rank program reads them.
type partPlan struct {
	Schema string            `json:"schema"`
	Job    partJob           `json:"job"`
	Ranks  []partRank        `json:"ranks"`
	Groups []costmodel.Group `json:"groups,omitempty"`
	// LeftOut is of a head: see batch.Document.
	LeftOut []int `json:"left_out_ranks,omitempty"`
	costmodel.Schedule
}

type partJob struct {
	Model       costmodel.Model     `json:"model"`
	DType       op.DType            `json:"dtype"`
	SeqLen      units.Tokens        `json:"seq_len_tokens,omitzero"`
	Recompute   costmodel.Recompute `json:"recompute,omitzero"`
	RingBuffers int                 `json:"ring_buffers,omitzero"`
	// Zero and OverlapZero are of a head.
	Zero        costmodel.ZeRO `json:"zero,omitzero"`
	OverlapZero bool           `json:"overlap_zero,omitzero"`
}

type partRank struct {
	Rank     int                 `json:"rank"`
	Device   string              `json:"device"`
	Segments []costmodel.Segment `json:"segments,omitempty"`
}

// ringBuffers are the KV blocks that a rank holds besides its own: what plans of
// one sequence have unless told otherwise.
const ringBuffers = 2

// NoModelError says that a plan of several sequences was given and no model that it trains.
type NoModelError struct{ Path, Schema string }

// Error names the plan and the flag that names the model.
func (e *NoModelError) Error() string {
	return fmt.Sprintf("%s: schema: %q: such a plan does not hold the model that it trains; name its config.json: --model", e.Path, e.Schema)
}

// readBatch fills a plan from a document of batches.
func (p *Plan) readBatch(data []byte, of *Trained) error {
	var d batch.Document
	if err := doc.Decode(p.Path, data, &d); err != nil {
		return err
	}
	if of == nil {
		return &NoModelError{Path: p.Path, Schema: d.Schema}
	}
	p.from(d.Header, d.Strategy, d.Simulated, of)
	p.Job.Zero, p.Job.OverlapZero, p.leftOut = d.Zero, d.OverlapZero, d.LeftOut
	err := p.devices(&d)
	if err == nil {
		err = p.trains(d.Lengths)
	}
	if err == nil {
		err = p.layOut(&d)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.Path, err)
	}
	head := partPlan{
		Schema: d.Schema, Ranks: p.bare(), LeftOut: p.leftOut,
		Job: partJob{Model: p.Job.Model, DType: p.Job.DType, Zero: p.Job.Zero, OverlapZero: p.Job.OverlapZero},
	}
	p.raw, err = json.Marshal(head)
	return err
}

// from takes what a document of several sequences says of itself, and what it trains.
func (p *Plan) from(h doc.Header, strategy string, simulated bool, of *Trained) {
	p.Header, p.Strategy, p.Simulated = h, strategy, simulated
	p.Job = costmodel.Job{Model: of.Model, DType: of.DType}
}

// bare are the ranks, without tokens.
func (p *Plan) bare() []partRank {
	ranks := make([]partRank, len(p.Ranks))
	for r := range ranks {
		ranks[r] = partRank{Rank: r, Device: p.Ranks[r].Device}
	}
	return ranks
}

// devices are those of the fleet, by rank.
func (p *Plan) devices(d *batch.Document) error {
	n := 0
	for _, pool := range d.Fleet {
		n += batch.Pool(pool).Count()
	}
	if n > costmodel.MaxRanks {
		return fmt.Errorf("fleet: %d devices: want at most %d", n, costmodel.MaxRanks)
	}
	p.Ranks = make([]solver.PlanRank, n)
	for i, pool := range d.Fleet {
		for _, node := range pool.Ranks {
			for _, r := range node {
				if r >= n {
					return fmt.Errorf("fleet[%d] (%s): rank %d: the ranks of a run are 0 to %d, one a device", i, pool.Device, r, n-1)
				}
				p.Ranks[r] = solver.PlanRank{Rank: r, Device: pool.Device, Group: -1}
			}
		}
	}
	return nil
}

// trains checks that the model is one that the sequences and devices suit.
func (p *Plan) trains(lengths []units.Tokens) error {
	m := p.Job.Model
	if err := m.Validate(); err != nil {
		return fmt.Errorf("the model: %w", err)
	}
	if p.Job.DType == "" {
		p.Job.DType = op.BF16
		if _, _, processor := torch.Processor(p.Ranks[0].Device); processor {
			p.Job.DType = op.F32
		}
	}
	if !p.Job.DType.Runs() {
		return fmt.Errorf("the dtype: %q: want f32, bf16 or f16", string(p.Job.DType))
	}
	for i, n := range lengths {
		if m.MaxLen > 0 && n > m.MaxLen {
			return fmt.Errorf("lengths_tokens[%d]: %d: the model attends fully up to %d tokens", i, int64(n), int64(m.MaxLen))
		}
	}
	return nil
}

// layOut makes the parts of all micro-batches. A group without sequences has
// nothing to do and is none.
func (p *Plan) layOut(d *batch.Document) error {
	p.micro = make([][]part, len(d.Micro))
	for i := range d.Micro {
		p.micro[i] = []part{}
		for j := range d.Micro[i].Groups {
			l, docs, err := batch.GroupLayout(d, i, j, p.Job.Model.QHeads, p.Job.Model.KVHeads)
			if err != nil {
				return fmt.Errorf("micro_batches[%d].groups[%d]: %w", i, j, err)
			}
			if len(docs) == 0 {
				continue
			}
			g := &d.Micro[i].Groups[j]
			p.micro[i] = append(p.micro[i], p.partOf(g.Ranks, l, docs, d.Classes[g.Class].Recompute))
		}
	}
	if len(p.micro) == 0 {
		return errors.New("micro_batches: none")
	}
	return nil
}

// partOf puts a layout over places among ranks into the order of a process group,
// in which ranks rise.
func (p *Plan) partOf(ranks []int, l costmodel.Layout, docs []units.Tokens, recompute bool) part {
	k := part{Ranks: slices.Sorted(slices.Values(ranks)), Docs: docs}
	k.Plan = partPlan{Schema: solver.PlanSchema, Ranks: make([]partRank, len(ranks)), Schedule: l.Schedule}
	place := make([]int, len(ranks)) // in the process group, by place in the layout
	for i, r := range ranks {
		place[i], _ = slices.BinarySearch(k.Ranks, r)
		k.Plan.Ranks[place[i]] = partRank{Rank: place[i], Device: p.Ranks[r].Device, Segments: l.Shards[i].Segments}
	}
	for _, g := range l.Groups {
		var x costmodel.Group
		for _, m := range g {
			x = append(x, costmodel.HeadShare{Rank: place[m.Rank], QHeads: m.QHeads})
		}
		k.Plan.Groups = append(k.Plan.Groups, x)
	}
	k.Plan.Job = partJob{Model: p.Job.Model, DType: p.Job.DType, Recompute: costmodel.RecomputeNone, RingBuffers: ringBuffers}
	for _, n := range docs {
		k.Plan.Job.SeqLen += n
	}
	if recompute {
		k.Plan.Job.Recompute = costmodel.RecomputeFull
	}
	return k
}

package replay

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// GroupRun is the work of one group of ranks in a micro-batch: the plan of one
// packed sequence.
type GroupRun struct {
	Ranks       []int               `json:"ranks"` // of the run, rising
	Docs        []units.Tokens      `json:"docs_tokens"`
	Layout      costmodel.Layout    `json:"layout"` // over places in Ranks
	Recompute   costmodel.Recompute `json:"recompute"`
	RingBuffers int                 `json:"ring_buffers"`
}

// Tokens is the length of the packed sequence.
func (g *GroupRun) Tokens() units.Tokens {
	var n units.Tokens
	for _, d := range g.Docs {
		n += d
	}
	return n
}

// groups are those of a plan of batches.
func (p *Plan) groups() [][]GroupRun {
	all := make([][]GroupRun, len(p.micro))
	for i, side := range p.micro {
		all[i] = make([]GroupRun, len(side))
		for j, k := range side {
			l := costmodel.Layout{Shards: make([]costmodel.Shard, len(k.Ranks)), Groups: k.Plan.Groups, Schedule: k.Plan.Schedule}
			for r := range l.Shards {
				l.Shards[r].Segments = k.Plan.Ranks[r].Segments
			}
			all[i][j] = GroupRun{Ranks: k.Ranks, Docs: k.Docs, Layout: l, Recompute: k.Plan.Job.Recompute, RingBuffers: k.Plan.Job.RingBuffers}
		}
	}
	return all
}

// validGroups checks that no rank is in two groups of a micro-batch, and every
// group by itself.
func (p *PlanRun) validGroups(ranks int) error {
	if p.Groups == nil {
		return nil
	}
	if len(p.Groups) != p.Micro {
		return fmt.Errorf("groups: of %d micro-batches: want %d, as micro_batches says", len(p.Groups), p.Micro)
	}
	for i, side := range p.Groups {
		in := make([]bool, ranks)
		for _, r := range p.LeftOut {
			in[r] = true
		}
		for j := range side {
			if err := side[j].validate(in, p.Model.QHeads); err != nil {
				return fmt.Errorf("groups[%d][%d].%w", i, j, err)
			}
		}
	}
	return nil
}

// validate checks a group; in says which ranks are in another one, or in none.
func (g *GroupRun) validate(in []bool, qHeads int) error {
	if len(g.Ranks) == 0 || len(g.Docs) == 0 {
		return fmt.Errorf("ranks, docs_tokens: %d and %d of them: a group has ranks and sequences", len(g.Ranks), len(g.Docs))
	}
	for i, r := range g.Ranks {
		if r < 0 || r >= len(in) || in[r] || i > 0 && r < g.Ranks[i-1] {
			return fmt.Errorf("ranks[%d]: %d: want rising ranks from 0 to %d, none in two groups or left out", i, r, len(in)-1)
		}
		in[r] = true
	}
	for i, n := range g.Docs {
		if n < 1 || n > maxTokens {
			return fmt.Errorf("docs_tokens[%d]: %d: want 1 to %d", i, int64(n), int64(maxTokens))
		}
	}
	if g.Recompute != costmodel.RecomputeNone && g.Recompute != costmodel.RecomputeFull {
		return fmt.Errorf("recompute: %q: want none or full", string(g.Recompute))
	}
	if g.RingBuffers < 2 || g.RingBuffers > costmodel.MaxRanks {
		return fmt.Errorf("ring_buffers: %d: want 2 to %d", g.RingBuffers, costmodel.MaxRanks)
	}
	if err := g.Layout.Validate(g.Tokens(), len(g.Ranks), qHeads); err != nil {
		return fmt.Errorf("layout.%w", err)
	}
	if g.Layout.OwnLast && len(g.Layout.Groups) < 2 {
		return fmt.Errorf("layout.own_last: true, but the group is one all-to-all, which has no other blocks: want false")
	}
	return nil
}

// maxTokens is beyond any sequence.
const maxTokens = units.Tokens(1) << 31

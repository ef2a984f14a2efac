package comparison

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// staged is the work of a pipeline's stages on all chunks.
type staged struct {
	costs *pipeline.Costs
	plan  *pipeline.Plan // in ranks of the cluster
	ranks []int          // of the run, by rank of the cluster
	model costmodel.Model
	loss  bool // is run behind the last stage
}

// stages is the one part of a pipeline.
func (c *making) stages(plan int) (*part, error) {
	x := &c.rec.Header.Plans[plan]
	place, err := c.place(x)
	if err != nil {
		return nil, err
	}
	run := x.Pipeline
	j := jobOn(x, place.cluster, slices.Max(run.Lengths))
	costs, err := pipeline.FromLaws(c.predictor, c.losing(j), run.Lengths)
	if err != nil {
		return nil, err
	}
	k := &staged{costs: costs, plan: run.Clone(), ranks: place.ranks, model: j.Model, loss: c.loses()}
	for s := range k.plan.Stages {
		k.plan.Stages[s].Ranks = place.seats(run.Stages[s].Ranks)
	}
	return newPart(k)
}

// seats are the cluster's places of ranks of the run, rising.
func (p *places) seats(ranks []int) []int {
	var all []int
	for _, r := range ranks {
		all = append(all, p.at[r])
	}
	slices.Sort(all)
	return all
}

func (k *staged) supposing(took func(costmodel.ReplayKey) units.Seconds) (*costmodel.Replayed, error) {
	r, err := k.costs.Replayed(k.plan, pipeline.Replay{Loss: k.loss, Took: inCluster(took, k.ranks)})
	if err != nil {
		return nil, err
	}
	return inRun(r, k.ranks), nil
}

func (k *staged) members() []int {
	var all []int
	for _, x := range k.plan.Stages {
		for _, r := range x.Ranks {
			all = append(all, k.ranks[r])
		}
	}
	slices.Sort(all)
	return all
}

func (k *staged) rings(int, int) int { return 1 }

// flops: a stage's ranks have as many heads each.
func (k *staged) flops() map[int]int64 {
	all := map[int]int64{}
	for s, x := range k.plan.Stages {
		var sum int64
		for i := range k.plan.Chunks {
			passes := x.Layers*(flopsForward+flopsBackward) + k.plan.Recompute[s][i]*flopsForward
			sum += k.visible(&k.plan.Chunks[i]) * int64(passes)
		}
		for _, r := range x.Ranks {
			all[k.ranks[r]] = sum * int64(k.model.HeadDim) * int64(k.model.QHeads/len(x.Ranks))
		}
	}
	return all
}

// visible are the unmasked pairs of a head over a chunk.
func (k *staged) visible(x *pipeline.Chunk) int64 {
	docs := []units.Tokens{x.Context + x.Slice} // the slice's sequence, as far as it goes
	end := docs[0]
	for _, w := range x.Whole {
		docs, end = append(docs, k.costs.Lengths[w]), end+k.costs.Lengths[w]
	}
	return visible(costmodel.Shard{Segments: []costmodel.Segment{{Start: x.Context, End: end}}}, docs)
}

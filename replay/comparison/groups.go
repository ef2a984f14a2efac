package comparison

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// packed is the work of one group of ranks on one sequence, or on documents packed into it.
type packed struct {
	sim     *costmodel.Simulator
	what    costmodel.ReplayWork
	ranks   []int // of the run, by rank of the job's cluster
	again   bool  // every forward pass is run a second time
	headDim int
}

// sequence is the one part of a plan of one sequence.
func (c *making) sequence(plan int) (*part, error) {
	x := &c.rec.Header.Plans[plan]
	k := &packed{what: c.what(x.Layout, c.rec.Header.Docs)}
	k.what.Micro = x.Micro
	k.what.Update, k.what.Reduced = c.updates(), c.reduced(plan)
	for r := range c.rec.Header.Ranks {
		k.ranks = append(k.ranks, r)
	}
	return k.part(c.predictor, c.losing(x.Job))
}

// reduced is how gradients of whole steps were added up.
func (c *making) reduced(plan int) (r costmodel.Reduction) {
	if of := c.rec.Header.Numerics[plan].Exchange; of != nil && c.updates() {
		r = costmodel.Reduction{Whole: of.Whole(), DType: of.DType}
	}
	return r
}

// group is the part of a group of a plan of batches.
func (c *making) group(x *replay.PlanRun, g *replay.GroupRun, place *places) (*part, error) {
	k := &packed{what: c.what(place.layout(g), g.Docs), ranks: place.ranks}
	return k.part(c.predictor, c.jobOf(x, g, place))
}

// jobOf is what a group of a plan of batches trains in a micro-batch.
func (c *making) jobOf(x *replay.PlanRun, g *replay.GroupRun, place *places) costmodel.Job {
	j := jobOn(x, place.cluster, g.Tokens())
	j.Recompute, j.RingBuffers = g.Recompute, g.RingBuffers
	return c.losing(j)
}

// jobOn is the job of a plan that has none, for so many tokens. The model's limits are of a
// sequence, not of how many are packed.
func jobOn(x *replay.PlanRun, on costmodel.Cluster, tokens units.Tokens) costmodel.Job {
	j := costmodel.Job{
		Model: *x.Model, Cluster: on, SeqLen: tokens, DType: x.DType, Recompute: costmodel.RecomputeNone,
		RingBuffers: 2, LossChunk: 1, // see losing
	}
	if j.Model.MaxLen = 0; j.Model.PositionRows > 0 {
		j.Model.MaxLen, j.Model.PositionRows = tokens, max(j.Model.PositionRows, int(tokens))
	}
	return j
}

func (c *making) what(l costmodel.Layout, packed []units.Tokens) costmodel.ReplayWork {
	return costmodel.ReplayWork{Layout: l, Packed: packed, Layers: c.rec.Header.Layers, AttentionOnly: c.rec.Header.Parts == replay.PartsAttention, Loss: c.loses()}
}

// loses says that the loss was run.
func (c *making) loses() bool { return replay.WithLoss(c.rec.Header.Parts) }

// updates says that whole steps were run.
func (c *making) updates() bool { return c.rec.Header.Parts == replay.PartsStep }

// losing is a job whose loss, if it was run, has as many tokens at a time as it had then; of a
// whole step with as many layers and the one micro-batch.
func (c *making) losing(j costmodel.Job) costmodel.Job {
	if c.loses() {
		j.LossChunk = c.rec.Header.LossChunk
	}
	if c.updates() {
		j.Model.Layers, j.Accumulate = c.rec.Header.Layers, 0
	}
	return j
}

// part predicts the work of a job.
func (k *packed) part(q *costmodel.Predictor, j costmodel.Job) (p *part, err error) {
	if k.sim, err = costmodel.NewSimulator(q, j); err != nil {
		return nil, err
	}
	k.again, k.headDim = j.Recompute == costmodel.RecomputeFull, j.Model.HeadDim
	return newPart(k)
}

func (k *packed) supposing(took func(costmodel.ReplayKey) units.Seconds) (*costmodel.Replayed, error) {
	r, err := k.sim.Supposing(k.what, inCluster(took, k.ranks))
	if err != nil {
		return nil, err
	}
	return inRun(r, k.ranks), nil
}

// inCluster asks for times by ranks of a cluster, which ranks of the run have; nil where nobody
// says them.
func inCluster(took func(costmodel.ReplayKey) units.Seconds, ranks []int) func(costmodel.ReplayKey) (units.Seconds, bool) {
	if took == nil {
		return nil
	}
	return func(key costmodel.ReplayKey) (units.Seconds, bool) {
		key.Rank = ranks[key.Rank]
		t := took(key)
		return t, t >= 0
	}
}

// inRun names the ranks of a cluster as the run does.
func inRun(r *costmodel.Replayed, ranks []int) *costmodel.Replayed {
	sums := make([]costmodel.ReplayedRank, len(r.Ranks))
	for i, a := range r.Ranks {
		sums[ranks[i]] = a
	}
	r.Ranks = sums
	for i := range r.Tasks {
		r.Tasks[i].Rank = ranks[r.Tasks[i].Rank]
	}
	return r
}

func (k *packed) members() []int {
	var all []int
	for _, g := range k.what.Layout.Groups {
		for _, m := range g {
			all = append(all, k.ranks[m.Rank])
		}
	}
	slices.Sort(all)
	return all
}

func (k *packed) rings(int, int) int { return len(k.what.Layout.Groups) }

package comparison

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// course is a plan as it is predicted: micro-batches one after the other, in each
// of which groups of ranks run side by side. A plan of one sequence is one
// micro-batch of one group here, even if its step has two, which may overlap.
type course struct {
	micro   []micro
	batch   bool // ranks meet after each micro-batch
	step    costmodel.Estimate
	meeting units.Seconds
	tasks   []costmodel.ReplayTask // of the whole step
}

// micro is a micro-batch.
type micro struct {
	of     []*part            // by rank; nil where it has no work
	length costmodel.Estimate // of its longest part
}

// part is the work of one group of ranks.
type part struct {
	sim       *costmodel.Simulator
	work      costmodel.ReplayWork
	ranks     []int // of the run, by rank of the job's cluster
	again     bool  // every forward pass is run a second time
	headDim   int
	predicted *costmodel.Replayed // in ranks of the run
	counts    map[int]int64       // FLOPs of attention, by rank of the run
}

// courseOf predicts a plan.
func (c *making) courseOf(plan int) (*course, error) {
	x := &c.rec.Header.Plans[plan]
	p := &course{batch: x.Batch}
	if !x.Batch {
		k, err := c.sequence(x)
		if err != nil {
			return nil, err
		}
		p.add(len(c.rec.Header.Ranks), []*part{k})
		return p, nil
	}
	if x.Groups == nil {
		return nil, fmt.Errorf("groups: missing: the trace is from before it held them; make it again: evenkeel replay")
	}
	place, err := c.place(x)
	if err != nil {
		return nil, err
	}
	for i, side := range x.Groups {
		parts := make([]*part, len(side))
		for j := range side {
			if parts[j], err = c.group(x, &side[j], place); err != nil {
				return nil, fmt.Errorf("micro-batch %d, group %d: %w", i, j, err)
			}
		}
		p.add(len(c.rec.Header.Ranks), parts)
	}
	return p, nil
}

// sequence is the one part of a plan of one sequence.
func (c *making) sequence(x *replay.PlanRun) (*part, error) {
	k := &part{work: c.work(x.Layout, c.rec.Header.Docs)}
	k.work.Micro = x.Micro
	for r := range c.rec.Header.Ranks {
		k.ranks = append(k.ranks, r)
	}
	return k, k.predict(c.predictor, x.Job)
}

// group is the part of a group of a plan of batches.
func (c *making) group(x *replay.PlanRun, g *replay.GroupRun, place *places) (*part, error) {
	k := &part{work: c.work(place.layout(g), g.Docs), ranks: place.ranks}
	j := costmodel.Job{
		Model: *x.Model, Cluster: place.cluster, SeqLen: g.Tokens(), DType: x.DType, Recompute: g.Recompute,
		RingBuffers: g.RingBuffers, LossChunk: 1, // there is no loss
	}
	// The model's limits are of a sequence, not of how many are packed.
	if j.Model.MaxLen = 0; j.Model.PositionRows > 0 {
		j.Model.MaxLen, j.Model.PositionRows = j.SeqLen, max(j.Model.PositionRows, int(j.SeqLen))
	}
	return k, k.predict(c.predictor, j)
}

func (c *making) work(l costmodel.Layout, packed []units.Tokens) costmodel.ReplayWork {
	h := c.rec.Header
	return costmodel.ReplayWork{Layout: l, Packed: packed, Layers: h.Layers, AttentionOnly: h.Parts == replay.PartsAttention}
}

func (k *part) predict(q *costmodel.Predictor, j costmodel.Job) (err error) {
	if k.sim, err = costmodel.NewSimulator(q, j); err != nil {
		return err
	}
	k.again, k.headDim = j.Recompute == costmodel.RecomputeFull, j.Model.HeadDim
	if k.predicted, err = k.supposing(nil); err == nil {
		k.counts = k.flops()
	}
	return err
}

// supposing is the prediction where ranks compute for as long as took says.
func (k *part) supposing(took func(costmodel.ReplayKey) units.Seconds) (*costmodel.Replayed, error) {
	r, err := k.sim.Supposing(k.work, func(key costmodel.ReplayKey) (units.Seconds, bool) {
		if took == nil {
			return 0, false
		}
		key.Rank = k.ranks[key.Rank]
		t := took(key)
		return t, t >= 0
	})
	if err != nil {
		return nil, err
	}
	ranks := make([]costmodel.ReplayedRank, len(r.Ranks))
	for i, a := range r.Ranks {
		ranks[k.ranks[i]] = a
	}
	r.Ranks = ranks
	for i := range r.Tasks {
		r.Tasks[i].Rank = k.ranks[r.Tasks[i].Rank]
	}
	return r, nil
}

// members are the ranks of a part that take part in it.
func (k *part) members() []int {
	var all []int
	for _, g := range k.work.Layout.Groups {
		for _, m := range g {
			all = append(all, k.ranks[m.Rank])
		}
	}
	slices.Sort(all)
	return all
}

// add puts a micro-batch behind those there are.
func (p *course) add(ranks int, parts []*part) {
	m := micro{of: make([]*part, ranks)}
	var meeting units.Seconds
	for _, k := range parts {
		for _, r := range k.members() {
			m.of[r] = k
		}
		e := k.predicted.Step
		m.length = costmodel.Estimate{Lo: max(m.length.Lo, e.Lo), Mid: max(m.length.Mid, e.Mid), Hi: max(m.length.Hi, e.Hi), Source: m.length.Source.Worse(e.Source)}
		meeting = max(meeting, k.predicted.Meeting)
	}
	begin := p.step.Mid
	for _, k := range parts {
		for _, t := range k.predicted.Tasks {
			if t.Start += begin; p.batch {
				t.Micro = len(p.micro)
			}
			p.tasks = append(p.tasks, t)
		}
	}
	for r := range m.of {
		if !p.batch {
			break
		}
		key := costmodel.ReplayKey{Rank: r, Micro: len(p.micro), Dir: costmodel.BackwardPass, Op: costmodel.MeetOp}
		end := m.end(r)
		p.tasks = append(p.tasks, costmodel.ReplayTask{ReplayKey: key, Start: begin + end, Time: m.length.Mid - end})
	}
	p.micro = append(p.micro, m)
	p.step, p.meeting = p.step.Plus(m.length), p.meeting+meeting
}

// end is when a rank is predicted to be done with its part of a micro-batch.
func (m *micro) end(rank int) units.Seconds {
	if m.of[rank] == nil {
		return 0
	}
	return m.of[rank].predicted.Ranks[rank].End
}

// account is a rank's share of a predicted micro-batch: what it neither computes
// nor waits for bytes, it waits for others, at the end for the last one.
func (m *micro) account(rank int) account {
	var a account
	if k := m.of[rank]; k != nil {
		for _, t := range k.predicted.Tasks {
			switch {
			case t.Rank != rank || t.Op.Waits():
			case t.Op == costmodel.AttentionOp || t.Op == costmodel.MergeOp:
				a.attention += t.Time
			default:
				a.linear += t.Time
			}
		}
		a.communication = k.predicted.Ranks[rank].Exposed
	}
	a.skew = m.length.Mid - a.compute() - a.communication
	return a
}

// until is when a rank is predicted to be done with the whole step, and for how
// long it computed till then.
func (p *course) until(rank int) (end, computes units.Seconds) {
	for i := range p.micro {
		m := &p.micro[i]
		if k := m.of[rank]; k != nil {
			computes += k.predicted.Ranks[rank].Compute
		}
		if i == len(p.micro)-1 {
			return end + m.end(rank), computes
		}
		end += m.length.Mid
	}
	return end, computes
}

package comparison

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// course is a plan as it is predicted: micro-batches one after the other, in each
// of which groups of ranks run side by side. A plan of one sequence is one
// micro-batch of one group here, even if its step has two, which may overlap, and
// so is a pipeline, whose chunks do, and so are tasks, and whole steps of a batch, whose
// gradients and parameters go between groups.
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

// part is what some ranks do together, and how it is predicted.
type part struct {
	work
	predicted *costmodel.Replayed // in ranks of the run
	counts    map[int]int64       // FLOPs of attention, by rank of the run
}

// work is that of one group of ranks, of all stages of a pipeline, or of all runs of tasks.
type work interface {
	// supposing predicts it, in ranks of the run, where ranks compute for as long as took
	// says; by the laws where that is negative, or took is nil.
	supposing(took func(costmodel.ReplayKey) units.Seconds) (*costmodel.Replayed, error)
	members() []int // ranks of the run that take part, rising
	// rings is the number of groups among which keys and values of a rank go round in a
	// micro-batch.
	rings(rank, micro int) int
	flops() map[int]int64 // those of the attention of every rank that takes part, all layers
}

// newPart predicts work.
func newPart(w work) (*part, error) {
	predicted, err := w.supposing(nil)
	if err != nil {
		return nil, err
	}
	return &part{w, predicted, w.flops()}, nil
}

// courseOf predicts a plan.
func (c *making) courseOf(plan int) (*course, error) {
	x := &c.rec.Header.Plans[plan]
	p := &course{batch: meets(c.rec.Header, plan)}
	if x.Batch && x.Groups == nil {
		return nil, fmt.Errorf("groups: missing: the trace is from before it held them; make it again: evenkeel replay")
	}
	if !p.batch {
		of := c.sequence
		switch {
		case x.Batch:
			of = c.updatedBatch
		case x.Pipeline != nil:
			of = c.stages
		case x.Tasks != nil:
			of = c.tasks
		}
		k, err := of(plan)
		if err != nil {
			return nil, err
		}
		p.add(len(c.rec.Header.Ranks), []*part{k})
		return p, nil
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

// meets says that the ranks of a plan meet after every micro-batch, where a step can be cut.
// Whole steps of a batch cannot: what is exchanged in a micro-batch goes between all groups.
func meets(h *replay.Header, plan int) bool {
	return h.Plans[plan].Batch && h.Parts != replay.PartsStep
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
			if t.Rank == rank && !t.Op.Waits() {
				a.did(t.Op, t.Time)
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

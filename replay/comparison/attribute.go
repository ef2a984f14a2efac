package comparison

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Part is one part of a step along the critical rank, as defined in the package
// documentation.
type Part struct {
	Name       string        `json:"name"`
	Predicted  units.Seconds `json:"predicted_s"`
	Measured   units.Seconds `json:"measured_s"`
	Difference units.Seconds `json:"difference_s"` // measured less predicted
}

// The names of the parts, in the order of Plan.Parts.
const (
	ComputePart       = "compute"
	CommunicationPart = "exposed communication"
	SkewPart          = "skew"
	GapsPart          = "unmodelled gaps"
)

// account is how a rank spends a step.
type account struct{ attention, linear, update, communication, skew, gaps units.Seconds }

func (a account) compute() units.Seconds { return a.attention + a.linear + a.update }

// did adds computing.
func (a *account) did(o costmodel.ReplayOp, t units.Seconds) {
	switch o {
	case costmodel.AttentionOp, costmodel.MergeOp:
		a.attention += t
	case costmodel.EmbedOp, costmodel.OptimizerOp:
		a.update += t
	default:
		a.linear += t
	}
}

func (a account) plus(b account, share units.Seconds) account {
	return account{
		a.attention + share*b.attention, a.linear + share*b.linear, a.update + share*b.update,
		a.communication + share*b.communication, a.skew + share*b.skew, a.gaps + share*b.gaps,
	}
}

// parts are the differences of two accounts of the same rank.
func parts(predicted, measured account) []Part {
	part := func(name string, p, m units.Seconds) Part { return Part{name, p, m, m - p} }
	return []Part{
		part(ComputePart, predicted.compute(), measured.compute()),
		part(CommunicationPart, predicted.communication, measured.communication),
		part(SkewPart, predicted.skew, measured.skew),
		part(GapsPart, predicted.gaps, measured.gaps),
	}
}

// computeParts split the first of the parts. update: whole steps were run.
func computeParts(predicted, measured account, update bool) []Part {
	all := []Part{
		{"attention", predicted.attention, measured.attention, measured.attention - predicted.attention},
		{"linear", predicted.linear, measured.linear, measured.linear - predicted.linear},
	}
	if update {
		all = append(all, Part{"update", predicted.update, measured.update, measured.update - predicted.update})
	}
	return all
}

// account is the critical rank's account of a lap; skew is what the micro-batch
// with measured computing says it waits for others. Waiting for ranks that were
// done before it is the time of meeting itself, which has no price: it is a gap.
func (l *lap) account(skew units.Seconds) account {
	var a account
	var waiting units.Seconds
	for _, s := range l.spans {
		switch {
		case s.local:
		case s.waits():
			waiting += s.took
		default:
			a.did(s.Op, s.took)
		}
	}
	a.skew = min(waiting, skew)
	a.communication = waiting - a.skew
	a.gaps = l.took + l.meet - a.compute() - waiting
	return a
}

// path is the accounts of a step along the rank that was done last with each
// micro-batch, as predicted and as measured, and these ranks.
func (c *making) path(plan int, r *run) (predicted, measured account, critical []int, err error) {
	left := r.step()
	for m := range r.laps {
		rank := r.critical(m)
		skew, err := c.skewOf(plan, r, m, rank)
		if err != nil {
			return account{}, account{}, nil, err
		}
		l := &r.laps[m][rank]
		predicted = predicted.plus(c.courses[plan].micro[m].account(rank), 1)
		measured = measured.plus(l.account(skew), 1)
		critical, left = append(critical, rank), left-l.took-l.meet
	}
	measured.gaps += left // between the last meeting and the end, by the clocks of several ranks
	return predicted, measured, critical, nil
}

// busy is for how long the ranks of a micro-batch computed, by the stretches that
// the simulator asks for. Time in no span belongs to the stretch it lies in: a rank
// that neither computes nor waits keeps others waiting just as well; what is behind a
// wait for another stage, to the pass that it was for. Once a rank of tasks waits for
// gradients nobody waits for it. Of a plan of batches a part knows of one micro-batch.
func busy(laps []lap, rings func(rank, micro int) int, batch, updates bool) map[costmodel.ReplayKey]units.Seconds {
	all := map[costmodel.ReplayKey]units.Seconds{}
	for rank := range laps {
		var at units.Seconds
		now, begins := costmodel.ReplayKey{Rank: rank, Dir: costmodel.ForwardPass, Op: costmodel.LinearIn}, true
		for _, s := range laps[rank].spans {
			if s.local {
				continue
			}
			if s.Op == costmodel.GradWait && !updates {
				all[now] += max(0, s.start-at)
				at = laps[rank].took
				break
			}
			if batch {
				s.Micro = 0
			}
			if begins && s.Op != costmodel.StageWait {
				now = opening(s.ReplayKey)
			}
			begins = s.Op == costmodel.StageWait
			gap := max(0, s.start-at)
			if at = max(at, s.start+s.took); s.waits() {
				all[now] += gap
				now = afterWait(s.ReplayKey, now, rings(rank, s.Micro))
				continue
			}
			now = stretch(s.ReplayKey)
			all[now] += gap + s.took
		}
		all[now] += max(0, laps[rank].took-at)
	}
	return all
}

// opening is the linear stretch with which the pass begins that a span is of.
func opening(k costmodel.ReplayKey) costmodel.ReplayKey {
	first := costmodel.LinearIn
	if k.Dir == costmodel.BackwardPass {
		first = costmodel.LinearOut
	}
	return costmodel.ReplayKey{Rank: k.Rank, Micro: k.Micro, Layer: k.Layer, Dir: k.Dir, Again: k.Again, Op: first}
}

// stretch is the one that a span of computing is a part of.
func stretch(k costmodel.ReplayKey) costmodel.ReplayKey {
	if k.Op == costmodel.MergeOp {
		k.Op = costmodel.AttentionOp
	}
	return k
}

// afterWait is the stretch that follows a wait: the attention of the ring's step,
// or, after the last step and all-to-alls, still the one before.
func afterWait(wait, now costmodel.ReplayKey, groups int) costmodel.ReplayKey {
	if wait.Op != costmodel.RingWait || wait.Step >= groups {
		return now
	}
	wait.Op = costmodel.AttentionOp
	return wait
}

// skewOf is how long a rank waits in a micro-batch for others that are not done, if
// all compute for as long as they did in a run. A rank without a span computes as
// predicted.
func (c *making) skewOf(plan int, r *run, micro, rank int) (units.Seconds, error) {
	k, laps := c.courses[plan].micro[micro].of[rank], r.laps[micro]
	if k == nil {
		return 0, nil
	}
	took := busy(laps, k.rings, c.courses[plan].batch, c.updates())
	what, err := k.supposing(func(key costmodel.ReplayKey) units.Seconds {
		if len(laps[key.Rank].spans) == 0 {
			return -1
		}
		return took[key]
	})
	if err != nil {
		return 0, err
	}
	return what.Ranks[rank].Skew, nil
}

package comparison

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// updatedBatch is the work of all members of a batch in a whole step.
type updatedBatch struct {
	q     *costmodel.Predictor
	job   costmodel.Job
	what  costmodel.ReplayBatch
	ranks []int // of the run, by rank of the cluster
}

// updatedBatch is the one part of a plan of batches that was run in whole steps.
func (c *making) updatedBatch(plan int) (*part, error) {
	x := &c.rec.Header.Plans[plan]
	place, err := c.place(x)
	if err != nil {
		return nil, err
	}
	j := c.losing(jobOn(x, place.cluster, units.Tokens(len(place.at)))) // one for each member
	j.Zero, j.OverlapZero = x.Zero, x.OverlapZero
	k := &updatedBatch{q: c.predictor, job: j, ranks: place.ranks, what: costmodel.ReplayBatch{Reduced: c.reduced(plan)}}
	for r, at := range place.at {
		if !slices.Contains(x.LeftOut, r) {
			k.what.Members = append(k.what.Members, at)
		}
	}
	slices.Sort(k.what.Members)
	for i := range x.Groups {
		var side []costmodel.ReplayGroup
		for n := range x.Groups[i] {
			g := &x.Groups[i][n]
			side = append(side, costmodel.ReplayGroup{Job: c.jobOf(x, g, place), Layout: place.layout(g), Packed: g.Docs})
		}
		k.what.Micro = append(k.what.Micro, side)
	}
	return newPart(k)
}

func (k *updatedBatch) supposing(took func(costmodel.ReplayKey) units.Seconds) (*costmodel.Replayed, error) {
	r, err := k.q.ReplayedBatch(k.job, k.what, inCluster(took, k.ranks))
	if err != nil {
		return nil, err
	}
	return inRun(r, k.ranks), nil
}

// members are all ranks of the run: those that train nothing meet the others.
func (k *updatedBatch) members() []int { return slices.Sorted(slices.Values(k.ranks)) }

func (k *updatedBatch) rings(rank, micro int) int {
	for _, g := range k.what.Micro[micro] {
		for _, members := range g.Layout.Groups {
			if slices.ContainsFunc(members, func(m costmodel.HeadShare) bool { return k.ranks[m.Rank] == rank }) {
				return len(g.Layout.Groups)
			}
		}
	}
	return 1
}

func (k *updatedBatch) flops() map[int]int64 {
	all := map[int]int64{}
	for _, side := range k.what.Micro {
		for _, g := range side {
			addFLOPs(all, g.Layout, g.Packed, k.ranks, int64(k.job.Model.Layers*k.job.Model.HeadDim), g.Job.Recompute == costmodel.RecomputeFull)
		}
	}
	return all
}

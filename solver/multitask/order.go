package multitask

import (
	"cmp"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
)

// inOrder is the problem that strategies solve: the same devices in an order which does not
// depend on how the cluster lists them, and by rank there the rank that it lists; nil where they
// are the same. Of equal devices the first that are free are taken.
func (p *Problem) inOrder() (*Problem, []int) {
	prices, listed := p.InOrder()
	if listed == nil {
		return p, nil
	}
	return &Problem{Costs: prices, Effort: p.Effort}, listed
}

// asListed is a plan of ranks in that order as one of those that the cluster lists.
func asListed(plan *multitask.Plan, listed []int) *multitask.Plan {
	if listed == nil {
		return plan
	}
	type seat struct{ rank, samples int }
	out := plan.Clone()
	for i := range out.Runs {
		r := &out.Runs[i]
		seats := make([]seat, len(r.Ranks))
		for k, rank := range r.Ranks {
			seats[k] = seat{listed[rank], r.Samples[k]}
		}
		slices.SortFunc(seats, func(a, b seat) int { return cmp.Compare(a.rank, b.rank) })
		r.Ranks, r.Samples = make([]int, len(seats)), make([]int, len(seats))
		for k, s := range seats {
			r.Ranks[k], r.Samples[k] = s.rank, s.samples
		}
	}
	return out
}

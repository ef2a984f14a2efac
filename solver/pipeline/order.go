package pipeline

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
)

// inOrder is the problem that strategies solve: the same devices in an order which does not
// depend on how the cluster lists them, and by rank there the rank that it lists; nil where they
// are the same. The first stages are cut of the first ranks, and what is left over is the last.
func (p *Problem) inOrder() (*Problem, []int) {
	prices, listed := p.InOrder()
	if listed == nil {
		return p, nil
	}
	q := &Problem{Costs: prices, Stages: p.Stages, MIPTime: p.MIPTime, Effort: p.Effort}
	if p.Fixed != nil {
		to := make([]int, len(listed))
		for r, as := range listed {
			to[as] = r
		}
		q.Fixed = renamed(p.Fixed, to)
	}
	return q, listed
}

// asListed is a plan of ranks in that order as one of those that the cluster lists.
func asListed(plan *pipeline.Plan, listed []int) *pipeline.Plan {
	if listed == nil {
		return plan
	}
	out := plan.Clone()
	out.Stages = renamed(plan.Stages, listed)
	return out
}

// renamed are stages whose rank r is to[r].
func renamed(stages []pipeline.Stage, to []int) []pipeline.Stage {
	out := slices.Clone(stages)
	for s := range out {
		ranks := make([]int, len(stages[s].Ranks))
		for i, r := range stages[s].Ranks {
			ranks[i] = to[r]
		}
		slices.Sort(ranks)
		out[s].Ranks = ranks
	}
	return out
}

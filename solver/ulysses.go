package solver

import (
	"context"
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// ulysses is head parallelism as DeepSpeed-Ulysses has it (Jacobs et al. 2023):
// one all-to-all group of all ranks, the same tokens and the same query heads
// for each. Where there are more ranks than key-value heads these are held by
// several ranks.
type ulysses struct{}

func (ulysses) Name() string { return "ulysses" }

func (ulysses) Claims() Claims {
	return Claims{Baseline: true, Doc: "one all-to-all group of all ranks, equal shares of tokens and of heads"}
}

// Solve implements Strategy. Where the heads do not divide over the ranks the
// error is an *IllegalError.
func (s ulysses) Solve(ctx context.Context, p *Problem, report func(Progress)) (Result, error) {
	n, heads := len(p.ranks), p.Job.Model.QHeads
	if heads%n != 0 {
		return Result{}, &IllegalError{s.Name(), fmt.Sprintf("%d heads do not divide over %d ranks", heads, n)}
	}
	ranks := p.all()
	if err := p.exchangeable(ranks); err != nil {
		return Result{}, &IllegalError{s.Name(), err.Error()}
	}
	c := newContest(ctx, p, s.Name(), report)
	why := fmt.Sprintf("%d equal shares, %d heads each", n, heads/n)
	c.try(equalShares(p, [][]int{ranks}), why)
	return c.result()
}

// equalShares gives the ranks of groups of one size equal tokens, and equal
// heads inside each group; the size divides the number of heads.
func equalShares(p *Problem, groups [][]int) costmodel.Layout {
	split := equalSplit(p.Job.SeqLen, len(groups)*len(groups[0]))
	tokens := make([]units.Tokens, len(p.ranks))
	all := make([]costmodel.Group, len(groups))
	next := 0
	for g, ranks := range groups {
		for _, r := range ranks {
			tokens[r] = split[next]
			next++
			all[g] = append(all[g], costmodel.HeadShare{Rank: r, QHeads: p.Job.Model.QHeads / len(ranks)})
		}
	}
	return costmodel.ZigZag(tokens, all)
}

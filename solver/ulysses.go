package solver

import (
	"context"
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// ulysses is head parallelism as DeepSpeed-Ulysses has it (Jacobs et al. 2023):
// one all-to-all group of all ranks, the same tokens and the same query heads
// for each. Where there are more ranks than key-value heads these are held by
// several ranks.
type ulysses struct{}

func (ulysses) Name() string { return "ulysses" }

func (ulysses) Claims() strategy.Claims {
	return strategy.Claims{Baseline: true, Doc: "one all-to-all group of all ranks, equal shares of tokens and of heads"}
}

// Solve implements Strategy. Where the heads do not divide over the ranks the
// error is an *IllegalError.
func (s ulysses) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	n, heads := len(p.Ranks), p.Job.Model.QHeads
	if heads%n != 0 {
		return strategy.Result{}, strategy.Illegal(s.Name(), fmt.Sprintf("%d heads do not divide over %d ranks", heads, n))
	}
	ranks := p.AllRanks()
	if err := p.Exchangeable(ranks); err != nil {
		return strategy.Result{}, strategy.Illegal(s.Name(), err.Error())
	}
	c := strategy.NewContest(ctx, p, s.Name(), report)
	why := fmt.Sprintf("%d equal shares, %d heads each", n, heads/n)
	c.Try(equalShares(p, [][]int{ranks}), why)
	return c.Result()
}

// equalShares gives the ranks of groups of one size equal tokens, and equal
// heads inside each group; the size divides the number of heads.
func equalShares(p *strategy.Problem, groups [][]int) costmodel.Layout {
	split := strategy.EqualSplit(p.Job.SeqLen, len(groups)*len(groups[0]))
	tokens := make([]units.Tokens, len(p.Ranks))
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

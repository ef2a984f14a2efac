package baseline

import (
	"context"
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Ulysses is head parallelism as DeepSpeed-Ulysses has it (Jacobs et al. 2023):
// one all-to-all group of all ranks, the same tokens and the same query heads
// for each. Where there are more ranks than key-value heads these are held by
// several ranks.
type Ulysses struct{}

// Name implements strategy.Strategy.
func (Ulysses) Name() string { return "ulysses" }

// Claims implements strategy.Strategy.
func (Ulysses) Claims() strategy.Claims {
	return strategy.Claims{Baseline: true, Doc: "one all-to-all group of all ranks, equal shares of tokens and of heads"}
}

// Solve implements strategy.Strategy. Where the heads do not divide over the ranks the
// error is an *IllegalError.
func (s Ulysses) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	n, heads := len(p.Ranks), p.Job.Model.QHeads
	if heads%n != 0 {
		return strategy.Result{}, strategy.Illegal(s.Name(), fmt.Sprintf("%d heads do not divide over %d ranks", heads, n))
	}
	ranks := p.AllRanks()
	if err := p.Exchangeable(ranks); err != nil {
		return strategy.Result{}, strategy.Illegal(s.Name(), err.Error())
	}
	c := strategy.NewContest(ctx, p, s.Name(), report)
	why := fmt.Sprintf("%s, %s each", shares(n), units.Count(heads/n, "head"))
	c.Try(EqualShares(p, [][]int{ranks}), why)
	return c.Result()
}

package baseline

import (
	"context"

	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// USP is unified sequence parallelism (Fang and Zhao 2024): a mesh of cp x hp
// ranks, all-to-all among hp of them, a ring over cp such groups, equal shares
// for all. It takes the best pair of factors, in either placement: neighbours
// share an all-to-all, or a ring.
type USP struct{}

// Name implements strategy.Strategy.
func (USP) Name() string { return "usp" }

// Claims implements strategy.Strategy.
func (USP) Claims() strategy.Claims {
	return strategy.Claims{Baseline: true, Doc: "a mesh of ring x all-to-all in equal shares, at the best pair of factors and placement"}
}

// Solve implements strategy.Strategy.
func (s USP) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	m, err := analytic.New(p)
	if err != nil {
		return strategy.Result{}, err
	}
	c := strategy.NewContest(ctx, p, s.Name(), report)
	for _, x := range Meshes(p, p.AllRanks()) {
		x.try(p, c, m, "")
	}
	return c.Result()
}

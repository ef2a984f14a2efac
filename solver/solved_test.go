package solver

import (
	"context"
	"testing"

	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// afterBaselines solves a strategy, and the baselines before it unless others have been.
func afterBaselines(ctx context.Context, p *strategy.Problem, s strategy.Strategy) (strategy.Result, error) {
	return world.After(ctx, p, s, baseline.Strategies())
}

// solveWith is afterBaselines for a strategy that has to find a layout.
func solveWith(t testing.TB, p *strategy.Problem, s strategy.Strategy) strategy.Result {
	t.Helper()
	return world.Solve(t, p, s, baseline.Strategies())
}

package pipeline

import (
	"context"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
)

// Evenkeel is our planner.
type Evenkeel struct{}

// Name implements Strategy.
func (Evenkeel) Name() string { return "evenkeel" }

// Claims implements Strategy.
func (Evenkeel) Claims() Claims {
	return Claims{Doc: "unequal stages for unequal devices"}
}

// Solve implements Strategy.
func (Evenkeel) Solve(ctx context.Context, p *Problem) (*pipeline.Plan, error) {
	var best chosen
	for _, s := range Published() {
		plan, err := s.Solve(ctx, p)
		best.take(p, plan, err)
	}
	return best.result(ctx)
}

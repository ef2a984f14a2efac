package strategy_test

import (
	"context"
	"errors"
	"testing"

	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// What fits is a seed, in order; what is not legal is told, with the reason.
func TestSeedsAreWhatFits(t *testing.T) {
	p := world.Problem(t, "1x3 fast + 1x4 slow", 16384)
	found, skipped, err := strategy.SolveEach(context.Background(), p, baseline.Strategies(), nil)
	if err != nil || len(found) != 4 || len(skipped) > 0 {
		t.Fatalf("%d found, skipped %v: %v", len(found), skipped, err)
	}
	if found[1].Illegal != "8 heads do not divide over 7 ranks" {
		t.Errorf("ulysses: %q", found[1].Illegal)
	}
	var seeds []strategy.Result
	for _, a := range found {
		if a.Illegal == "" {
			seeds = append(seeds, a.Result)
		}
	}
	if len(p.Seeds) != len(seeds) || len(seeds) != 3 {
		t.Fatalf("%d seeds, want %d", len(p.Seeds), len(seeds))
	}
	for i := range seeds {
		if !strategy.SameLayout(p.Seeds[i].Layout, seeds[i].Layout) || p.Seeds[i].Step == nil {
			t.Errorf("seed %d is not what was found", i)
		}
	}
}

// A strategy that time is up for is skipped if another has an answer; if none
// has, its error is the answer.
func TestLateStrategies(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("deadline of the test")
	cancel(why)
	p := world.Problem(t, "1x2 fast", 16384)
	found, skipped, err := strategy.SolveEach(ctx, p, []strategy.Strategy{baseline.Ring{}, late{}}, nil)
	if err != nil || len(found) != 1 || len(skipped) != 1 {
		t.Errorf("%d found, skipped %v: %v", len(found), skipped, err)
	}
	if _, _, err := strategy.SolveEach(ctx, p, []strategy.Strategy{late{}}, nil); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
}

// late finds nothing in time.
type late struct{}

func (late) Name() string { return "late" }

func (late) Claims() strategy.Claims { return strategy.Claims{} }

func (late) Solve(ctx context.Context, _ *strategy.Problem, _ func(strategy.Progress)) (strategy.Result, error) {
	return strategy.Result{}, context.Cause(ctx)
}

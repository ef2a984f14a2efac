package strategy_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// Once time is up a long ring is given up, the first of a mesh's layouts is not, and of
// further ones none is begun; an interruption leaves nothing to wait for but what is short.
func TestALongLayoutIsGivenUpInTheMiddle(t *testing.T) {
	world.Sequential(t)
	late, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	interrupted, cancel := context.WithCancel(context.Background())
	cancel()
	p := world.Problem(t, world.LongRing, 1<<18)
	for _, ctx := range []context.Context{late, interrupted} {
		if _, err := (baseline.Ring{}).Solve(ctx, p, nil); !errors.Is(err, ctx.Err()) {
			t.Errorf("ring: %v, want %v", err, ctx.Err())
		}
	}
	odd := world.Problem(t, "1103x1 fast", 1<<18) // no mesh but a ring, for 1103 is prime
	if res, err := (baseline.USP{}).Solve(late, odd, nil); err != nil || res.Evaluated != 1 || len(res.Layout.Groups) != 1103 {
		t.Errorf("usp, the only plan: %d layouts: %v", res.Evaluated, err)
	} else if want, err := odd.Simulate(context.Background(), res.Layout); err != nil || res.Step == nil || res.Step.Time != want.Time {
		t.Errorf("usp, the only plan, has not the account of its layout: %v", err)
	}
	if _, err := (baseline.USP{}).Solve(interrupted, odd, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("usp, interrupted: %v", err)
	}
	odd.Seeds = []strategy.Result{{Layout: world.Solve(t, world.Problem(t, "1x1 fast", 1<<10), baseline.Ring{}, nil).Layout}}
	if res, err := (baseline.USP{}).Solve(late, odd, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("usp, with a plan before it: %d layouts: %v", res.Evaluated, err)
	}
}

// hurried returns a ring without an account, and somebody presses Ctrl-C meanwhile.
type hurried struct{ press context.CancelFunc }

func (hurried) Name() string { return "hurried" }

func (hurried) Claims() strategy.Claims { return strategy.Claims{} }

func (h hurried) Solve(_ context.Context, p *strategy.Problem, _ func(strategy.Progress)) (strategy.Result, error) {
	h.press()
	return strategy.Result{Layout: p.EqualRing()}, nil
}

// Ctrl-C is heard in the account of a plan that takes long: what was found before it stays.
// That of a short one is not given up for it, and none for a deadline.
func TestAnInterruptionIsHeardInALongAccount(t *testing.T) {
	world.Sequential(t)
	ctx, press := context.WithCancel(context.Background())
	p := world.Problem(t, "750x8 fast", 1<<20) // 6000 x 6000 tasks in each of two passes
	found, skipped, err := strategy.SolveEach(ctx, p, []strategy.Strategy{baseline.Ulysses{}, baseline.USP{}, hurried{press}}, nil)
	if err != nil || len(skipped) != 1 || skipped[0] != "strategy hurried: it was interrupted" || len(found) != 2 {
		t.Errorf("%d found, skipped %q: %v", len(found), skipped, err)
	}
	short := world.Problem(t, world.LongRing, 1<<18)
	if found, skipped, err = strategy.SolveEach(ctx, short, []strategy.Strategy{hurried{press}}, nil); err != nil || len(skipped) > 0 || found[0].Step == nil {
		t.Errorf("a short one: skipped %q: %v", skipped, err)
	}
}

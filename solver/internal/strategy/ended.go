package strategy

import (
	"context"
	"errors"

	"github.com/evenkeel/evenkeel/internal/ended"
)

// WhenEnded asks whether ctx has ended, for a simulation.
func WhenEnded(ctx context.Context) func() error {
	return func() error { return ended.Why(ctx) }
}

// whenCancelled asks whether somebody has ended ctx: that its time is up is not enough.
func whenCancelled(ctx context.Context) func() error {
	return func() error {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil
		}
		return ended.Why(ctx)
	}
}

// lastQuestions is how often a simulation asks in vain once it is to end: some 20 ms each.
const lastQuestions = 50

// whenLeft asks whether somebody has ended ctx, and after that says so many times that it has
// not: what was found by then is worth an account that is all but done.
func whenLeft(ctx context.Context, times int) func() error {
	cancelled := whenCancelled(ctx)
	return func() error {
		why := cancelled()
		if why == nil {
			return nil
		}
		if times--; times >= 0 {
			return nil
		}
		return why
	}
}

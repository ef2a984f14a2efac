package profile

import (
	"context"
	"sync"
	"time"
)

// SteppedClock is the clock of a backend that computes nothing in the time it says to have
// taken: it advances by what its sleepers ask for, at once. Its zero value is not ready; use
// NewSteppedClock.
type SteppedClock struct {
	mu  sync.Mutex
	now time.Time
}

// NewSteppedClock is one that begins with 2026, so that what is recorded by it is the same
// at every run.
func NewSteppedClock() *SteppedClock {
	return &SteppedClock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// Now implements Clock.
func (c *SteppedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Sleep implements Clock; it advances also where ctx is done, for the work is.
func (c *SteppedClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return ctx.Err()
}

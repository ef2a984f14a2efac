package profile

import (
	"context"
	"sync"
	"time"
)

// SteppedClock is the clock of a backend that reports times without spending them: Sleep
// advances it at once. The zero value is not ready; use NewSteppedClock.
type SteppedClock struct {
	mu  sync.Mutex
	now time.Time
}

// NewSteppedClock returns a clock that starts at the beginning of 2026, so that
// recordings made by it are reproducible.
func NewSteppedClock() *SteppedClock {
	return &SteppedClock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// Now implements Clock.
func (c *SteppedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Sleep implements Clock. It advances the clock even if ctx is done, since the work it
// stands for is done.
func (c *SteppedClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return ctx.Err()
}

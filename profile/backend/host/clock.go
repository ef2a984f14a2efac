package host

import (
	"context"
	"time"
)

// Clock is the machine's own time, for backends that measure real work. It
// implements profile.Clock.
type Clock struct{}

// Now is the time of day, with the monotonic reading that differences use.
func (Clock) Now() time.Time { return time.Now() }

// Sleep waits for d, or returns ctx's error when that ends first.
func (Clock) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

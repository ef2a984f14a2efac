package profile

import (
	"context"
	"time"
)

// executor opens and readies the executor of a place.
func (c *calibration) executor(ctx context.Context, on, place string) (Executor, error) {
	at, start := peerKey{on, place}, c.Wall()
	ctx, limit, cancel := c.starting(ctx, at)
	defer cancel()
	if c.open[at] == nil {
		x, err := c.backend.Open(ctx, on, place)
		if err != nil {
			return nil, asOpError(cutOff(ctx, err, limit, c.Budget))
		}
		c.open[at] = x
	}
	if err := c.open[at].Ready(ctx); err != nil {
		c.drop(on, place)
		return nil, asOpError(cutOff(ctx, err, limit, c.Budget))
	}
	c.starts[at] = max(c.starts[at], c.Wall().Sub(start))
	return c.open[at], nil
}

func (c *calibration) drop(on, place string) {
	at := peerKey{on, place}
	if x, ok := c.open[at]; ok {
		_ = x.Close() // it is dead or being killed; its error was already reported
		delete(c.open, at)
	}
}

func (c *calibration) close() {
	for at := range c.open {
		c.drop(at.key, at.place)
	}
}

// starting limits the start of a worker in the place of one that was lost, by the place's
// starts before and no point's time, which begins after it; the first has the time that its
// backend gives it.
func (c *calibration) starting(ctx context.Context, at peerKey) (_ context.Context, limit time.Duration, _ context.CancelFunc) {
	before, again := c.starts[at]
	limit = max(leastPatience, c.Budget/4, slack*before)
	if !again {
		ctx, cancel := context.WithCancel(ctx)
		return ctx, limit, cancel
	}
	ctx, cancel := context.WithDeadlineCause(ctx, c.Wall().Add(limit), errCut)
	return ctx, limit, cancel
}

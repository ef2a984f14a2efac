package profile

import "context"

// executor opens and readies the executor of a place.
func (c *calibration) executor(ctx context.Context, on, place string) (Executor, error) {
	at := peerKey{on, place}
	if c.open[at] == nil {
		x, err := c.backend.Open(ctx, on, place)
		if err != nil {
			return nil, asOpError(err)
		}
		c.open[at] = x
	}
	if err := c.open[at].Ready(ctx); err != nil {
		c.drop(on, place)
		return nil, asOpError(err)
	}
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

package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Tolerance is how long after the end of a budget a visit that began within it may last: a
// worker that has hung, or is started anew in the place of a dead one, would else take its
// whole deadline, which is twice the budget that most calibrations have. The last visit of a
// sound worker is of seconds, and one that has to verify its kernel again of ten at most.
// After that nothing is waited for but the death of what was killed. Workers that are lost
// before the points are chosen may take as much once more.
func Tolerance(budget time.Duration) time.Duration { return max(20*time.Second, budget/10) }

// errCut is why a visit ended that the budget had no more time for.
var errCut = errors.New("the budget has no more time for the visit")

// limited gives a visit its time: as long as a point may take, and of what is left of the
// budget a quarter, so that one worker that hangs leaves time for the other points. No sound
// visit is near that; a tolerance is granted in any case, but not after the end. While
// spaces are piloted only half of the budget is shared out, and there is no end: on a busy
// machine all of it goes into verifying kernels.
func (c *calibration) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	grace := Tolerance(c.Budget)
	limit := max(grace, c.started.Add(c.Budget/2).Sub(c.backend.Clock().Now())/2)
	if !c.until.IsZero() {
		left := c.until.Sub(c.backend.Clock().Now())
		limit = min(left, max(grace, left/4))
	}
	if limit >= c.PointTimeout {
		return context.WithTimeout(ctx, c.PointTimeout)
	}
	return context.WithTimeoutCause(ctx, limit, errCut)
}

// starting gives the start of a worker its time: a backend knows how long that may take,
// and the budget when it must have ended.
func (c *calibration) starting(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.until.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, c.until.Sub(c.backend.Clock().Now()), errCut)
}

// cutOff makes of the error of a visit that ended with its time what became of it: the
// budget had no time for the point, which says less than that its worker hung. The point
// has its turn again where there is more time.
func (c *calibration) cutOff(ctx context.Context, err error) error {
	if err == nil || !errors.Is(context.Cause(ctx), errCut) {
		return err
	}
	return &OpError{Class: TooLong, Lost: true, Err: fmt.Errorf("its worker did not answer in the time that the budget of %s had for it, and was ended (%v)", c.Budget, asOpError(err).Err)}
}

// retry says whether a failed visit is worth a second try on a fresh worker.
func (c *calibration) retry(ctx context.Context, err error) bool {
	inTime := c.until.IsZero() || c.backend.Clock().Now().Before(c.until)
	return err != nil && ctx.Err() == nil && inTime && asOpError(err).Class.retried()
}

// pilotsEnd says whether no further space is piloted: workers were lost, and half of the
// budget is gone. What is left is for the points of the spaces that can be measured.
func (c *calibration) pilotsEnd() bool {
	return c.ended && c.backend.Clock().Now().Sub(c.started) >= c.Budget/2
}

// putOff moves the visits that a budget had no time for before to the end: a point whose
// worker hangs must not keep every run of a recording from the others.
func putOff(todo []visit, past *Past, fingerprint string) (others, cut []visit) {
	for _, v := range todo {
		if past.Cut[v.Key(fingerprint)] {
			cut = append(cut, v)
		} else {
			others = append(others, v)
		}
	}
	return slices.Clip(others), cut
}

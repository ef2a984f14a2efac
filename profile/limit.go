package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// What is waited for is one answer of a worker: to the start of it, to a shape that it has to
// prepare, to calls of it. A limit for a whole visit must leave time for the 26 s that a
// throttled GPU is let cool in, and so is two minutes; no answer comes near that, and a worker
// that gives none has hung. A limit by what is left of a budget was tried: what it cut off
// said nothing of the worker.
const (
	// patience is the part of a point's time that an answer has of which nothing is known:
	// preparing a family's first shape, for which a kernel may have to be compiled and is verified,
	// which takes ten seconds at most where it was seen; the first call; another worker's start.
	patience = 4
	// alertness is the part of that patience that an answer has at the least where others like it
	// told how long they take: 10 s in a budget of two minutes. In fourteen recordings under
	// results/evidence no call takes more than 0.8 s in such a budget, and 2.1 s in one of six.
	alertness = 3
	// slack is how many times as long as those before an answer may take, with time to spare for a
	// GPU that is throttled to a tenth of its clock or for ten ranks on one core.
	slack = 20
)

// The least of either, however short a point's time or a budget is: a busy machine starts Python
// in ten seconds.
const (
	leastPatience  = 30 * time.Second
	leastAlertness = 10 * time.Second
)

// errCut is why an answer was waited for no longer that a longer budget would have had time for.
var errCut = errors.New("the budget has no time to wait for it any longer")

// patience is how long an answer of a place's worker is waited for of which nothing is known: a
// quarter of a point's time, or of the budget if that is more, and never longer than a point: who
// asks for points of less than half a minute is told of hangs alone.
// Ranks that wait for one that does not come have to give up before, for it is them that tell
// which it was.
func (c *calibration) patience(on string) time.Duration {
	return min(c.PointTimeout, max(leastPatience, c.PointTimeout/patience, c.Budget/4, c.peersWait(on)))
}

// alert is how long an answer is waited for where those before took some time: the longest of
// all shapes of a family, with the verification of its kernel, which another worker makes again.
func (c *calibration) alert(on string, before time.Duration) time.Duration {
	return max(leastAlertness, c.patience(on)/alertness, c.peersWait(on), slack*before)
}

// afterPeers is what it takes to hear of ranks that gave up.
const afterPeers = 15 * time.Second

func (c *calibration) peersWait(on string) time.Duration {
	if c.inventory.PeersWait > 0 && slices.ContainsFunc(c.inventory.Groups, func(g op.GroupType) bool { return g.Name == on }) {
		return c.inventory.PeersWait + afterPeers
	}
	return 0
}

// patient is the executor of one visit, whose every answer has a limit of its own.
type patient struct {
	Executor
	c     *calibration
	of    law
	until time.Time     // when the point's time is over; what a throttled device took does not count
	took  time.Duration // the longest answer so far
	call  units.Seconds // of the newest calls, the longest
}

// law is what points of one family have in common.
type law struct {
	on      string
	op      op.Kind
	variant op.Variant
}

func lawOf(s Spot) law { return law{s.On, s.Op, s.Shape.Variant()} }

func (c *calibration) patient(x Executor, of Spot) *patient {
	return &patient{Executor: x, c: c, of: lawOf(of), until: c.Wall().Add(c.PointTimeout)}
}

// Prepare implements Executor.
func (x *patient) Prepare(ctx context.Context, s op.Shape, seed uint64) error {
	return x.asked(ctx, func(ctx context.Context) error { return x.Executor.Prepare(ctx, s, seed) })
}

// Run implements Executor. A batch that the hardware slowed down, and the pause after it, take
// nothing of the point's time: their number has a limit.
func (x *patient) Run(ctx context.Context, inner, n int) (b Batch, err error) {
	start := x.c.Wall()
	ask := func(ctx context.Context) error { b, err = x.Executor.Run(ctx, inner, n); return err }
	if x.call == 0 {
		err = x.asked(ctx, ask)
	} else {
		ctx, cancel := context.WithDeadline(ctx, earlier(x.until, start.Add(x.calls(inner*n))))
		defer cancel()
		err = ask(ctx)
	}
	if x.call == 0 && err == nil {
		x.c.seen[x.of] = max(x.c.seen[x.of], x.took)
	}
	if calls := b.Slowest(); len(calls) > 0 {
		x.call = slices.Max(calls)
	}
	if b.Guard.Throttled {
		x.until = x.until.Add(x.c.Wall().Sub(start) + longestPause)
	}
	return b, err
}

// calls is how long further calls of the shape are waited for.
func (x *patient) calls(n int) time.Duration {
	took := x.call * units.Seconds(n)
	if !(took < units.Seconds(x.c.PointTimeout.Seconds())) { // nor anything that is no number
		return x.c.PointTimeout
	}
	return x.c.alert(x.of.on, time.Duration(float64(took)*float64(time.Second)))
}

// asked waits for an answer whose time no calls of the shape tell, but other visits of the
// family may.
func (x *patient) asked(ctx context.Context, ask func(context.Context) error) error {
	limit, before := x.c.patience(x.of.on), x.c.seen[x.of]
	if before > 0 {
		limit = min(limit, x.c.alert(x.of.on, before))
	}
	start := x.c.Wall()
	ctx, cancel := x.wait(ctx, start.Add(limit), limit)
	defer cancel()
	err := ask(ctx)
	x.took = max(x.took, x.c.Wall().Sub(start))
	return cutOff(ctx, err, limit, x.c.Budget)
}

func (x *patient) wait(ctx context.Context, at time.Time, limit time.Duration) (context.Context, context.CancelFunc) {
	if at.Before(x.until) && limit < x.c.PointTimeout {
		return context.WithDeadlineCause(ctx, at, errCut)
	}
	return context.WithDeadline(ctx, x.until)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// cutOff makes of the error of an answer that was waited for no longer what became of it: less
// than that the worker hung.
func cutOff(ctx context.Context, err error, waited, budget time.Duration) error {
	if err == nil || !errors.Is(context.Cause(ctx), errCut) {
		return err
	}
	return &OpError{Class: Cut, Lost: true, Err: fmt.Errorf("its worker was ended after %s without an answer, for which a budget of %s has no more time (%w)", waited, budget, asOpError(err).Err)}
}

package solver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// IllegalError says that a cluster allows no layout of a strategy's kind at all, as
// opposed to one that does not fit its memory.
type IllegalError struct {
	Strategy string
	Reason   string
}

// Error names the strategy and what it lacks.
func (e *IllegalError) Error() string { return e.Strategy + ": " + e.Reason }

// contest simulates the layouts of one strategy and keeps the fastest that fits. Until
// one does, it keeps the one that is nearest to fitting.
type contest struct {
	ctx    context.Context
	p      *Problem
	name   string
	report func(Progress)

	best      Result
	time      units.Seconds // of best; 0 while nothing fits
	nearest   Result
	memErr    *MemoryError // of nearest
	evaluated int          // layouts that fit and were simulated, by this strategy or an earlier one
	all       int          // more than 0 once a layout was tried, be it that it does not fit
	stopped   bool
	must      bool // nothing but an interruption keeps it from judging
	err       error
}

func newContest(ctx context.Context, p *Problem, name string, report func(Progress)) *contest {
	p.sim.Until(whenEnded(ctx))
	return &contest{ctx: ctx, p: p, name: name, report: report}
}

// Best is the fastest layout so far, and Time its time, 0 while nothing fits.
func (c *contest) Best() Result { return c.best }

// Time is that of Best.
func (c *contest) Time() units.Seconds { return c.time }

// Evaluated is how many layouts fit and were simulated.
func (c *contest) Evaluated() int { return c.evaluated }

// Err is the error that ended the contest, if one has.
func (c *contest) Err() error { return c.err }

// late says that no time is left.
func (c *contest) late() bool { return c.ctx.Err() != nil }

// done says that nothing more is to be tried. One layout is judged even when
// time is up.
func (c *contest) done() bool {
	if c.all > 0 && c.ctx.Err() != nil {
		c.stopped = true
	}
	return c.stopped || c.err != nil
}

// try judges a layout. Memory comes first: what does not fit is not simulated.
func (c *contest) try(l costmodel.Layout, why string) {
	if c.done() {
		return
	}
	if c.needless(l) {
		c.stopped = true
		return
	}
	if !c.admit(l, why) {
		return
	}
	c.evaluated++
	r := Result{Layout: l, Why: why}
	t, known := c.p.timeKnown(l)
	if !known {
		if t, c.err = c.price(&r); c.err != nil {
			return
		}
	}
	c.take(r, t)
}

// admit says whether a layout fits. If none has so far it keeps the one that comes nearest.
func (c *contest) admit(l costmodel.Layout, why string) bool {
	c.all++
	bad := c.p.overfull(l)
	if bad != nil && (c.memErr == nil || fill(bad.Memory) < fill(c.memErr.Memory)) {
		c.nearest, c.memErr = Result{Layout: l, Why: why}, bad
	}
	return bad == nil
}

// simulate is the time of a layout that fits.
func (c *contest) simulate(l costmodel.Layout) (units.Seconds, error) {
	c.evaluated++
	return c.p.sim.Time(l)
}

// fail ends the contest with an error.
func (c *contest) fail(err error) { c.err = err }

// needless says that time is up, there is a plan, and a layout would take long to judge.
func (c *contest) needless(l costmodel.Layout) bool {
	if c.ctx.Err() == nil || len(c.p.seeds) == 0 || c.must || !costly(l) {
		return false
	}
	_, known := c.p.timeKnown(l)
	return !known
}

// price simulates a layout. While there is no plan, one that is late is better than none;
// once time is up it is the only one to come, and its account says what it takes as well.
func (c *contest) price(r *Result) (t units.Seconds, err error) {
	if !c.must && (c.time > 0 || len(c.p.seeds) > 0) {
		return c.p.sim.Time(r.Layout)
	}
	if c.ctx.Err() != nil {
		if r.Step, err = c.p.sim.Step(r.Layout, costmodel.SimOptions{Until: whenCancelled(c.ctx)}); err != nil {
			return 0, err
		}
		return r.Step.Time.Mid, nil
	}
	c.p.sim.Until(whenCancelled(c.ctx))
	defer c.p.sim.Until(whenEnded(c.ctx))
	return c.p.sim.Time(r.Layout)
}

// take enters a layout that fits and whose time is known.
func (c *contest) take(r Result, t units.Seconds) {
	c.all++
	if c.time > 0 && t >= c.time {
		return
	}
	c.best, c.time = r, t
	if c.report != nil {
		c.report(Progress{Strategy: c.name, Evaluated: c.evaluated, Best: t})
	}
}

// result is the winner with its account, or the layout that comes nearest to
// fitting with a *MemoryError, or the error that ended the contest.
func (c *contest) result() (Result, error) {
	if late := ended(c.ctx); late != nil && c.time > 0 && errors.Is(c.err, late) {
		c.stopped, c.err = true, nil // in the middle of a layout
	}
	switch {
	case c.err != nil:
		return Result{}, c.err
	case c.all == 0 && c.ctx.Err() == nil:
		return Result{}, &IllegalError{c.name, "no layout of the kind exists on this cluster"}
	case c.time == 0 && (c.stopped || c.all == 0):
		return Result{}, fmt.Errorf("stopped before a layout that fits was found: %w", context.Cause(c.ctx))
	}
	r := c.best
	if c.time == 0 {
		r = c.nearest
	}
	r.Evaluated, r.Stopped = c.evaluated, c.stopped
	if err := c.p.account(c.ctx, &r); err != nil {
		return Result{}, err
	}
	if c.time == 0 {
		return r, c.memErr
	}
	return r, nil
}

// timeKnown is the time of a layout that a strategy before this one returned.
func (p *Problem) timeKnown(l costmodel.Layout) (units.Seconds, bool) {
	r := p.seedLike(l)
	if r == nil || r.Step == nil {
		return 0, false
	}
	return r.Step.Time.Mid, true
}

// seedLike is the result of an earlier strategy with this layout, or nil.
func (p *Problem) seedLike(l costmodel.Layout) *Result {
	at := slices.IndexFunc(p.seeds, func(r Result) bool { return sameLayout(r.Layout, l) })
	if at < 0 {
		return nil
	}
	return &p.seeds[at]
}

func sameLayout(a, b costmodel.Layout) bool {
	group := func(a, b costmodel.Group) bool { return slices.Equal(a, b) }
	shard := func(a, b costmodel.Shard) bool { return slices.Equal(a.Segments, b.Segments) }
	return a.OwnLast == b.OwnLast && a.KeepTail == b.KeepTail && a.HeadChunks == b.HeadChunks && a.TwoBatch == b.TwoBatch && slices.EqualFunc(a.Groups, b.Groups, group) && slices.EqualFunc(a.Shards, b.Shards, shard)
}

// costlySteps is how many steps of a rank make a simulation costly: some
// milliseconds. A mesh of 256 ranks or fewer never has as many.
const costlySteps = 200_000

// costly says whether simulating a layout is worth a look at the model first.
func costly(l costmodel.Layout) bool {
	seats := 0
	for _, g := range l.Groups {
		seats += len(g)
	}
	return seats*len(l.Groups) > costlySteps
}

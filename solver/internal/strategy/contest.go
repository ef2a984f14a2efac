package strategy

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/ended"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Contest simulates the layouts of one strategy and keeps the fastest that fits. Until
// one does, it keeps the one that is nearest to fitting.
type Contest struct {
	ctx    context.Context
	p      *Problem
	name   string
	report func(Progress)

	best      Result
	time      units.Seconds // of best; 0 while nothing fits
	nearest   Result
	memErr    *MemoryError // of nearest
	evaluated int          // layouts that fit and were simulated, by this strategy or an earlier one
	tried     bool         // a layout, be it that it does not fit
	stopped   bool
	must      bool // see Insist
	err       error
}

// NewContest is a contest of the strategy of a name. From then on simulations of p end with ctx.
func NewContest(ctx context.Context, p *Problem, name string, report func(Progress)) *Contest {
	p.Sim.Until(WhenEnded(ctx))
	return &Contest{ctx: ctx, p: p, name: name, report: report}
}

// Best is the fastest layout so far.
func (c *Contest) Best() Result { return c.best }

// Time is that of Best, 0 while nothing fits.
func (c *Contest) Time() units.Seconds { return c.time }

// Evaluated is how many layouts fit and were simulated.
func (c *Contest) Evaluated() int { return c.evaluated }

// Err is the error that ended the contest, if one has.
func (c *Contest) Err() error { return c.err }

// Late says that no time is left.
func (c *Contest) Late() bool { return c.ctx.Err() != nil }

// Done says that nothing more is to be tried. One layout is judged even when
// time is up.
func (c *Contest) Done() bool {
	if c.tried && c.ctx.Err() != nil {
		c.stopped = true
	}
	return c.stopped || c.err != nil
}

// Try judges a layout, and returns how long it takes. Memory comes first: what does not fit is not
// simulated, and takes 0.
func (c *Contest) Try(l costmodel.Layout, why string) units.Seconds {
	return c.TryUnder(l, why, units.Seconds(math.Inf(1)))
}

// TryUnder is Try of a layout that is worth taking only below so many seconds.
func (c *Contest) TryUnder(l costmodel.Layout, why string, limit units.Seconds) units.Seconds {
	if c.Done() {
		return 0
	}
	if c.needless(l) {
		c.stopped = true
		return 0
	}
	if !c.Admit(l, why) {
		return 0
	}
	c.evaluated++
	r := Result{Layout: l, Why: why}
	t, known := c.p.TimeKnown(l)
	if !known {
		if t, c.err = c.price(&r); c.err != nil {
			return 0
		}
	}
	if t < limit {
		c.Take(r, t)
	}
	return t
}

// Admit says whether a layout fits. If none has so far it keeps the one that comes nearest.
func (c *Contest) Admit(l costmodel.Layout, why string) bool {
	c.tried = true
	bad := c.p.Overfull(l)
	if bad != nil && (c.memErr == nil || Fill(bad.Memory) < Fill(c.memErr.Memory)) {
		c.nearest, c.memErr = Result{Layout: l, Why: why}, bad
	}
	return bad == nil
}

// Simulate is the time of a layout that fits.
func (c *Contest) Simulate(l costmodel.Layout) (units.Seconds, error) {
	c.evaluated++
	return c.p.Sim.Time(l)
}

// Insist has a layout judged whatever the time: nothing but an interruption keeps it from that.
func (c *Contest) Insist() { c.must = true }

// Fail ends the contest with an error.
func (c *Contest) Fail(err error) { c.err = err }

// needless says that time is up, there is a plan, and a layout would take long to judge.
func (c *Contest) needless(l costmodel.Layout) bool {
	if c.ctx.Err() == nil || len(c.p.Seeds) == 0 || c.must || !Costly(l) {
		return false
	}
	_, known := c.p.TimeKnown(l)
	return !known
}

// price simulates a layout. While there is no plan, one that is late is better than none;
// once time is up it is the only one to come, and its account says what it takes as well.
func (c *Contest) price(r *Result) (t units.Seconds, err error) {
	if !c.must && (c.time > 0 || len(c.p.Seeds) > 0) {
		return c.p.Sim.Time(r.Layout)
	}
	if c.ctx.Err() != nil {
		if r.Step, err = c.p.Sim.Step(r.Layout, costmodel.SimOptions{Until: whenCancelled(c.ctx)}); err != nil {
			return 0, err
		}
		return r.Step.Time.Mid, nil
	}
	c.p.Sim.Until(whenCancelled(c.ctx))
	defer c.p.Sim.Until(WhenEnded(c.ctx))
	return c.p.Sim.Time(r.Layout)
}

// Take enters a layout that fits and whose time is known.
func (c *Contest) Take(r Result, t units.Seconds) {
	c.tried = true
	if c.time > 0 && t >= c.time {
		return
	}
	c.best, c.time = r, t
	if c.report != nil {
		c.report(Progress{Strategy: c.name, Evaluated: c.evaluated, Best: t})
	}
}

// Result is the winner with its account, or the layout that comes nearest to
// fitting with a *MemoryError, or the error that ended the contest.
func (c *Contest) Result() (Result, error) {
	if c.ctx.Err() != nil && c.time > 0 && errors.Is(c.err, context.Cause(c.ctx)) {
		c.stopped, c.err = true, nil // in the middle of a layout
	}
	switch {
	case c.err != nil:
		return Result{}, c.err
	case !c.tried && c.ctx.Err() == nil:
		return Result{}, Illegal(c.name, "no layout of the kind exists on this cluster")
	case c.time == 0 && (c.stopped || !c.tried):
		return Result{}, fmt.Errorf("stopped before a layout that fits was found: %w", ended.Why(c.ctx))
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

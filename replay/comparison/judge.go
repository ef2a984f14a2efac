package comparison

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// judge holds the report to limits.
func (c *making) judge(l fit.ReplayLimits) {
	for i := range c.report.Plans {
		x := &c.report.Plans[i]
		c.check(Check{Name: fmt.Sprintf("plan %d: step", i), Value: math.Abs(x.Log), Limit: l.Step}, c.meaningless(), "")
		open := ""
		if x.Stretches == 0 {
			open = "no stretch of computing is both predicted and recorded"
		}
		c.check(Check{Name: fmt.Sprintf("plan %d: compute", i), Value: x.ComputeError, Limit: l.Compute}, "", open)
	}
	if r := c.report.Ranking; r != nil {
		c.judgeOrder(r, l.TauB)
		c.check(Check{Name: "ranking: regret", Value: r.RegretUpper, Limit: l.Regret}, c.meaningless(), r.unsure(l.Regret))
	}
}

// meaningless says why times of whole steps are not judged, if they are not.
func (c *making) meaningless() string {
	if c.rec.Header.Mode == replay.ModeOneGPU {
		return "ranks shared one GPU in turns"
	}
	return ""
}

// judgeOrder holds tau_b to the least it may be.
func (c *making) judgeOrder(r *Ranking, least float64) {
	open := ""
	if !r.ordered {
		open = "measuring cannot tell the plans apart"
	}
	k := Check{Name: "ranking: tau_b", Value: r.TauB, Limit: least}
	if k.Verdict, k.Why = c.verdict(r.TauB >= least, c.meaningless(), open); k.Verdict == fit.Fail {
		k.Why = fmt.Sprintf("%.2f, want at least %.2f", r.TauB, least)
	}
	c.report.Verdicts = append(c.report.Verdicts, k)
}

// unsure says why a bound of the regret above a limit is no failure yet, while
// the regret itself is below: the machine is too noisy for so few blocks.
func (r *Ranking) unsure(limit float64) string {
	switch {
	case r.RegretUpper <= limit || r.Regret > limit || r.Unsplit > limit || r.Blocks >= blocksFor(r.Noise):
		return ""
	case r.Noise > noisy:
		return fmt.Sprintf("a plan varies by %s between blocks: the machine is too noisy to bound the regret", units.Percent(r.Noise))
	}
	return fmt.Sprintf("a plan varies by %s between blocks, for which %d are too few; replay with --repeats %d", units.Percent(r.Noise), r.Blocks, manyBlocks)
}

// The noise up to which regret can be told from few and from many blocks, by
// simulation.
const (
	quiet      = 0.01
	noisy      = 0.03
	manyBlocks = 16
)

// blocksFor is how many blocks regret needs at a noise.
func blocksFor(noise float64) int {
	switch {
	case noise <= quiet:
		return stats.LeastBlocks
	case noise <= noisy:
		return manyBlocks
	}
	return math.MaxInt
}

// check holds a value to the most it may be. meaningless and open are reasons why
// it is not judged: because its times mean nothing, or not yet.
func (c *making) check(k Check, meaningless, open string) {
	if k.Verdict, k.Why = c.verdict(k.Value <= k.Limit, meaningless, open); k.Verdict == fit.Fail {
		k.Why = fmt.Sprintf("%s, want at most %s", units.Percent(k.Value), units.Percent(k.Limit))
	}
	c.report.Verdicts = append(c.report.Verdicts, k)
}

func (c *making) verdict(holds bool, meaningless, open string) (v fit.Verdict, why string) {
	switch {
	case c.rec.Header.Oversubscribed:
		return fit.Ungated, "more threads than cores"
	case meaningless != "":
		return fit.Ungated, meaningless
	case c.report.Blocks < stats.LeastBlocks:
		return fit.Insufficient, fmt.Sprintf("%d blocks, a verdict needs %d; replay with --repeats 10", c.report.Blocks, stats.LeastBlocks)
	case open != "":
		return fit.Insufficient, open
	case !holds:
		return fit.Fail, ""
	}
	return fit.Pass, ""
}

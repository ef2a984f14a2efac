package comparison

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// seed and replicates of the bootstraps; the same trace gives the same report.
const (
	seed       = 1
	replicates = 2000
)

// making is a report in the making.
type making struct {
	rec        *Recording
	simulators []*costmodel.Simulator // by plan
	predicted  []*costmodel.Replayed  // by plan
	report     *Report
}

// New compares a recording with what a profile predicts for it.
//
// Errors: packed documents, which no prediction knows; a device type that the
// profile lacks; a missing law as *costmodel.MissingLawError.
func New(rec *Recording, p *costmodel.Profile, limits *fit.LimitsFile) (*Report, error) {
	c, err := newComparison(rec, p)
	if err != nil {
		return nil, err
	}
	h := rec.Header
	c.report = &Report{
		Simulated: p.Simulated, Mode: h.Mode, Parts: h.Parts, Layers: h.Layers, Blocks: h.Repeats,
		Limits: limits.Revision, Oversubscribed: h.Oversubscribed, Warnings: c.warnings(),
	}
	for plan := range h.Plans {
		x, err := c.plan(plan)
		if err != nil {
			return nil, fmt.Errorf("plan %d (%s): %w", plan, h.Plans[plan].Path, err)
		}
		c.report.Plans = append(c.report.Plans, *x)
	}
	c.among()
	c.judge(limits.Replayed())
	return c.report, nil
}

func newComparison(rec *Recording, p *costmodel.Profile) (*making, error) {
	if n := len(rec.Header.Docs); n > 1 {
		return nil, fmt.Errorf("docs_tokens: %d documents: predictions are of one causal sequence, so their times cannot be compared; replay the plans without --docs", n)
	}
	c := &making{rec: rec}
	for i, x := range rec.Header.Plans {
		if x.Batch {
			return nil, fmt.Errorf("plan %d (%s): batch: true: predictions are of plans of one sequence; it has %d micro-batches of groups", i, x.Path, x.Micro)
		}
		s, err := costmodel.NewSimulator(costmodel.NewPredictor(p), x.Job)
		if err != nil {
			return nil, fmt.Errorf("plan %d (%s): %w", i, x.Path, err)
		}
		r, err := s.Replayed(x.Layout, rec.Header.Layers, c.attentionOnly())
		if err != nil {
			return nil, fmt.Errorf("plan %d (%s): %w", i, x.Path, err)
		}
		c.simulators, c.predicted = append(c.simulators, s), append(c.predicted, r)
	}
	return c, nil
}

func (c *making) attentionOnly() bool { return c.rec.Header.Parts == replay.PartsAttention }

func (c *making) warnings() []string {
	var out []string
	for i, x := range c.rec.Header.Plans {
		for r, rank := range x.Job.Cluster.Ranks() {
			if ran := c.rec.Header.Ranks[r].Device; ran != rank.Device {
				out = append(out, fmt.Sprintf("plan %d: rank %d ran on %s and is predicted as %s", i, r, ran, rank.Device))
			}
		}
	}
	if c.rec.Header.Oversubscribed {
		out = append(out, "the ranks had more threads than the host has cores: the times mean nothing and are not judged")
	}
	if c.rec.Header.Mode == replay.ModeOneGPU {
		out = append(out, "the ranks shared one GPU in turns: only their computing is judged")
	}
	return append(out, "of a step only transformer layers are run: no embedding, loss, exchange of gradients or optimizer")
}

// plan compares one.
func (c *making) plan(i int) (*Plan, error) {
	run, p := c.rec.Header.Plans[i], c.predicted[i]
	steps := c.rec.steps(i)
	x := &Plan{
		Plan: i, Path: run.Path, Strategy: run.Strategy, Predicted: p.Step, Meeting: p.Meeting,
		Measured: measuredOf(steps), Steps: steps, Ranks: c.ranks(i),
	}
	if slices.Min(steps) <= 0 {
		return nil, fmt.Errorf("a step took no time: make the trace again: evenkeel replay")
	}
	x.Log = math.Log(float64(p.Step.Mid / x.Measured.Median))
	x.Upper = upperError(float64(p.Step.Mid), steps)
	x.Inside = p.Step.Lo <= x.Measured.Median && x.Measured.Median <= p.Step.Hi
	pairs := join(p, c.rec.runs[i])
	x.Classes, x.RankClasses = classes(pairs, false), classes(pairs, true)
	x.ComputeError, x.Stretches = computeError(pairs)
	if missing := unrecorded(pairs); missing != "" {
		c.report.Warnings = append(c.report.Warnings, fmt.Sprintf("plan %d: predicted, but not in the trace: %s", i, missing))
	}
	return x, c.explain(i, x)
}

// upperError bounds |log(predicted / median)| over samples of the blocks.
func upperError(predicted float64, steps []float64) float64 {
	return stats.UpperBound(stats.Bootstrap(steps, func(s []float64) float64 {
		return math.Abs(math.Log(predicted / stats.Median(s)))
	}, replicates, seed), 0.95)
}

// explain finds where a plan's difference comes from, in the block or blocks in
// the middle.
func (c *making) explain(i int, x *Plan) error {
	var predicted, measured account
	middle := c.rec.middle(i)
	share := 1 / units.Seconds(len(middle))
	for k, block := range middle {
		r := &c.rec.runs[i][block]
		_, critical := r.step()
		skew, err := c.skewOf(i, r, critical)
		if err != nil {
			return err
		}
		if k == 0 {
			x.Critical = critical
		}
		predicted = predicted.plus(predictedAccount(c.predicted[i], critical), share)
		measured = measured.plus(measuredAccount(r, critical, skew), share)
	}
	x.Difference = x.Measured.Median - x.Predicted.Mid
	x.Parts, x.Compute = parts(predicted, measured), computeParts(predicted, measured)
	return nil
}

// unrecorded names the ops of which a trace has nothing where there should be
// something.
func unrecorded(pairs []Pair) string {
	predicted, recorded := map[string]bool{}, map[string]bool{}
	var names []string
	for _, p := range pairs {
		name := fmt.Sprintf("%s %s", p.Op, p.Dir)
		if p.Predicted > 0 && !predicted[name] {
			predicted[name], names = true, append(names, name)
		}
		recorded[name] = recorded[name] || p.recorded
	}
	return strings.Join(slices.DeleteFunc(names, func(n string) bool { return recorded[n] }), ", ")
}

// ranks are the sums of every rank of a plan.
func (c *making) ranks(plan int) []RankSum {
	p, runs := c.predicted[plan], c.rec.runs[plan]
	var all []RankSum
	for r, rank := range c.rec.Header.Ranks {
		var took, computed, waited, gaps []float64
		for b := range runs {
			a := measuredAccount(&runs[b], r, 0)
			took, computed = append(took, float64(runs[b].took[r])), append(computed, float64(a.compute()))
			waited, gaps = append(waited, float64(a.communication)), append(gaps, float64(a.gaps))
		}
		median := func(x []float64) units.Seconds { return units.Seconds(stats.Median(x)) }
		all = append(all, RankSum{
			Rank: r, Device: rank.Device, Predicted: p.Ranks[r].End, Measured: median(took),
			Computes: p.Ranks[r].Compute, Computed: median(computed),
			Waits: p.Ranks[r].Exposed + p.Ranks[r].Skew, Waited: median(waited), Gaps: median(gaps),
		})
	}
	return all
}

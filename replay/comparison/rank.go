package comparison

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// leastRanked is the least number of plans that are ranked.
const leastRanked = 3

// tieBand: plans whose centres differ by less are ties if their intervals meet.
const tieBand = 0.02

// among compares the plans of one problem with one another.
func (c *making) among() {
	plans := c.report.Plans
	if len(plans) < 2 {
		return
	}
	if !c.oneProblem() {
		c.report.Warnings = append(c.report.Warnings, "the plans are of different problems: no ranking, no gains")
		return
	}
	for i := 1; i < len(plans); i++ {
		c.report.Gains = append(c.report.Gains, gain(&plans[0], &plans[i]))
	}
	if len(plans) >= leastRanked {
		c.report.Ranking = rank(plans)
	}
}

// oneProblem says whether all plans train the same sequences of as many layers of the same
// model, or the same tasks.
func (c *making) oneProblem() bool {
	h := c.rec.Header
	first := problemOf(h, 0)
	for i := range h.Plans {
		if !first.same(problemOf(h, i)) {
			return false
		}
	}
	return true
}

// problem is what a plan trains, and how many layers of it are run.
type problem struct {
	model     costmodel.Model
	layers    int
	dtype     string
	recompute costmodel.Recompute // empty of plans of batches and pipelines, which choose
	lengths   []units.Tokens      // of the sequences, rising
	modules   []multitask.Module  // of tasks
}

func problemOf(h *replay.Header, plan int) problem {
	x := &h.Plans[plan]
	if x.Pipeline != nil {
		return problem{model: *x.Model, layers: x.Of(h), dtype: string(x.DType), lengths: slices.Sorted(slices.Values(x.Pipeline.Lengths))}
	}
	if t := x.Tasks; t != nil {
		return problem{dtype: string(t.DType), recompute: t.Recompute, modules: t.Modules}
	}
	if !x.Batch {
		p := problem{model: x.Job.Model, layers: x.Of(h), dtype: string(x.Job.DType), recompute: x.Job.Recompute, lengths: slices.Sorted(slices.Values(h.Docs))}
		if len(p.lengths) == 0 {
			p.lengths = []units.Tokens{x.Job.SeqLen}
		}
		return p
	}
	p := problem{model: *x.Model, layers: x.Of(h), dtype: string(x.DType)}
	for _, side := range x.Groups {
		for _, g := range side {
			p.lengths = append(p.lengths, g.Docs...)
		}
	}
	slices.Sort(p.lengths)
	return p
}

func (p problem) same(o problem) bool {
	recompute := p.recompute == o.recompute || p.recompute == "" || o.recompute == ""
	alike := p.model == o.model && p.layers == o.layers && p.dtype == o.dtype && slices.Equal(p.lengths, o.lengths)
	return recompute && alike && slices.EqualFunc(p.modules, o.modules, multitask.Module.Same)
}

// rank compares the order of plans by prediction with that by measurement.
func rank(plans []Plan) *Ranking {
	var predicted, measured []float64
	for i := range plans {
		predicted, measured = append(predicted, float64(plans[i].Predicted.Mid)), append(measured, float64(plans[i].Measured.Median))
	}
	r := &Ranking{Plans: len(plans), Blocks: len(plans[0].Steps), Chosen: least(predicted), Best: least(measured)}
	tau, pairs := stats.KendallTauB(predicted, measured, func(i, j int) bool { return tied(plans[i].Measured, plans[j].Measured) })
	r.Pairs, r.Ties = pairs, len(plans)*(len(plans)-1)/2-pairs
	if r.Blocks < stats.LeastBlocks {
		return r
	}
	if r.ordered = !math.IsNaN(tau); r.ordered {
		r.TauB = tau
	}
	g := stats.Regret(blocksOf(plans), r.Chosen, seed)
	r.Regret, r.RegretUpper = math.Expm1(g.Split), math.Expm1(g.SplitUpper)
	r.Unsplit, r.UnsplitUpper, r.Noise = math.Expm1(g.Unsplit), math.Expm1(g.UnsplitUpper), g.Noise
	return r
}

// tied: measuring cannot tell two plans apart, if their intervals from the least
// to the third quartile meet and their medians are close.
func tied(a, b Measured) bool {
	near := math.Abs(float64(a.Median-b.Median)) < tieBand*float64(min(a.Median, b.Median))
	return near && a.Least <= b.Q3 && b.Least <= a.Q3
}

func least(x []float64) int {
	best := 0
	for i, v := range x {
		if v < x[best] {
			best = i
		}
	}
	return best
}

// blocksOf are the steps of all plans, block by block.
func blocksOf(plans []Plan) [][]float64 {
	blocks := make([][]float64, len(plans[0].Steps))
	for i := range plans {
		for b, t := range plans[i].Steps {
			blocks[b] = append(blocks[b], t)
		}
	}
	return blocks
}

// gain is what plan a saves over plan b. Both of a block were measured one after
// the other, so their ratio leaves out what the block's plans have in common.
func gain(a, b *Plan) Gain {
	saved := make([]float64, len(a.Steps))
	for i, t := range a.Steps {
		saved[i] = 1 - t/b.Steps[i]
	}
	g := Gain{Over: b.Plan, Predicted: 1 - float64(a.Predicted.Mid/b.Predicted.Mid), Measured: stats.Median(saved)}
	interval := stats.BootstrapInterval(stats.Bootstrap(saved, stats.Median, replicates, seed), 0.95)
	if g.Lo, g.Hi = interval.Lo, interval.Hi; g.Predicted > 0 {
		g.Share = g.Measured / g.Predicted
	}
	return g
}

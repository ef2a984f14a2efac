package comparison

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
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
	rec       *Recording
	profile   *costmodel.Profile
	predictor *costmodel.Predictor
	links     Links
	courses   []*course // by plan
	report    *Report
}

// New compares a recording with what a profile predicts for it.
//
// Errors: a device type that the profile lacks; a link class that is open; a
// missing law as *costmodel.MissingLawError; spans of another plan.
func New(rec *Recording, p *costmodel.Profile, limits *fit.Limits, links Links) (*Report, error) {
	c, err := newComparison(rec, p, links)
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

func newComparison(rec *Recording, p *costmodel.Profile, links Links) (*making, error) {
	// Of training steps, if the profile has their ratios: a replay's layers follow one another too.
	c := &making{rec: rec, profile: p, predictor: costmodel.NewPredictor(p), links: links}
	for i, x := range rec.Header.Plans {
		k, err := c.courseOf(i)
		if err != nil {
			return nil, fmt.Errorf("plan %d (%s): %w", i, x.Path, err)
		}
		c.courses = append(c.courses, k)
		if err := c.matches(i); err != nil {
			return nil, fmt.Errorf("plan %d (%s): %w", i, x.Path, err)
		}
	}
	return c, nil
}

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
	out = append(out, c.packedWarnings()...)
	if c.updates() {
		return append(out, c.updateWarnings()...)
	}
	if c.loses() {
		return append(out, "of a step only transformer layers and the loss are run: no embedding, exchange of gradients or optimizer")
	}
	if isTasks := func(x replay.PlanRun) bool { return x.Tasks != nil }; slices.ContainsFunc(c.rec.Header.Plans, isTasks) {
		return append(out, c.tasksWarnings()...) // a run has plans of tasks or none
	}
	return append(out, "of a step only transformer layers are run: no embedding, loss, exchange of gradients or optimizer")
}

// tasksWarnings are those of plans of tasks.
func (c *making) tasksWarnings() []string {
	var out []string
	plans := c.rec.Header.Plans
	if slices.ContainsFunc(plans, func(x replay.PlanRun) bool { return sideBySide(x.Tasks) }) {
		out = append(out, "runs side by side are predicted as if each were alone, and so are messages and exchanges of gradients: that they share memory and network is in no prediction")
	}
	if slices.ContainsFunc(plans, func(x replay.PlanRun) bool { return x.Tasks.Waves }) {
		out = append(out, "waves are not run: a run of the next one begins when its ranks are free and what it needs is there, and so it is predicted")
	}
	for i, n := range c.rec.Header.Numerics {
		if n.Exchange != nil && n.Exchange.DType != plans[i].DType {
			out = append(out, fmt.Sprintf("plan %d: gradients travelled in %s, for the library does not add up %s, and are predicted in that", i, n.Exchange.DType, plans[i].DType))
		}
	}
	return append(out,
		"results are added to what modules are given, and a layer's gradients put into one piece, between the stretches: both are in no prediction",
		"of a step only transformer layers and the exchange of their gradients are run: no embedding, loss or optimizer")
}

// updateWarnings are those of whole steps.
func (c *making) updateWarnings() []string {
	var out []string
	plans, several := c.rec.Header.Plans, func(x replay.PlanRun) bool { return x.Job.Accumulate > 1 } // none of a batch
	if slices.ContainsFunc(plans, several) {
		out = append(out, "one micro-batch of a step is run, and so it is predicted; a plan's price has all of them")
	}
	gathers, whole, wider := false, false, ""
	for i := range plans {
		x := c.rec.Header.Numerics[i].Exchange
		if x == nil {
			continue
		}
		zero, dtype := plans[i].Stage()
		gathers = gathers || zero == costmodel.Zero3
		whole = whole || x.Whole() && zero != costmodel.Zero0
		if x.DType != dtype {
			wider = fmt.Sprintf("gradients travelled in %s, for the library does not add up %s, and so it is predicted; a plan's price has them in %[2]s", x.DType, dtype)
		}
	}
	if gathers {
		out = append(out, "parameters in no layer are gathered once in a micro-batch of zero3, as trainers do, and so it is predicted; a plan's price has it in either pass")
	}
	if wider != "" {
		out = append(out, wider)
	}
	if whole {
		out = append(out, "gradients were added up by all_reduce where the optimizer is sharded, for the library has no reduce_scatter, and so it is predicted; a plan's price has half of that")
	}
	if slices.ContainsFunc(plans, func(x replay.PlanRun) bool { return x.Batch && x.Micro > 1 }) {
		out = append(out, "adding a micro-batch's gradients to those before it, and the meeting behind it by itself, are in no prediction")
	}
	return append(out, "looking tokens up, putting gradients into one piece, adding those of the loss up and converting gradients and parameters for the optimizer are in no prediction")
}

// packedWarnings are those of plans of batches, of pipelines and of packed documents.
func (c *making) packedWarnings() []string {
	var out []string
	packed, beside := len(c.rec.Header.Docs) > 1, false
	for _, x := range c.rec.Header.Plans {
		for _, side := range x.Groups {
			beside = beside || len(side) > 1
			packed = packed || slices.ContainsFunc(side, func(g replay.GroupRun) bool { return len(g.Docs) > 1 })
		}
	}
	if packed {
		out = append(out, "of packed documents replay computes the blocks of each in calls of their own, and so it is predicted; a plan of batches is priced with calls for all of them together")
	}
	if slices.ContainsFunc(c.rec.Header.Plans, severalInAChunk) {
		out = append(out, "of a pipeline's chunk replay computes each sequence in a call of its own, and so it is predicted; a plan of a pipeline is priced with calls for all of them together")
	}
	if beside {
		out = append(out, "groups side by side are predicted as if each were alone: that they share memory and network is in no prediction")
	}
	return out
}

// severalInAChunk says whether a plan has a pipeline that computes sequences together.
func severalInAChunk(x replay.PlanRun) bool {
	return x.Pipeline != nil && slices.ContainsFunc(x.Pipeline.Chunks, func(k pipeline.Chunk) bool {
		return len(k.Whole) > 1 || k.Slice > 0 && len(k.Whole) > 0
	})
}

// plan compares one.
func (c *making) plan(i int) (*Plan, error) {
	run, p := c.rec.Header.Plans[i], c.courses[i]
	steps := c.rec.steps(i)
	x := &Plan{
		Plan: i, Path: run.Path, Strategy: run.Strategy, Batch: run.Batch, Pipeline: run.Pipeline != nil, Runs: runsOf(&run), Layers: run.Of(c.rec.Header), Micro: run.Micro, Predicted: p.step, Meeting: p.meeting,
		Measured: measuredOf(steps), Steps: steps, Ranks: c.ranks(i),
	}
	if slices.Min(steps) <= 0 {
		return nil, fmt.Errorf("a step took no time: make the trace again: evenkeel replay")
	}
	x.Log = math.Log(float64(p.step.Mid / x.Measured.Median))
	x.Upper = upperError(float64(p.step.Mid), steps)
	x.Inside = p.step.Lo <= x.Measured.Median && x.Measured.Median <= p.step.Hi
	pairs := join(p.tasks, c.rec.runs[i])
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
		p, m, critical, err := c.path(i, &c.rec.runs[i][block])
		if err != nil {
			return err
		}
		if k == 0 {
			x.Critical = critical
		}
		predicted, measured = predicted.plus(p, share), measured.plus(m, share)
	}
	x.Difference = x.Measured.Median - x.Predicted.Mid
	x.Parts, x.Compute = parts(predicted, measured), computeParts(predicted, measured, c.updates())
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
	p, runs := c.courses[plan], c.rec.runs[plan]
	var all []RankSum
	for r, rank := range c.rec.Header.Ranks {
		var took, computed, waited, gaps []float64
		for b := range runs {
			x := runs[b].spent(r)
			took, computed = append(took, float64(x.took)), append(computed, float64(x.computed))
			waited, gaps = append(waited, float64(x.waited)), append(gaps, float64(x.took-x.computed-x.waited))
		}
		median := func(x []float64) units.Seconds { return units.Seconds(stats.Median(x)) }
		end, computes := p.until(r)
		waits := end - computes
		if waits < rounding*end {
			waits = 0
		}
		all = append(all, RankSum{
			Rank: r, Device: rank.Device, Predicted: end, Measured: median(took),
			Computes: computes, Computed: median(computed),
			Waits: waits, Waited: median(waited), Gaps: median(gaps),
		})
	}
	return all
}

// rounding is what sums of the same times in another order may differ by.
const rounding = 1e-12

// spent is what a rank did until its own end.
type spent struct{ took, computed, waited units.Seconds }

func (r *run) spent(rank int) spent {
	var x spent
	for m := range r.laps {
		l := &r.laps[m][rank]
		a := l.account(0)
		x.computed, x.waited = x.computed+a.compute(), x.waited+a.communication
		if m == len(r.laps)-1 {
			x.took = l.start + l.took
			break
		}
		x.waited += l.meet
	}
	return x
}

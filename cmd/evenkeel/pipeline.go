package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/ended"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/evenkeel/evenkeel/solver/pipeline"
	"github.com/spf13/cobra"
)

// staged is what the flags of solve say of a pipeline.
type staged struct {
	on       bool
	stages   int
	stagesOf string
}

func (s *staged) flags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&s.on, "pipeline", false, "of --lengths: plan the batch as a pipeline, the model's layers on stages of devices and the sequences through them in chunks, instead of groups side by side")
	f.IntVar(&s.stages, "stages", 0, "of --pipeline: how many stages plans have (default: every number is tried)")
	f.StringVar(&s.stagesOf, "stages-of", "", "of --pipeline: an earlier plan, of another batch, whose stages this one's plan has, ranks and layers")
}

// named refuses a pipeline without devices or a model.
func (o problem) named(verb string) error {
	for _, f := range [][2]string{{"--cluster", o.cluster}, {"--model", o.model}} {
		if f[1] == "" {
			return usagef("%s: %s is missing (see: evenkeel %s --help)", verb, f[0], verb)
		}
	}
	return nil
}

// pipelineFlags are those that mean nothing without --pipeline, but itself.
func pipelineFlags() []string { return []string{"stages", "stages-of"} }

// idlePipeline refuses the flags of other ways of planning beside --pipeline.
func (o problem) idlePipeline(c *cobra.Command) error {
	ofOneSequence := slices.DeleteFunc(oneSequenceFlags(), func(f string) bool { return f == "timeline" })
	for _, x := range []idleFlags{
		{ofOneSequence, "means nothing for a batch of --lengths: leave it out"},
		{[]string{"costs"}, "has prices of groups side by side, and those of stages are of laws alone: leave out --costs or --pipeline"},
		{costFlags(), "is of --costs, which does not go with --pipeline: leave it out"},
		{[]string{"recompute"}, "with --pipeline the planner decides, chunk by chunk, how many layers are computed again: leave it out"},
		{[]string{"ring-buffers"}, "the devices of a stage share chunks by an all-to-all over heads, not by a ring: leave it out"},
		{[]string{"fast"}, "leaves out flexsp, which plans no pipeline: leave it out; --mip-time and --deadline shorten the search for one"},
	} {
		if err := refuse(c, x.flags, x.why); err != nil {
			return err
		}
	}
	if o.staged.stages < 0 {
		return usagef("--stages %d: want 1 at least, or 0 for every number to be tried", o.staged.stages)
	}
	return nil
}

// runPipeline plans a batch of unequal sequences as a pipeline.
func (a *app) runPipeline(ctx context.Context, o problem) error {
	if err := pipeline.Named(o.take); err != nil {
		return usagef("--take: %w", err)
	}
	if err := o.named("solve"); err != nil {
		return err
	}
	if o.deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = ended.After(ctx, o.deadline, "--deadline")
		defer cancel()
	}
	earlier, err := o.staged.earlier()
	if err != nil {
		return err
	}
	of, err := o.sequences.batch(a)
	if err != nil {
		return err
	}
	prices, err := a.stagePrices(o, of.lengths)
	if err != nil {
		return err
	}
	begin := time.Now()
	clock := func() units.Seconds { return units.Seconds(time.Since(begin).Seconds()) }
	p := o.pipelineOf(prices)
	read := append([]string{o.model}, o.sequences.files()...)
	if earlier != nil {
		if err := o.staged.onto(p, earlier, "for stages of this batch's own"); err != nil {
			return err
		}
		read = append(read, o.staged.stagesOf)
	}
	d, err := pipeline.Solve(ctx, p, o.take, clock, func(strategy string) { a.note("%s ...", strategy) })
	if err != nil {
		return o.pipelineError(err, func() string { return o.lessFreeHelps(ctx, a.hasPipeline(of.lengths, earlier)) })
	}
	prices.describe(d)
	d.Rows = of.rows
	d.Notes = slices.Concat(d.Notes, o.ofConfig(of.lengths), prices.laws.remarks, p.Warnings(), acrossMakers(prices.laws.profile, d.Types()))
	if earlier == nil { // whose run is a pipeline's, and stays one
		d.Notes = slices.Concat(a.inGroups(ctx, o.withoutStages(), prices, d), d.Notes)
	}
	if d.Inputs, err = inputs(o.out, read); err != nil {
		return err
	}
	if earlier != nil {
		d.StagesOf = d.Inputs[len(d.Inputs)-1].Path
	}
	d.Inputs = append(slices.Clone(prices.laws.inputs), d.Inputs...)
	if o.out != "" {
		if err := doc.Save(o.out, d); err != nil {
			return err
		}
	}
	if o.timeline != "" {
		if err := writeTo(o.timeline, func(w io.Writer) error { return results.PipelineTimeline(w, d) }); err != nil {
			return err
		}
	}
	return a.print(d, func(w io.Writer) error { return results.PipelinePlan(w, d) })
}

// earlier is the plan of --stages-of, nil without.
func (s staged) earlier() (*pipeline.Document, error) {
	if s.stagesOf == "" {
		return nil, nil
	}
	if err := regular(s.stagesOf); err != nil {
		return nil, err
	}
	d := new(pipeline.Document)
	if err := doc.Load(s.stagesOf, d); err != nil {
		return nil, err
	}
	if s.stages > 0 && s.stages != len(d.Stages) {
		return nil, usagef("--stages %d: --stages-of %s has %s: leave out one of them", s.stages, s.stagesOf, units.Count(len(d.Stages), "stage"))
	}
	return d, nil
}

// onto has plans be on the stages of an earlier one; without says what leaving that out is for.
func (s staged) onto(p *pipeline.Problem, earlier *pipeline.Document, without string) error {
	if err := p.OnStagesOf(earlier); err != nil {
		return usagef("--stages-of %s: %w: give the --cluster and the --model that it was planned for, or leave it out %s", s.stagesOf, err, without)
	}
	return nil
}

// pipelineOf is the planning of a pipeline that the flags ask for, by its prices.
func (o problem) pipelineOf(prices stagePriceList) *pipeline.Problem {
	return &pipeline.Problem{Costs: prices.Costs, Stages: o.staged.stages, MIPTime: o.sequences.mipTime, Effort: o.effort}
}

// hasPipeline says whether a problem has a plan for a batch, on the stages of an earlier one if
// there is one.
func (a *app) hasPipeline(lengths []units.Tokens, earlier *pipeline.Document) func(context.Context, problem) bool {
	return func(ctx context.Context, o problem) bool {
		prices, err := a.silent().stagePrices(o, lengths)
		if err != nil {
			return false
		}
		p := o.pipelineOf(prices)
		if earlier != nil && p.OnStagesOf(earlier) != nil {
			return false
		}
		_, err = pipeline.Solve(ctx, p, o.take, func() units.Seconds { return 0 }, nil)
		return err == nil
	}
}

// pipelineError is why there is no plan, with the flags that are ways out; less is that of
// keeping memory free, if it is one.
func (o problem) pipelineError(err error, less func() string) error {
	if _, missing := errors.AsType[*costmodel.MissingLawError](err); missing {
		return usageError{o.orReferences(err)}
	}
	if _, infeasible := errors.AsType[*pipeline.InfeasibleError](err); infeasible {
		return fmt.Errorf("%w: %s", err, o.moreRoom(err, less()))
	}
	if _, illegal := errors.AsType[*pipeline.IllegalError](err); illegal {
		return usageError{fmt.Errorf("%w: another number of --stages, or of devices in --cluster", err)}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("--deadline %s: the time was up before any pipeline was found: give it more, or none", o.deadline)
	}
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted before any pipeline was found; nothing was written")
	}
	return err
}

// moreRoom is the ways out of too little memory: shorter sequences give none to states.
func (o problem) moreRoom(err error, less string) string {
	ways := "more devices in --cluster"
	if o.staged.stagesOf != "" {
		ways = fmt.Sprintf("stages of its own, without --stages-of %s", o.staged.stagesOf)
	}
	if costmodel.ZeRO(o.zero) != costmodel.Zero3 {
		ways += ", --zero zero3"
	}
	if less != "" {
		ways += ", " + less
	}
	if full, ok := errors.AsType[*costs.NoRoomError](err); !ok || full.Memory.States < full.Memory.Capacity {
		ways += ", a shorter --max-len (with --truncate to cut longer sequences)"
	}
	if o.staged.stages > 0 && o.staged.stagesOf == "" {
		ways += fmt.Sprintf(", or another number than --stages %d", o.staged.stages)
	}
	return ways
}

// stagePriceList is what chunks take on stages, with where that comes from.
type stagePriceList struct {
	*costs.Costs
	job   costmodel.Job
	laws  known
	words string
	model string
}

// longestServed is the longest sequence that is looked for where the batches are yet to come and
// the model sets none: what a job bounds by its sequence is then bounded by nothing.
const longestServed = 1 << 20

// stagePrices are by the laws of the cluster's devices and links. Without lengths they are of
// any batch.
func (a *app) stagePrices(o problem, lengths []units.Tokens) (stagePriceList, error) {
	if o.zero == auto {
		return stagePriceList{}, usagef("--zero auto: is of one sequence and of groups side by side; for a pipeline name zero0, zero1, zero2 or zero3")
	}
	laws, err := o.laws()
	if err != nil {
		return stagePriceList{}, err
	}
	model, err := readModel(o.model)
	if err != nil {
		return stagePriceList{}, err
	}
	if len(lengths) == 0 {
		lengths = []units.Tokens{cmp.Or(model.MaxLen, longestServed)}
	}
	for i, n := range lengths {
		if model.MaxLen > 0 && n > model.MaxLen {
			return stagePriceList{}, o.sequences.beyondModel(i, n, model.MaxLen, model.TooLong())
		}
	}
	o.seqLen, o.batch = fmt.Sprint(int64(slices.Max(lengths))), true // a job has one; prices are of every length
	job, err := o.job(laws)
	if err != nil {
		return stagePriceList{}, err
	}
	if n := len(job.Cluster.Ranks()); o.staged.stages > min(n, job.Model.Layers) {
		return stagePriceList{}, usagef("--stages %d: a stage has one device and one layer at least, and there are %s and %s: want 1 to %d, or 0 for every number to be tried",
			o.staged.stages, units.Count(n, "device"), units.Count(job.Model.Layers, "layer"), min(n, job.Model.Layers))
	}
	c, err := costs.FromLaws(costmodel.NewPredictor(laws.profile), job, lengths)
	if _, missing := errors.AsType[*costmodel.MissingLawError](err); missing {
		return stagePriceList{}, usageError{o.orReferences(err)} // what was given does not suffice for any plan
	}
	if err != nil {
		return stagePriceList{}, usageError{err}
	}
	a.tell(laws)
	return stagePriceList{
		Costs: c, job: job, laws: laws, model: orUnnamed(job.Model.Name, o.model),
		words: fmt.Sprintf("%s, %s within a stage", o.lawWords(laws, job), job.Zero),
	}, nil
}

// describe says in a plan what it is of. The date is the laws', so that the same inputs give
// the same bytes, but for the time that planning took.
func (x stagePriceList) describe(d *pipeline.Document) {
	d.Schema, d.Tool, d.Created = pipeline.Schema, tool, x.laws.profile.Created
	d.Name, d.Prices, d.Simulated, d.Job = x.model, x.words, x.laws.profile.Simulated, x.job
	for _, r := range x.job.Cluster.Ranks() {
		d.Devices = append(d.Devices, r.Device)
	}
}

// inGroups says what the batch takes by the same laws in groups side by side: a pipeline
// saves the exchange of parameters, and waits for its first and last chunks, and which of the
// two is more shows only when both are planned. It is no part of the plan, so nothing about
// it is an error, and the plan does not wait for it beyond a deadline.
func (a *app) inGroups(ctx context.Context, without string, x stagePriceList, d *pipeline.Document) []string {
	a.note("the same in groups side by side ...")
	type found struct {
		plan *batch.Plan
		err  error
	}
	done := make(chan found, 1)
	go func() {
		plan, err := groups(ctx, x, d.Lengths)
		done <- found{plan, err}
	}()
	var other found
	select {
	case other = <-done:
	case <-ctx.Done():
		other.err = ended.Why(ctx)
	}
	if other.err != nil {
		a.note("what the batch would take in groups side by side is not known: %v", other.err)
		return nil
	}
	return []string{beside(without, other.plan.Time, d.Time)}
}

// withoutStages names the flags that a command has to leave out, where it has them, to plan the
// batch in groups side by side. A timeline is no part of a plan, whose bytes do not tell whether
// one was asked for.
func (o problem) withoutStages() string {
	if batch.Named(o.take) != nil {
		return "--pipeline, --stages, --timeline and --take"
	}
	return "--pipeline, --stages and --timeline"
}

// groups is a quick plan of a batch in groups side by side.
func groups(ctx context.Context, x stagePriceList, lengths []units.Tokens) (*batch.Plan, error) {
	c, err := groupcost.FromLaws(ctx, costmodel.NewPredictor(x.laws.profile), x.job, groupcost.Options{Of: equal(lengths)})
	if err != nil {
		return nil, err
	}
	p, err := batch.NewProblem(c, lengths)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return batch.Evenkeel{}.Solve(ctx, p)
}

// beside compares a plan of groups with a pipeline. Prices of groups are sums, which may be
// off what a simulation says by so much that less is no difference.
func beside(without string, groups, pipeline units.Seconds) string {
	how := "in groups side by side, without stages (the same command without " + without + "), the batch is predicted to take %v by the same laws: %s"
	ratio := float64(groups / pipeline)
	switch more := units.Percent(math.Abs(ratio - 1)); {
	case math.Abs(ratio-1) <= groupcost.PricesOff:
		return fmt.Sprintf(how, groups, "as long as this pipeline, within the "+units.Percent(groupcost.PricesOff)+" by which prices of groups may be off")
	case ratio < 1:
		return fmt.Sprintf(how, groups, more+" less than this pipeline")
	default:
		return fmt.Sprintf(how, groups, more+" more than this pipeline")
	}
}

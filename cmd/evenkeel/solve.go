package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/ended"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/spf13/cobra"
)

// problem is what the flags of solve say.
type problem struct {
	profile, cluster, model, seqLen string
	link, network                   string
	dtype, recompute, zero          string
	overlapZero                     bool
	accumulate, ringBuffers         int
	headChunks                      int
	twoBatch, weave                 bool
	lossChunk, reserve              string
	strategies                      []string
	take                            string
	shares, qHeads                  string
	deadline                        time.Duration
	effort                          float64
	out, timeline                   string
	recomputeGiven                  bool
	batch                           bool // of sequences of any lengths
	sequences                       sequences
	staged                          staged
	tasks                           string
	priced                          priced
	explain                         bool
}

func (a *app) solve() *cobra.Command {
	var o problem
	c := &cobra.Command{
		Use:   "solve [--profile x.profile.json] --cluster ... --model config.json (--seq-len 256k | --lengths lengths.txt [--pipeline] | --tasks t.json)",
		Short: "Plan a training step on unequal devices; baseline, lower bound and gap beside it",
		Long: `Decides how many tokens of one long sequence and which attention heads each device
gets, and in which all-to-all groups and which ring of groups, using the laws of a
profile. The plan is compared with what people run today (ring attention, Ulysses,
USP), with published algorithms, and with a lower bound that no layout
of the sequence can beat in the same simulator. A gain smaller than the cost model's own
error is shown as ~ and not recommended.

The cluster is a YAML file or a shorthand: "2x8 h100_sxm + 2x8 a100_sxm" is
four nodes of eight devices, "1x(1 cpu:2 + 1 cpu:1)" one node of two unequal ones.
Exits 3 when no plan fits the devices' memory.

The recommended plan is the fastest one whose gain over what people run today exceeds the
cost model's error. If evenkeel's fastest layout gains less than that, evenkeel-sure is the
fastest of its layouts that gains more; --take evenkeel still writes the fastest. The same
rule applies to plans of a batch (--lengths).

With --zero auto or --recompute auto, solve plans every setting that could give the shortest
step according to lower bounds, and takes the fastest that fits. Among steps within half a
percent of each other it takes the one that needs the least memory. Of a batch (--lengths)
--zero auto plans every ZeRO stage and says what each takes.

With --grad-accumulation every sequence of a step is trained on all devices, one after the
other or interleaved in pairs. If the same sequences would take less time side by side, each
on its own group of devices, solve says so; --lengths plans that.

With --lengths solve plans a global batch of unequal sequences instead of one long
sequence: micro-batches, the groups of devices of each, and which sequences each
group trains. evenkeel serve does that for a training loop. The lower bound is over plans of
such groups, of the priced classes and at their prices; every device keeps a share
of the model's states. For a single sequence, --seq-len may find a faster layout.

With --pipeline such a batch is planned as a pipeline: consecutive layers of the model are
placed on stages of devices, and sequences go through them in chunks (slices of long ones, packs
of short ones). The plan gives the order in which every stage computes its chunks and, for each
chunk, how many layers it recomputes in the backward pass. It is compared with what people run
today (sequence parallelism without a pipeline, 1F1B, Seq1F1B) and with InfiniPipe as published.
Prices come from laws only, without --costs; a note gives the batch's time in groups side by
side. A training run fixes its stages once: --stages-of plans every other batch on the stages
of an earlier plan.

With --tasks the modules of several tasks (encoders, say) are planned side by side: which
module runs when, on how many devices of which type, with how many samples of its batch on each,
compared with what people run today and with Spindle as published. The file (evenkeel.tasks/v1,
JSON; docs/tasks has examples) gives each module's layers, batch, shape and the modules it needs.

Without --profile the laws come from the reference profiles (evenkeel show
--references): what others measured on the cluster's GPU models, what models that nobody
measured borrow from these by their datasheets, and, for the rest, assumptions, which the
plan names. With --profile mine.profile.json,references the references supply the GPU models
that mine lacks and, for the models it has, the laws it lacks: it may hold only collectives,
say, or one attention kernel for one head width. A law of mine is never replaced: its kernels
are used in the variants (mask, head width, type) that they were measured in, even if a
reference's kernel is faster. Attention times borrowed from a reference are scaled by the
ratio of your measurements to the reference's wherever both have data; that ratio also widens
their interval. What was borrowed is listed.`,
		Example: `  evenkeel solve --profile prof/calibration.profile.json --cluster "1x(1 cpu:2 + 1 cpu:1)" --model config.json --seq-len 8k
  evenkeel solve --profile p.profile.json --cluster cluster.yaml --model config.json --seq-len 256k --recompute full -o a.plan.json --explain
  evenkeel solve --profile p.profile.json --cluster "1x(1 cpu:2 + 1 cpu:1)" --model config.json --seq-len 8k --shares 5:3   # what a layout of your own takes
  evenkeel solve --cluster "2x8 h100_sxm + 2x8 a100_sxm" --model config.json --seq-len 256k --recompute full    # before you own it
  evenkeel solve --cluster "4x8 h100_sxm + 4x8 a100_sxm" --model config.json --lengths lengths.txt --max-len 192k -o b.plan.json   # a batch of unequal sequences
  evenkeel solve --cluster "2x8 h100_sxm" --model config.json --lengths lengths.txt --batch-size 64 --max-len 192k --pipeline -o p.plan.json --timeline p.json   # the same as a pipeline of stages
  evenkeel solve --cluster "2x8 h100_sxm" --model config.json --lengths next.txt --max-len 192k --pipeline --stages-of p.plan.json -o q.plan.json   # the next batch, on its stages
  evenkeel solve --cluster "2x8 h100_sxm + 1x8 a100_sxm" --tasks docs/tasks/clip-10.tasks.json -o t.plan.json --timeline t.json    # several tasks side by side`,
		Args: args(cobra.NoArgs, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			o.recomputeGiven = c.Flags().Changed("recompute")
			o.sequences.seedGiven, o.priced.perNodeGiven = c.Flags().Changed("lengths-seed"), c.Flags().Changed("per-node")
			if err := notEmpty(c, "profile", "link", "network", "dtype", "take", "strategy", "shares", "q-heads", "lengths", "column", "max-len", "stages-of", "costs", "context", "memory-reserve", "output", "timeline", "tasks"); err != nil {
				return err
			}
			if err := o.idle(c); err != nil {
				return err
			}
			if err := o.given(); err != nil {
				return err
			}
			if err := o.writable(); err != nil {
				return err
			}
			run := a.runSolve
			switch {
			case o.tasks != "":
				run = a.runTasks
			case o.staged.on:
				run = a.runPipeline
			case o.sequences.file != "":
				run = a.runBatch
			}
			if err := run(c.Context(), o); err != nil {
				return advising(err, o.calibratedOf())
			}
			return nil
		},
	}
	f := c.Flags()
	o.lawFlags(c)
	f.StringVar(&o.seqLen, "seq-len", "", "tokens of the sequence, such as 8192 or 256k")
	f.IntVar(&o.accumulate, "grad-accumulation", 1, "micro-batches, of one sequence each, whose gradients make a step")
	f.StringVar(&o.take, "take", "", "strategy whose plan is written, even if it gains less over today's than the model's own error")
	f.StringVar(&o.shares, "shares", "", "tokens by rank in proportion, such as 5:3: a layout of your own, priced and checked instead of a searched one")
	f.StringVar(&o.qHeads, "q-heads", "", "query heads by rank, such as 10:6: with --shares one all-to-all group of all ranks (default: a ring in rank order)")
	f.IntVar(&o.headChunks, "head-chunks", 0, "with --q-heads: compute the heads in so many chunks, behind which all-to-alls hide, 2 to 4 (default: all at once)")
	f.BoolVar(&o.twoBatch, "two-batch-overlap", false, "with --shares: micro-batches go through the layers in twos, one computed while the other's all-to-alls move (--grad-accumulation 2 or more)")
	f.BoolVar(&o.weave, "weave", false, "with --two-batch-overlap and no --q-heads: the rings of two micro-batches take turns, step by step")
	f.StringSliceVar(&o.strategies, "strategy", nil, "strategies to run besides the baselines and the published ones (default: evenkeel, and evenkeel-sure where its gain is in doubt)")
	f.DurationVar(&o.deadline, "deadline", 0, "time to search for, of --lengths with what pricing takes; the best so far is taken then, as on Ctrl-C, or the first plan that fits if there is none yet (default: until done)")
	f.Float64Var(&o.effort, "effort", 1, "search up to so many times as long for a faster plan, 1 to 100; of --tasks in whole numbers")
	f.StringVarP(&o.out, "output", "o", "", "plan to write")
	f.StringVar(&o.timeline, "timeline", "", "timeline to write, for Perfetto or chrome://tracing")
	f.BoolVar(&o.explain, "explain", false, "show the account of the step as a tree")
	f.StringVar(&o.tasks, "tasks", "", "plan the modules of several tasks side by side: a file that describes them (evenkeel.tasks/v1)")
	o.sequences.flags(c)
	o.staged.flags(c)
	o.priced.flags(c, "--max-len, or 384000")
	return c
}

// lawFlags are what solve and serve ask alike: whose laws, of what, for which job.
func (o *problem) lawFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.profile, "profile", "", "profiles with the laws of the devices and links, separated by commas; \"references\" among them stands for the embedded ones, of the GPU models, ops and variants that the others lack (default: those alone)")
	f.StringVar(&o.cluster, "cluster", "", "a YAML file, or a shorthand such as \"2x8 h100_sxm + 2x8 a100_sxm\"")
	f.StringVar(&o.model, "model", "", "a Hugging Face config.json")
	f.StringVar(&o.link, "link", "", "link class inside a node, where the profile has several; pcie=26GB/s states the rate of one that nobody measured")
	f.StringVar(&o.network, "network", "", "link class between nodes, where the profile has several; net=200Gb/s states the rate of one that nobody measured, of a network card in one direction")
	f.StringVar(&o.dtype, "dtype", "", "f32, bf16, f16 or fp8 (default: the one that the attention laws of the cluster's devices have)")
	f.StringVar(&o.recompute, "recompute", string(costmodel.RecomputeNone), "none or full: what the backward pass computes again; auto: whichever fits and makes the shorter step; of --lengths, unless given, whichever is faster, group by group")
	f.StringVar(&o.zero, "zero", string(costmodel.Zero3), "zero0 to zero3: what is sharded over the ranks; auto: whichever fits and makes the shortest step")
	f.BoolVar(&o.overlapZero, "overlap-zero", true, "gather parameters and reduce gradients while layers compute, as FSDP does")
	f.IntVar(&o.ringBuffers, "ring-buffers", 2, "KV blocks a rank holds besides its own")
	f.StringVar(&o.lossChunk, "loss-chunk", "1k", "tokens whose logits exist at a time")
	f.StringVar(&o.reserve, "memory-reserve", usualReserve(), "part of every device's memory that plans leave to communicators and fragmentation, and to the context where nobody measured it, beside the 3% that they always leave; the default is assumed")
}

// problems are those of one sequence that the flags state, with the laws behind them: one, or
// as many as there are settings that --zero auto and --recompute auto leave open.
func (o problem) problems() (known, []*solver.Problem, error) {
	for _, f := range [][2]string{{"--cluster", o.cluster}, {"--model", o.model}, {"--seq-len", o.seqLen}} {
		if f[1] == "" {
			return known{}, nil, usagef("solve: %s is missing (see: evenkeel solve --help)", f[0])
		}
	}
	laws, err := o.laws()
	if err != nil {
		return known{}, nil, err
	}
	for _, name := range o.strategies {
		if _, err := solver.Lookup(name); err != nil {
			return known{}, nil, usagef("--strategy: %w", err)
		}
	}
	if o.take != "" {
		if _, err := solver.Lookup(o.take); err != nil {
			return known{}, nil, usagef("--take: %w", err)
		}
	}
	var all []*solver.Problem
	for _, set := range o.settings() {
		job, err := set.job(laws)
		if err != nil {
			return known{}, nil, err
		}
		q, err := solver.NewProblem(laws.profile, job)
		if err != nil {
			return known{}, nil, usageError{o.inFlags(o.orReferences(err))} // what was given does not suffice for any plan
		}
		q.Take, q.Effort = o.take, o.effort
		all = append(all, q)
	}
	return laws, all, nil
}

func (a *app) runSolve(ctx context.Context, o problem) error {
	laws, posed, err := o.problems()
	if err != nil {
		return err
	}
	own, err := o.ownLayout(posed[0])
	if err != nil {
		return err
	}
	a.tell(laws)
	p := laws.profile
	if o.deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = ended.After(ctx, o.deadline, "--deadline")
		defer cancel()
	}
	going := a.goingOn()
	plan, q, err := o.plan(ctx, posed, own, going)
	going.end()
	if err != nil {
		return err
	}
	plan.SideBySide = a.sideBySide(ctx, q)
	// The date is the laws', so that the same inputs give the same bytes.
	plan.Schema, plan.Tool, plan.Created = solver.PlanSchema, tool, p.Created
	if plan.Inputs, err = inputs(o.out, []string{o.model}); err != nil {
		return err
	}
	plan.Inputs = append(slices.Clone(laws.inputs), plan.Inputs...)
	plan.Warnings = slices.Concat(plan.Warnings, o.ofConfig([]units.Tokens{plan.Job.SeqLen}), laws.remarks)
	if err := checked(ctx, plan, p); err != nil {
		return fmt.Errorf("the plan does not stand up to the checker; this is a bug of evenkeel: %w", err)
	}
	if err := o.write(plan, q); err != nil {
		return err
	}
	further := o.calibratedOf()
	return a.print(plan, func(w io.Writer) error {
		shown := *plan // a plan that is moved is no longer beside what its laws were fitted to
		shown.Warnings = nil
		for _, warning := range plan.Warnings {
			shown.Warnings = append(shown.Warnings, results.Advised(warning, further))
		}
		if err := results.Plan(w, &shown); err != nil || !o.explain {
			return err
		}
		return results.Explain(w, plan)
	})
}

// checked has the checker look at a plan. Simulating everything anew takes as long as the
// strategies, of thousands of devices seconds: once the time is up the plan is checked by
// itself, and a check that goes on is not waited for.
func checked(ctx context.Context, plan *solver.Plan, p *costmodel.Profile) error {
	if err := plan.Validate(); err != nil || ctx.Err() != nil {
		return err
	}
	done := make(chan error, 1)
	anew := *plan // the checker may still read when others write to the plan
	go func() { done <- solver.Check(&anew, p) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return nil
	}
}

// sideBySide predicts what the job's sequences take at the same time, each in devices of
// its own; nil, and a word on why, where that cannot be said. It is no part of the plan, so
// nothing about it is an error, and the plan does not wait for it beyond a deadline.
func (a *app) sideBySide(ctx context.Context, q *solver.Problem) *solver.SideBySide {
	if q.Job.Accumulate < 2 { // even if the time is up there is nothing to tell
		return nil
	}
	type found struct {
		plan *batch.Plan
		err  error
	}
	done := make(chan found, 1)
	go func() {
		plan, err := batch.SideBySide(ctx, costmodel.NewPredictor(q.Profile), q.Job)
		done <- found{plan, err}
	}()
	var other found
	select {
	case other = <-done:
	case <-ctx.Done():
		other.err = ended.Why(ctx)
	}
	if other.err != nil {
		a.note("what the %d sequences would take side by side is not known: %v", q.Job.Accumulate, other.err)
		return nil
	}
	if other.plan == nil {
		return nil
	}
	s := &solver.SideBySide{Time: other.plan.Time, MicroBatches: len(other.plan.Micro)}
	for _, m := range other.plan.Micro {
		s.Groups = max(s.Groups, len(m.Groups))
	}
	return s
}

// plan searches for a layout, or takes the one that was given, in each setting that is left
// open. It returns the problem in the setting of the plan.
func (o problem) plan(ctx context.Context, posed []*solver.Problem, own *solver.Given, going *goingOn) (*solver.Plan, *solver.Problem, error) {
	solve := func(ctx context.Context, q *solver.Problem) (*solver.Plan, error) {
		if own == nil {
			return solver.Solve(ctx, q, o.strategies, going.report)
		}
		return solver.SolveGiven(ctx, q, *own, going.report)
	}
	if len(posed) == 1 {
		plan, err := solve(ctx, posed[0])
		return plan, posed[0], err
	}
	return solver.SolveSettings(ctx, posed, func(ctx context.Context, q *solver.Problem) (*solver.Plan, error) {
		going.with(fmt.Sprintf("%s, recompute %s", q.Job.Zero, q.Job.Recompute))
		return solve(ctx, q)
	})
}

// ownLayout is the layout of --shares; nil without it.
func (o problem) ownLayout(q *solver.Problem) (*solver.Given, error) {
	if o.shares == "" {
		return nil, nil
	}
	g, err := solver.ParseGiven(o.shares, o.qHeads)
	if err != nil {
		return nil, usagef("--%w", err)
	}
	g.Schedule = costmodel.Schedule{HeadChunks: o.headChunks, TwoBatch: o.twoBatch, WeaveForward: o.weave, WeaveBackward: o.weave}
	if err := g.Suits(q); err != nil {
		return nil, usagef("--%w", err)
	}
	return &g, nil
}

// goodEffort refuses an effort that is none.
func (o problem) goodEffort() error {
	if o.effort >= 1 && o.effort <= solver.MostEffort {
		return nil
	}
	return usagef("--effort %g: want 1 to %d, how many times as long as usual to search", o.effort, solver.MostEffort)
}

// given refuses flags that a layout of one's own leaves nothing to do for.
func (o problem) given() error {
	if err := o.goodEffort(); err != nil {
		return err
	}
	switch {
	case o.deadline < 0:
		return usagef("--deadline %s: want a time such as 2s, or 0 for as long as it takes", o.deadline)
	case o.shares != "" && o.effort != 1:
		return usagef("--effort %g: with --shares there is nothing to search: leave one out", o.effort)
	case o.shares == "" && o.qHeads != "":
		return usagef("--q-heads %s: goes with --shares, which says who owns the tokens", o.qHeads)
	case o.headChunks != 0 && o.qHeads == "":
		return usagef("--head-chunks %d: goes with --q-heads, which makes one all-to-all group", o.headChunks)
	case o.twoBatch && o.shares == "":
		return usagef("--two-batch-overlap: goes with --shares; a searched plan has it where it gains by it")
	case o.twoBatch && o.headChunks > 1:
		return usagef("--two-batch-overlap: with --head-chunks %d: a plan has one or the other", o.headChunks)
	case o.twoBatch && o.accumulate < 2:
		return usagef("--two-batch-overlap: with --grad-accumulation %d: it takes two micro-batches", o.accumulate)
	case o.weave && !o.twoBatch:
		return usagef("--weave: goes with --two-batch-overlap: the rings of two micro-batches take turns")
	case o.weave && o.qHeads != "":
		return usagef("--weave: with --q-heads %s: one all-to-all group has no ring", o.qHeads)
	case o.headChunks < 0 || o.headChunks == 1 || o.headChunks > costmodel.MaxHeadChunks:
		return usagef("--head-chunks %d: want 2 to %d", o.headChunks, costmodel.MaxHeadChunks)
	case o.shares != "" && (o.take != "" || len(o.strategies) > 0):
		return usagef("--shares %s: a layout of your own is searched by no strategy: leave out --take and --strategy", o.shares)
	}
	return nil
}

// usualReserve is the default of --memory-reserve.
func usualReserve() string { return fmt.Sprintf("%g%%", 100*solver.UsualReserve) }

// memoryReserve is --memory-reserve.
func (o problem) memoryReserve() (float64, error) {
	reserve, err := parseShare(cmp.Or(o.reserve, usualReserve()))
	if err != nil || !(reserve >= 0 && reserve <= costmodel.MostReserve) {
		return 0, usagef("--memory-reserve %q: want a part of a device's memory such as 6%% or 0.06, at most %g%%", o.reserve, 100*costmodel.MostReserve)
	}
	return reserve, nil
}

// job puts the flags and files together.
func (o problem) job(laws known) (costmodel.Job, error) {
	seq, err := units.ParseTokens(o.seqLen)
	if err != nil {
		return costmodel.Job{}, usagef("--seq-len %w", err)
	}
	chunk, err := units.ParseTokens(o.lossChunk)
	if err != nil {
		return costmodel.Job{}, usagef("--loss-chunk %w", err)
	}
	reserve, err := o.memoryReserve()
	if err != nil {
		return costmodel.Job{}, err
	}
	model, err := readModel(o.model)
	if err != nil {
		return costmodel.Job{}, err
	}
	dtype, err := o.precision(laws)
	if err != nil {
		return costmodel.Job{}, err
	}
	job := costmodel.Job{
		Model: model, Cluster: laws.cluster, SeqLen: seq, DType: dtype, Recompute: costmodel.Recompute(o.recompute),
		RingBuffers: o.ringBuffers, LossChunk: min(chunk, seq), Zero: costmodel.ZeRO(o.zero),
		OverlapZero: o.overlapZero, Accumulate: o.accumulate, MemoryReserve: reserve,
	}
	if o.accumulate < 1 {
		return job, usagef("--grad-accumulation %d: want at least 1", o.accumulate)
	}
	if err := job.Validate(); err != nil {
		return job, usageError{o.inFlags(err)}
	}
	return job, nil
}

// inFlags says what is wrong of a job by the flag that it comes from. Of a batch a job has a
// length that nobody gave.
func (o problem) inFlags(err error) error {
	field, rest, found := strings.Cut(err.Error(), ": ")
	flag, known := map[string]string{
		"seq_len_tokens": "seq-len", "dtype": "dtype", "recompute": "recompute", "ring_buffers": "ring-buffers",
		"loss_chunk_tokens": "loss-chunk", "grad_accumulation": "grad-accumulation", "zero": "zero",
	}[field]
	if !found || !known || flag == "seq-len" && o.batch {
		return err
	}
	if (flag == "zero" || flag == "recompute") && (!o.batch || o.sequences.file != "" && !o.staged.on) {
		rest += ", or auto"
	}
	if flag == "recompute" {
		rest += insteadOf(o.recompute)
	}
	return fmt.Errorf("--%s %s", flag, rest)
}

// isClusterFile says whether --cluster names a file: what is no shorthand does where there
// is one, whatever its name ends in.
func isClusterFile(s string) bool {
	if strings.HasSuffix(s, ".yaml") || strings.HasSuffix(s, ".yml") {
		return true
	}
	_, err := costmodel.ParseCluster(s)
	return err != nil && exists(s)
}

// readCluster takes a YAML file's name or a shorthand.
func readCluster(s string) (costmodel.Cluster, error) {
	if !isClusterFile(s) {
		c, err := costmodel.ParseCluster(s)
		if err == nil {
			return c, nil
		}
		if namedLikeFile(s) {
			return c, fmt.Errorf("%w; nor is there such a file", err)
		}
		return c, usageError{err}
	}
	data, err := os.ReadFile(s)
	if err != nil {
		return costmodel.Cluster{}, openError(err)
	}
	return costmodel.ReadClusterYAML(s, data)
}

// precision is --dtype, or the only one for which all device types of the cluster have laws of
// attention. Those of other devices would make it a choice where there is none.
func (o problem) precision(laws known) (op.DType, error) {
	if o.dtype != "" {
		return op.DType(o.dtype), nil
	}
	have, of, common := laws.precisions()
	switch {
	case len(have) == 0:
		return "", usageError{o.orReferences(&costmodel.MissingLawError{Op: op.KindAttnFwd, On: of})}
	case len(have) == 1:
		return have[0], nil
	case !common:
		return "", usagef("the profile has attention laws of %s, but of no precision for all of these: measure them in one, or plan on fewer types of devices", of)
	}
	names := make([]string, len(have))
	for i, d := range have {
		names[i] = string(d)
	}
	return "", usagef("the profile has attention laws of %s for %s: choose one with --dtype", of, strings.Join(names, ", "))
}

// types are the device types of the cluster, in its order.
func (k known) types() (types []string) {
	for _, r := range k.cluster.Ranks() {
		if !slices.Contains(types, r.Device) {
			types = append(types, r.Device)
		}
	}
	return types
}

// precisions are those for which each device type of the cluster has laws of attention or, where
// no precision is all of theirs (common), any of them; of names the types.
func (k known) precisions() (have []op.DType, of string, common bool) {
	types := k.types()
	with := map[op.DType][]string{}
	for _, l := range k.profile.Laws {
		d := l.Variant.DType
		if l.Op != op.KindAttnFwd || !slices.Contains(types, l.Device) || slices.Contains(with[d], l.Device) {
			continue
		}
		if with[d] = append(with[d], l.Device); !slices.Contains(have, d) {
			have = append(have, d)
		}
	}
	onAll := slices.DeleteFunc(slices.Clone(have), func(d op.DType) bool { return len(with[d]) < len(types) })
	if len(onAll) > 0 {
		have = onAll
	}
	return have, strings.Join(types, ", "), len(onAll) > 0
}

// writable says, before anything is planned, whether what the flags ask for can be
// written.
func (o problem) writable() error {
	paths, _, err := o.profiles()
	if err != nil {
		return err
	}
	outs := []output{{"-o", o.out, document(o.schema())}, {"--timeline", o.timeline, timeline}}
	if err := notLost(outs, append(paths, o.cluster, o.model, o.sequences.file, o.staged.stagesOf, o.tasks)...); err != nil {
		return err
	}
	for _, to := range outs {
		if err := to.probe(); err != nil {
			return err
		}
	}
	return nil
}

// write saves what the flags ask for.
func (o problem) write(plan *solver.Plan, q *solver.Problem) error {
	if o.out != "" {
		if err := doc.Save(o.out, plan); err != nil {
			return err
		}
	}
	if o.timeline == "" {
		return nil
	}
	step, err := costmodel.Simulate(q.Predictor, q.Job, plan.Layout(), costmodel.SimOptions{Timeline: true})
	if err != nil {
		return err
	}
	return writeTo(o.timeline, func(w io.Writer) error { return results.Timeline(w, plan.Groups, step) })
}

// writeTo writes a file that is no document: a picture or a timeline.
func writeTo(path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	return doc.WriteAtomic(path, b.Bytes())
}

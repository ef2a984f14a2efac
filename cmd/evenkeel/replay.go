package main

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile/backend/host"
	"github.com/evenkeel/evenkeel/profile/backend/nvml"
	"github.com/evenkeel/evenkeel/profile/backend/torch"
	"github.com/evenkeel/evenkeel/profile/backend/torch/launch"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/results"
	"github.com/spf13/cobra"
)

// replaying is what the flags of replay say.
type replaying struct {
	out, parts, comm, kernel string
	model, dtype             string
	python, sampledAbove     string
	lossChunk                string
	docs                     []string
	layers, repeats, warmup  int
	seed                     uint64
	timeout                  time.Duration
	oversubscribe            bool
}

func (a *app) replay() *cobra.Command {
	var o replaying
	c := &cobra.Command{
		Use:   "replay a.plan.json [b.plan.json ...]",
		Short: "Run plans on real torch ranks; check numerics, bytes and FLOPs; record a trace",
		Long: `Runs the layers of plans on real ranks, forward and backward: the attention as
the plan splits it, and the linear parts around it. First every plan's output
and gradients are compared with those of one device, the bytes between every
pair of ranks and the FLOPs of every rank with what the plan says, exactly. Then
the plans are timed in turns, in an order shuffled anew in every block, so that
what drifts hits all of them alike. The trace is what evenkeel check compares
with the cost model's prediction.

A plan of batches runs its micro-batches one after the other, in each its groups
side by side, each over its sequences packed; all ranks meet after a micro-batch, in
whole steps but the last.
The model, which such a plan does not hold, is named by --model.

A plan of a pipeline runs all layers of the model on its stages, all chunks in its
order, with the layers computed again that it says. Each stage's attention is compared
with one device's by itself, then the whole step.

A plan of tasks runs all layers of all its modules, each device with its samples, and the
exchange of their gradients. The results of a module go to those that need it, whole, and
come back as gradients. In the place of a model's own adapter, half of each is added to what
the other module is given, as many elements as both samples have; where batches differ,
sample a of n goes to sample a*m/n of m. Waves are not run: what can begin begins.

A step is one micro-batch of a plan of one sequence. If any of them has its
micro-batches in twos (two_batch_overlap), a step of each has two, in twos or one
after the other, so that steps compare.

With --parts loss every micro-batch's loss, of a pipeline every chunk's, comes behind its
last layer: norm, projection to the vocabulary and cross-entropy, whose gradient the
backward pass begins with. The embedding, the traffic of ZeRO and the optimizer are not
run; nor, but of tasks, the exchange of gradients.

With --parts step these are run too, of plans of batches and of one micro-batch of plans of
one sequence: all layers of the model, gradients and parameters exchanged by the plan's ZeRO
stage, AdamW. A batch's gradients are added up over its micro-batches and go between all ranks
that are not left out. Sums of gradients and the update are checked as well. Every plan has
weights and a state of its own, and under zero2 and zero3 each rank has the memory of zero1,
with the traffic of its stage.

One host's ranks are started here, each with its own cores or GPU. Under
torchrun, Slurm or another launcher start one task a rank, all with the same
arguments: each task runs its own rank, and that of rank 0 writes the trace.

A plan that is wrong is refused before a rank starts. When a rank dies, stalls
or is wrong, all ranks are stopped, the message names the rank and where it was,
and no trace is written.`,
		Example: `  evenkeel replay a.plan.json
  evenkeel replay a.plan.json b.plan.json --repeats 20 -o ab.trace.jsonl
  evenkeel replay a.plan.json --parts attention --docs 3k,1k,4k
  evenkeel replay a.plan.json --parts step
  evenkeel replay a.batch.json --model config.json --parts step
  evenkeel replay a.pipeline.json b.pipeline.json --model config.json
  evenkeel replay a.tasks.plan.json`,
		Args: args(cobra.MinimumNArgs(1), "plans"),
		RunE: func(c *cobra.Command, given []string) error {
			if err := notEmpty(c, "output", "model", "dtype", "loss-chunk", "comm", "docs", "python"); err != nil {
				return err
			}
			if !c.Flags().Changed("layers") {
				o.layers = replay.UsualLayers
			}
			return a.runReplay(c.Context(), o, given)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.out, "output", "o", "", "trace to write (default: the first plan's name with .trace.jsonl)")
	f.StringVar(&o.model, "model", "", "a Hugging Face config.json: the model of plans of batches and pipelines")
	f.StringVar(&o.dtype, "dtype", "", "f32, bf16 or f16, of plans of batches and pipelines (default: f32 on processors, bf16 on GPUs)")
	f.StringVar(&o.parts, "parts", replay.PartsLayer, "layer; loss, which is layers and the loss behind them; step, which is whole training steps; or attention alone")
	f.StringVar(&o.lossChunk, "loss-chunk", "", "tokens whose logits exist at a time, with --parts loss or step (default: as many as the plans say, or 1k)")
	f.IntVar(&o.layers, "layers", 0, "layers of a step (default 1; of pipelines, and of plans beside them, and with --parts step, all that the model has; of tasks all)")
	f.IntVar(&o.repeats, "repeats", 10, "blocks to record: passes over all plans")
	f.IntVar(&o.warmup, "warmup", 2, "blocks before them, which are not recorded")
	f.Uint64Var(&o.seed, "seed", 1, "of the inputs and of the order of plans")
	f.StringVar(&o.comm, "comm", "", "gloo or nccl (default: gloo between processors, nccl between GPUs)")
	f.StringVar(&o.kernel, "kernel", "auto", "attention kernel: auto, math, sdpa_flash, sdpa_cudnn, sdpa_efficient, fa2, or sdpa_cpu on processors")
	f.StringSliceVar(&o.docs, "docs", nil, "tokens of the documents packed into the sequence, such as 3k,1k,4k (default: one document)")
	f.StringVar(&o.sampledAbove, "sampled-above", "8k", "longest sequence that is compared with one device whole; longer ones are sampled")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "how long a rank may stand still before all are stopped; while ranks start and meet two minutes longer")
	f.BoolVar(&o.oversubscribe, "oversubscribe", false, "allow ranks with more threads than the host has cores; times then mean nothing")
	f.StringVar(&o.python, "python", "", "Python interpreter with torch (default: EVENKEEL_PYTHON, python3 on PATH, /usr/bin/python3)")
	return c
}

func (a *app) runReplay(ctx context.Context, o replaying, paths []string) error {
	c, err := o.config(paths)
	if err != nil {
		return err
	}
	var wrong *replay.OptionError
	if err := c.Check(); errors.As(err, &wrong) {
		return usagef("--%s %s: want %s", wrong.Option, wrong.Value, wrong.Want)
	} else if err != nil {
		return err
	}
	for i, p := range c.Plans {
		if of := slices.IndexFunc(c.Plans, func(o *replay.Plan) bool { return o.SHA256 == p.SHA256 }); of < i {
			a.note("%s: holds the same plan as %s: what they differ by is noise", p.Path, c.Plans[of].Path)
		}
	}
	var refused []string
	var torchVersion string
	if c.Python, torchVersion, refused, err = torch.FindPython(ctx, o.python, a.waitingFor); err != nil {
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted while a Python with torch was looked for, before any rank was started; no trace was written, and the same command begins again")
		}
		return err
	}
	for _, r := range refused {
		a.note("not used: %s", r)
	}
	a.note("%s runs the ranks: torch %s", c.Python, torchVersion)
	c.Progress = a.replayProgress(c)
	if err := replay.Run(ctx, c); err != nil {
		return err
	}
	if c.World != nil && c.World.Task > 0 {
		a.note("rank %d is done; the task of rank 0 writes the trace", c.World.Task)
		return nil
	}
	if err := a.showTrace(c.Out); err != nil {
		return err
	}
	a.note("wrote %s; compare it with the prediction: evenkeel check %s --profile ...", c.Out, c.Out)
	return nil
}

// waitingFor tells of an interpreter that takes long to answer.
func (a *app) waitingFor(python string, longest time.Duration) {
	a.note("waiting for %s to import torch, up to %s; another interpreter is named by --python", python, brief(longest))
}

// config puts the flags, the plans and the machine together.
func (o replaying) config(paths []string) (c replay.Config, err error) {
	c = replay.Config{
		Out: o.out, Tool: tool, Created: time.Now().UTC().Format(time.RFC3339), Parts: o.parts, Layers: o.layers, Repeats: o.repeats, Warmup: o.warmup,
		Seed: o.seed, Backend: o.comm, Kernel: o.kernel, Timeout: o.timeout, Oversubscribe: o.oversubscribe,
	}
	for i, d := range o.docs {
		n, err := units.ParseTokens(d)
		if err != nil {
			return c, usagef("--docs: number %d: %w", i+1, err)
		}
		c.Docs = append(c.Docs, n)
	}
	if c.SampledAbove, err = units.ParseTokens(o.sampledAbove); err != nil {
		return c, usagef("--sampled-above %w", err)
	}
	if o.seed > math.MaxInt64 {
		return c, usagef("--seed %d: want at most %d", o.seed, int64(math.MaxInt64))
	}
	if c.Plans, err = o.load(paths); err != nil {
		return c, err
	}
	if c.LossChunk, err = o.chunk(c.Plans); err != nil {
		return c, err
	}
	if c.Out == "" {
		name := strings.TrimSuffix(filepath.Base(paths[0]), ".json")
		for _, kind := range []string{".plan", ".batch", ".pipeline"} {
			name = strings.TrimSuffix(name, kind)
		}
		c.Out = name + ".trace.jsonl"
	}
	files := paths
	if o.model != "" {
		files = append(slices.Clone(paths), o.model)
	}
	to := output{"-o", c.Out, document(replay.TraceSchema)}
	if err := notLost([]output{to}, files...); err != nil {
		return c, err
	}
	if c.Inputs, err = inputs(c.Out, files); err != nil {
		return c, err
	}
	machine, _ := host.Discover()
	nvml.Describe(&machine)
	c.Machine = replay.Machine{Cores: machine.Cores, GPUs: len(machine.NVIDIA)}
	if c.World, err = launch.Detect(os.LookupEnv); err != nil {
		return c, err
	}
	if c.World == nil || c.World.Task == 0 { // the task of rank 0 writes for all
		err = to.probe()
	}
	return c, err
}

// chunk is how many tokens' logits exist at a time where the loss is run: what is asked for, or
// what plans say.
func (o replaying) chunk(plans []*replay.Plan) (units.Tokens, error) {
	switch {
	case !replay.WithLoss(o.parts) && o.lossChunk != "":
		return 0, usagef("--loss-chunk %s: goes with --parts loss and step", o.lossChunk)
	case !replay.WithLoss(o.parts):
		return 0, nil
	case o.lossChunk != "":
		n, err := units.ParseTokens(o.lossChunk)
		if err != nil {
			return 0, usagef("--loss-chunk %w", err)
		}
		return n, nil
	}
	plans = slices.DeleteFunc(slices.Clone(plans), func(p *replay.Plan) bool { return p.Job.LossChunk == 0 })
	if len(plans) == 0 {
		return 1024, nil // as solve has it
	}
	first := plans[0]
	for _, p := range plans {
		if p.Job.LossChunk != first.Job.LossChunk {
			return 0, usagef("%s: job.loss_chunk_tokens: %d, %s has %d: say how many at a time, --loss-chunk", p.Path, int64(p.Job.LossChunk), first.Path, int64(first.Job.LossChunk))
		}
	}
	return first.Job.LossChunk, nil
}

// load reads the plans, and the model of those of several sequences.
func (o replaying) load(paths []string) ([]*replay.Plan, error) {
	if o.model == "" && o.dtype != "" {
		return nil, usagef("--dtype %s: goes with --model and plans of several sequences; plans of one sequence and of tasks have their own", o.dtype)
	}
	if o.model == "" {
		return replay.LoadPlans(paths)
	}
	if o.dtype != "" && !op.DType(o.dtype).Runs() {
		return nil, usagef("--dtype %s: want f32, bf16 or f16", o.dtype)
	}
	model, err := readModel(o.model)
	if err != nil {
		return nil, err
	}
	plans, err := replay.LoadPlansOf(paths, &replay.Trained{Model: model, DType: op.DType(o.dtype)})
	if err == nil && !slices.ContainsFunc(plans, (*replay.Plan).Several) {
		return nil, usagef("--model %s: goes with plans of batches and pipelines: all of these have models of their own", o.model)
	}
	return plans, err
}

// replayProgress tells of phases, and of a long run's blocks every few seconds.
func (a *app) replayProgress(c replay.Config) func(phase string, block int) {
	var last string
	var told time.Time
	return func(phase string, block int) {
		now := time.Now()
		if phase == last && (phase != "block" || now.Sub(told) < plainEvery) {
			return
		}
		last, told = phase, now
		switch phase {
		case "numerics":
			a.note("comparing with one device")
		case "warmup":
			a.note("warming up")
		case "block":
			a.note("block %d of %d", block+1, c.Repeats)
		case "gather":
			a.note("gathering the spans")
		}
	}
}

// showTrace prints a trace's tables.
func (a *app) showTrace(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return openError(err)
	}
	defer f.Close()
	s, err := results.SummariseReplay(path, f)
	if err != nil {
		return err
	}
	return a.print(s, func(w io.Writer) error { return results.Replay(w, s) })
}

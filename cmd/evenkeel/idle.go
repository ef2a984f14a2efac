package main

import (
	"slices"

	"github.com/evenkeel/evenkeel/results/profiles"
	"github.com/spf13/cobra"
)

// Flags of solve and serve that one way of planning asks for and another has no use
// for.
func oneSequenceFlags() []string {
	return []string{"seq-len", "grad-accumulation", "strategy", "shares", "q-heads", "head-chunks", "two-batch-overlap", "weave", "timeline", "explain"}
}

func batchFlags() []string {
	return []string{"column", "batch-size", "batch", "lengths-seed", "max-len", "truncate", "pad", "mip-time", "fast", "costs"}
}

func lawFlags() []string {
	return []string{"profile", "cluster", "model", "link", "network", "dtype", "recompute", "zero", "overlap-zero", "ring-buffers", "loss-chunk", "memory-reserve"}
}

func costFlags() []string { return []string{"devices", "per-node", "memory", "context"} }

// idle refuses a flag that would change nothing: who gives it expects that it does.
func (o problem) idle(c *cobra.Command) error {
	if o.tasks != "" {
		return idleTasks(c)
	}
	if c.Name() == "solve" {
		if err := o.idleSequences(c); err != nil {
			return err
		}
	}
	if o.priced.costs == "" {
		return refuse(c, costFlags(), "goes with --costs, which is missing")
	}
	if g, err := profiles.LookupGroupCost(o.priced.costs); err == nil && g.Model.Flexible != nil {
		if err := refuse(c, []string{"memory", "context"}, "changes nothing: a device of --costs "+g.Name+" holds a number of tokens, whatever its memory and the model's context"); err != nil {
			return err
		}
	}
	return refuse(c, lawFlags(), "is of laws, and --costs "+o.priced.costs+" takes a published model instead: leave out one of them")
}

// idleTasks refuses the flags of sequences beside tasks.
func idleTasks(c *cobra.Command) error {
	ofSequences := slices.DeleteFunc(oneSequenceFlags(), func(f string) bool { return f == "timeline" })
	others := slices.Concat(ofSequences, []string{"lengths", "pipeline"}, pipelineFlags(), batchFlags(), costFlags(), []string{"model", "zero", "overlap-zero", "ring-buffers", "loss-chunk"})
	return refuse(c, others, "means nothing for the modules of --tasks: leave it out")
}

// idleSequences refuses of solve the flags of a batch without one, and those of one
// sequence beside a batch.
func (o problem) idleSequences(c *cobra.Command) error {
	x := o.sequences
	if x.file == "" {
		return refuse(c, slices.Concat([]string{"pipeline"}, pipelineFlags(), batchFlags()), "goes with --lengths, which is missing")
	}
	if err := o.idleBatch(c); err != nil {
		return err
	}
	if err := o.goodEffort(); err != nil {
		return err
	}
	switch {
	case x.truncate && x.maxLen == "":
		return usagef("--truncate: to how many tokens? --max-len is missing")
	case x.mipTime <= 0 && o.staged.on:
		return usagef("--mip-time %s: want a time such as 10s", x.mipTime)
	case x.mipTime <= 0:
		return usagef("--mip-time %s: want a time such as 10s, or leave flexsp out with --fast", x.mipTime)
	case x.fast:
		return refuse(c, []string{"mip-time"}, "is of flexsp, which --fast leaves out")
	}
	return nil
}

// idleBatch refuses what is of one sequence or, of a pipeline and of groups side by side, of
// the other.
func (o problem) idleBatch(c *cobra.Command) error {
	if o.staged.on {
		return o.idlePipeline(c)
	}
	if err := refuse(c, pipelineFlags(), "goes with --pipeline, which is missing"); err != nil {
		return err
	}
	return refuse(c, oneSequenceFlags(), "means nothing for a batch of --lengths: leave it out")
}

// idleFlags are flags that mean nothing, and why.
type idleFlags struct {
	flags []string
	why   string
}

// refuse names the first of the flags that was given.
func refuse(c *cobra.Command, flags []string, why string) error {
	for _, name := range flags {
		f := c.Flags().Lookup(name)
		switch {
		case f == nil || !f.Changed:
		case f.Value.String() == f.NoOptDefVal: // given without a value
			return usagef("--%s: %s", name, why)
		default:
			return usagef("--%s %s: %s", name, f.Value, why)
		}
	}
	return nil
}

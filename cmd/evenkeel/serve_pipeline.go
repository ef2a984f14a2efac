package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/serve"
	"github.com/evenkeel/evenkeel/solver/pipeline"
	"github.com/spf13/cobra"
)

// idleStages refuses what changes nothing where batches are planned on a pipeline's stages.
func (o serving) idleStages(c *cobra.Command) error {
	for _, x := range []idleFlags{
		{append(costFlags(), "costs"), "has prices of groups side by side, and those of stages are of laws alone: leave it out, or --stages-of"},
		{[]string{"recompute"}, "with --stages-of the planner decides, chunk by chunk, how many layers are computed again: leave it out"},
		{[]string{"ring-buffers"}, "the devices of a stage share chunks by an all-to-all over heads, not by a ring: leave it out"},
	} {
		if err := refuse(c, x.flags, x.why); err != nil {
			return err
		}
	}
	return nil
}

// stagedConfig is the server's where it plans on the stages of an earlier plan.
func (a *app) stagedConfig(o serving) (serve.Config, error) {
	if err := o.named("serve"); err != nil {
		return serve.Config{}, err
	}
	earlier, err := o.staged.earlier()
	if err != nil {
		return serve.Config{}, err
	}
	prices, err := a.stagePrices(o.problem, nil)
	if err != nil {
		return serve.Config{}, err
	}
	p := &pipeline.Problem{Costs: prices.Costs}
	if err := o.staged.onto(p, earlier, "to plan in groups side by side"); err != nil {
		return serve.Config{}, err
	}
	var fleet []serve.SetupPool
	for _, t := range prices.Types() {
		fleet = append(fleet, serve.SetupPool{Device: t.Device, Ranks: t.Nodes})
	}
	c := serve.Config{Limits: o.limits, Journal: o.journal, Setup: serve.Setup{
		Tool: tool, Costs: prices.words, Fleet: fleet, Classes: []serve.SetupClass{}, Stages: p.Fixed,
	}}
	c.Limits.Tokens, c.Limits.TokensOf = math.MaxInt32, "the most that is read"
	if m := prices.job.Model; m.MaxLen > 0 {
		c.Limits.Tokens, c.Limits.TokensOf = m.MaxLen, m.TooLong()
	}
	c.Setup.Limits = c.Limits.Told()
	a.warn(prices.laws.profile, fleet)
	for range o.workers {
		c.Planners = append(c.Planners, newOnlineStages(prices, earlier, o.moreRoomServed))
	}
	return c, nil
}

// moreRoomServed is moreRoom of a server: who sends batches cannot give it flags, and its lengths
// are not cut here.
func (o serving) moreRoomServed(err error) string {
	var ways []string
	if full, ok := errors.AsType[*costs.NoRoomError](err); !ok || full.Memory.States < full.Memory.Capacity {
		ways = append(ways, "send shorter sequences")
	}
	if costmodel.ZeRO(o.zero) != costmodel.Zero3 {
		ways = append(ways, "start the server with --zero zero3")
	}
	ways = append(ways, fmt.Sprintf("start it without --stages-of %s, to plan in groups side by side", o.staged.stagesOf))
	return strings.Join(ways, ", or ")
}

// onlineStages plans on the stages of an earlier plan.
type onlineStages struct {
	predictor *costmodel.Predictor
	job       costmodel.Job
	earlier   *pipeline.Document
	moreRoom  func(error) string // the ways out of too little memory
	plan      func(context.Context, *pipeline.Problem) (*costs.Plan, error)
	renewed   func() serve.Planner
}

func newOnlineStages(prices stagePriceList, earlier *pipeline.Document, moreRoom func(error) string) *onlineStages {
	return &onlineStages{
		predictor: costmodel.NewPredictor(prices.laws.profile), job: prices.job, earlier: earlier, moreRoom: moreRoom, plan: pipeline.Online,
		renewed: func() serve.Planner { return newOnlineStages(prices, earlier, moreRoom) },
	}
}

// Renewed implements serve.Renewer: a panic may leave the predictor half made.
func (o *onlineStages) Renewed() serve.Planner { return o.renewed() }

// Plan implements serve.Planner.
func (o *onlineStages) Plan(ctx context.Context, lengths []units.Tokens) (serve.Planned, error) {
	c, err := costs.FromLaws(o.predictor, o.job, lengths)
	if err != nil {
		return serve.Planned{}, err
	}
	p := &pipeline.Problem{Costs: c}
	if err := p.OnStagesOf(o.earlier); err != nil {
		return serve.Planned{}, err
	}
	plan, err := o.plan(ctx, p)
	if _, full := errors.AsType[*costs.NoRoomError](err); full {
		err = fmt.Errorf("%w: %s", err, o.moreRoom(err))
	}
	if err != nil {
		return serve.Planned{}, cmp.Or(p.Missing(), err)
	}
	if err := sound(pipeline.Check(c, plan)); err != nil {
		return serve.Planned{}, err
	}
	made := serve.Planned{Bound: min(pipeline.Bound(p), plan.Time), Stopped: ctx.Err() != nil}
	made.Pipeline = &serve.Pipeline{Schema: serve.PipelineSchema, Devices: o.earlier.Devices, Lengths: lengths, Layers: p.Layers, Plan: *plan}
	if !made.Stopped { // who set a deadline waits for the plan and not for its error
		account, err := p.Account(plan)
		if err != nil {
			return serve.Planned{}, err
		}
		made.Interval = account.Time
	}
	return made, nil
}

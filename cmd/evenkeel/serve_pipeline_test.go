package main

import (
	"bytes"
	"context"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/serve"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

// onPipeline is a server's flags with the plan of a pipeline to go on from.
func onPipeline(t *testing.T) (*app, serving, *pipeline.Document) {
	t.Helper()
	o := serving{problem: served(problem{}), limits: serve.DefaultLimits(), workers: 2}
	o.cluster = "1x(2 h100_sxm + 2 a100_sxm)"
	a := &app{errOut: &bytes.Buffer{}}
	lengths := []units.Tokens{30000, 9000, 4000, 900}
	prices, err := a.stagePrices(o.problem, lengths)
	if err != nil {
		t.Fatal(err)
	}
	d, err := pipeline.Solve(t.Context(), &pipeline.Problem{Costs: prices.Costs, Stages: 2, MIPTime: time.Millisecond}, "seq1f1b", func() units.Seconds { return 0 }, nil)
	if err != nil {
		t.Fatal(err)
	}
	prices.describe(d)
	o.staged.stagesOf = filepath.Join(t.TempDir(), "p.plan.json")
	if err := doc.Save(o.staged.stagesOf, d); err != nil {
		t.Fatal(err)
	}
	return a, o, d
}

// A batch is planned on the earlier plan's stages, as solve would plan it there but for
// infinipipe's programmes.
func TestServedPipelines(t *testing.T) {
	a, o, earlier := onPipeline(t)
	c, err := a.config(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Setup; len(c.Planners) != 2 || len(s.Stages) != 2 || s.Stages[1].Layers != earlier.Stages[1].Layers || s.Classes == nil || s.Limits.Tokens != math.MaxInt32 {
		t.Errorf("%+v", s)
	}
	want := []serve.SetupPool{{Device: earlier.Devices[0], Ranks: [][]int{{0, 1}}}, {Device: earlier.Devices[2], Ranks: [][]int{{2, 3}}}}
	if !slices.EqualFunc(c.Setup.Fleet, want, func(a, b serve.SetupPool) bool {
		return a.Device == b.Device && slices.EqualFunc(a.Ranks, b.Ranks, slices.Equal[[]int])
	}) {
		t.Errorf("fleet %+v", c.Setup.Fleet)
	}
	lengths := []units.Tokens{40000, 12000, 3000, 3000, 500}
	made, err := c.Planners[1].Plan(t.Context(), lengths)
	if err != nil {
		t.Fatal(err)
	}
	prices, err := a.stagePrices(o.problem, lengths)
	if err != nil {
		t.Fatal(err)
	}
	p := &pipeline.Problem{Costs: prices.Costs}
	if err := p.OnStagesOf(earlier); err != nil {
		t.Fatal(err)
	}
	plan, err := pipeline.Online(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	got := made.Pipeline
	if got == nil || made.Plan != nil || got.Time != plan.Time || made.Stopped || got.Schema != serve.PipelineSchema || !slices.Equal(got.Devices, earlier.Devices) || !slices.Equal(got.Lengths, lengths) {
		t.Fatalf("%+v, want %v", made, plan.Time)
	}
	for s, x := range got.Stages {
		if !slices.Equal(x.Ranks, earlier.Stages[s].Ranks) || x.Layers != earlier.Stages[s].Layers {
			t.Errorf("stage %d: %+v, want %+v", s, x, earlier.Stages[s])
		}
	}
	if e := made.Interval; !(e.Lo < e.Mid && e.Mid < e.Hi) || e.Mid != plan.Time || !(made.Bound > 0) || made.Bound > plan.Time {
		t.Errorf("%+v within %+v, bound %v", plan.Time, e, made.Bound)
	}
	// Nothing of one batch is left for the next.
	if again, err := c.Planners[1].Plan(t.Context(), lengths); err != nil || again.Pipeline.Time != got.Time {
		t.Errorf("%v, %v the second time; %v", again.Pipeline.Time, got.Time, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if made, err := c.Planners[0].Plan(ended, lengths); err != nil || !made.Stopped || made.Pipeline.Time < made.Bound || made.Interval != (costmodel.Estimate{}) {
		t.Errorf("at the deadline: %+v, %v", made, err)
	}
}

// What does not fit on the stages fails with ways out that the server has: flags of solve are none.
func TestServedPipelinesWithoutRoomSayWhatAServerCanDo(t *testing.T) {
	a, o, _ := onPipeline(t)
	o.zero = string(costmodel.Zero2)
	c, err := a.config(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Planners[0].Plan(t.Context(), []units.Tokens{50_000_000})
	want := "send shorter sequences, or start the server with --zero zero3, or start it without --stages-of " + o.staged.stagesOf + ", to plan in groups side by side"
	if err == nil || !strings.HasSuffix(err.Error(), ": "+want) || strings.Contains(err.Error(), "--max-len") {
		t.Errorf("%v, want %s", err, want)
	}
	o.cluster = "1x4 h100_sxm"
	if _, err := a.config(t.Context(), o); err == nil || !strings.HasSuffix(err.Error(), "or leave it out to plan in groups side by side") {
		t.Errorf("on another cluster: %v", err)
	}
}

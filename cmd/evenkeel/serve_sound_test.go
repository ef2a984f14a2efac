package main

import (
	"context"
	"strings"
	"testing"

	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/serve"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

// sequenceLoser plans as another does, and leaves out a sequence.
type sequenceLoser struct{ groupPlanner }

func (f sequenceLoser) Plan(ctx context.Context, p *batch.Problem) (*batch.Plan, error) {
	plan, err := f.groupPlanner.Plan(ctx, p)
	if err == nil {
		g := &plan.Micro[0].Groups[0]
		g.Sequences = g.Sequences[:len(g.Sequences)-1]
	}
	return plan, err
}

// What a planner of a server makes is no answer before it is checked by other code.
func TestServedPlansAreChecked(t *testing.T) {
	lengths := []units.Tokens{30000, 9000, 4000, 4000, 900, 80}
	var o serving
	o.cluster = "1x(2 h100_sxm + 2 a100_sxm)"
	groups := newOnline(pricedFor(t, o))
	if _, err := groups.Plan(t.Context(), lengths); err != nil {
		t.Fatal(err)
	}
	groups.planner = sequenceLoser{groups.planner}
	a, p, _ := onPipeline(t)
	c, err := a.config(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	stages := c.Planners[0].(*onlineStages)
	stages.plan = func(ctx context.Context, p *pipeline.Problem) (*costs.Plan, error) {
		plan, err := pipeline.Online(ctx, p)
		if err == nil {
			plan.Orders[0][0].End *= 0.9
		}
		return plan, err
	}
	for _, x := range []serve.Planner{groups, stages} {
		if made, err := x.Plan(t.Context(), lengths); err == nil || !strings.Contains(err.Error(), "breaks the rules") {
			t.Errorf("%T: %+v: %v", x, made, err)
		}
	}
}

// After a panic a planner is made anew, and plans as the one before.
func TestRenewedPlannersPlanAsBefore(t *testing.T) {
	lengths := []units.Tokens{30000, 9000, 4000, 4000, 900, 80}
	var o serving
	o.cluster = "1x(2 h100_sxm + 2 a100_sxm)"
	groups := newOnline(pricedFor(t, o))
	a, p, _ := onPipeline(t)
	c, err := a.config(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []serve.Planner{groups, c.Planners[0]} {
		want, err := x.Plan(t.Context(), lengths)
		if err != nil {
			t.Fatal(err)
		}
		renewed := x.(serve.Renewer).Renewed()
		got, err := renewed.Plan(t.Context(), lengths)
		if err != nil || renewed == x || got.Interval != want.Interval || got.Bound != want.Bound {
			t.Errorf("%T: %+v, before %+v: %v", x, got, want, err)
		}
	}
}

// BenchmarkCheckServed compares planning with what the check takes of it.
func BenchmarkCheckServed(b *testing.B) {
	g, err := priced{costs: "flexsp-gpt-7b", devices: 64, perNode: 8, memory: "30GiB"}.published(0)
	if err != nil {
		b.Fatal(err)
	}
	d, err := workload.ParseDistribution("flexsp-standin")
	if err != nil {
		b.Fatal(err)
	}
	lengths := workload.Shape{Multiple: 128, Limit: 192 << 10}.Apply(d.Lengths(512)).Lengths
	o := newOnline(g)
	p, err := batch.NewProblem(g.Costs, lengths)
	if err != nil {
		b.Fatal(err)
	}
	plan, err := o.planner.Plan(b.Context(), p)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("plan", func(b *testing.B) {
		for b.Loop() {
			_, _ = o.planner.Plan(b.Context(), p)
		}
	})
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			if found := batch.Check(p, plan); len(found) > 0 {
				b.Fatal(found)
			}
		}
	})
}

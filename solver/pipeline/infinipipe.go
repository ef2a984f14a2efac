package pipeline

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/ended"
	"github.com/evenkeel/evenkeel/internal/units"
)

// InfiniPipe is the planner of Wang et al. (arXiv 2509.21275): equal stages, chunks of equal
// time by its own cost model (formula), which is fitted to ours; sequences of neighbouring
// numbers of chunks in flights of their own; and what is computed again by a programme for
// each flight. The number of slices of the longest sequence, and that of stages, are tried
// one after the other, those first that the formula promises most of, and judged by our simulator.
//
// While these are tried, programmes are relaxed and rounded, which is within some per cent of
// their solutions; those of the best are then solved, with a gap of 2 %, as published. It has
// the stages of some device types where these are faster than all, and fewer layers in the
// last one where the loss makes that faster.
type InfiniPipe struct{}

// Name implements Strategy.
func (InfiniPipe) Name() string { return "infinipipe" }

// Claims implements Strategy.
func (InfiniPipe) Claims() Claims {
	return Claims{Published: true, Slow: true, Doc: "equal stages, chunks of equal time, sequences grouped by their number of chunks, recomputation chunk by chunk by integer programming"}
}

// Solve implements Strategy.
func (InfiniPipe) Solve(ctx context.Context, p *Problem) (*pipeline.Plan, error) {
	shapes, err := p.shapes()
	if err != nil {
		return nil, err
	}
	var best chosen
	var last []pipeline.Stage // what the best plan is made of
	var with [][]pipeline.Chunk
	for t := range p.trials(ctx, shapes, p.balancedWays(), &best) {
		before := best.plan
		plan, err := p.infinipipe(ctx, t.stages, p.fitted(t.stages[0].Ranks), t.with.sequences, best.time())
		if best.take(p, plan, err); best.plan != before {
			last, with = t.stages, t.with.sequences
		}
	}
	if best.plan != nil && slices.ContainsFunc(best.plan.Recompute, func(again []int) bool { return slices.Max(again) > 0 }) {
		plan, err := p.programmes(ctx, last, p.fitted(last[0].Ranks), with, true)
		best.take(p, plan, err)
	}
	return best.result(ctx)
}

// balancedWays are, for stages, the ways to cut and pack a batch that are tried: by the formula of
// the first of them.
func (p *Problem) balancedWays() func(stages []pipeline.Stage) []*chunking {
	known := map[int][]*chunking{} // by what the ranks of the first are like
	return func(stages []pipeline.Stage) []*chunking {
		like := p.Like(stages[0].Ranks)
		if known[like] == nil {
			for _, by := range cuttings() {
				known[like] = append(known[like], p.chunkingOf(together(p.balanced(p.fitted(stages[0].Ranks), by))))
			}
		}
		return known[like]
	}
}

// infinipipe is the plan of chunks on stages; nil if it cannot take less than most.
func (p *Problem) infinipipe(ctx context.Context, stages []pipeline.Stage, f formula, sequences [][]pipeline.Chunk, most units.Seconds) (*pipeline.Plan, error) {
	least := planOf(stages, []*flight{newFlight(sequences)}, nil)
	if err := p.Run(least); err != nil {
		return nil, err
	}
	if least.Time >= most { // nor do several flights, or recomputation, take less
		return nil, nil
	}
	if p.Room(least) == nil {
		return least, nil
	}
	plan, err := p.programmes(ctx, stages, f, sequences, false)
	if plan != nil || err != nil {
		return plan, err
	}
	return p.allAgain(stages, sequences)
}

// programmes is the plan of the best flights by their programmes, which are solved, where
// exact, or relaxed and rounded; nil if none has room. The published programmes leave no room for
// the layer that is computed again in the pass at work. Where plans have none for it, ours do.
func (p *Problem) programmes(ctx context.Context, stages []pipeline.Stage, f formula, sequences [][]pipeline.Chunk, exact bool) (*pipeline.Plan, error) {
	for _, atWork := range []bool{false, true} {
		plan, err := p.programmed(ctx, stages, f, sequences, atWork, exact)
		if err != nil || plan != nil && p.Room(plan) == nil {
			return plan, err
		}
	}
	return nil, nil
}

// programmed is the plan of the best flights by their programmes; nil if there is none.
func (p *Problem) programmed(ctx context.Context, stages []pipeline.Stage, f formula, sequences [][]pipeline.Chunk, atWork, exact bool) (*pipeline.Plan, error) {
	layers := 0
	for _, s := range stages {
		layers = max(layers, s.Layers)
	}
	mean, _ := p.meanTime(f, slices.Concat(sequences...))
	g, err := group(sequences, len(stages), mean*float64(layers), mean/3, func(x *flight) (*solution, error) {
		return p.recomputation(stages, x, atWork).rounded(ctx)
	})
	if err != nil || g == nil {
		return nil, err
	}
	again := make([][][]int, len(g.flights))
	for i, x := range g.flights {
		r, s := p.recomputation(stages, x, atWork), g.again[i]
		if exact {
			solved, err := r.exact(ctx, cmp.Or(p.MIPTime, 10*time.Second))
			if err != nil {
				return nil, err
			}
			if solved != nil {
				s = solved
			}
		}
		again[i] = r.of(s, stages)
	}
	plan := planOf(stages, g.flights, again)
	return plan, p.Run(plan)
}

// together are chunks by sequence, those without a slice each by itself.
func together(cut [][]pipeline.Chunk, rest []pipeline.Chunk) [][]pipeline.Chunk {
	all := slices.Clone(cut)
	for _, x := range rest {
		all = append(all, []pipeline.Chunk{x})
	}
	return all
}

// allAgain is the plan that computes everything again: it may have room where no programme
// has a solution, as rows add up what is not held at the same time.
//
// Errors: *pipeline.NoRoomError.
func (p *Problem) allAgain(stages []pipeline.Stage, sequences [][]pipeline.Chunk) (*pipeline.Plan, error) {
	plan := planOf(stages, []*flight{newFlight(sequences)}, nil)
	everything(plan)
	if err := p.Room(plan); err != nil {
		return nil, err
	}
	return plan, p.Run(plan)
}

// everything has a plan compute all layers again.
func everything(plan *pipeline.Plan) {
	for s := range plan.Recompute {
		for k := range plan.Recompute[s] {
			plan.Recompute[s][k] = plan.Stages[s].Layers
		}
	}
}

// chosen is the fastest plan that fits of those that are taken, and why others do not.
type chosen struct {
	plan *pipeline.Plan
	why  error
}

func (b *chosen) time() units.Seconds {
	if b.plan == nil {
		return forever
	}
	return b.plan.Time
}

// take looks at a plan, which may be nil, or at why there is none.
func (b *chosen) take(p *Problem, plan *pipeline.Plan, err error) {
	if err == nil && plan != nil && plan.Time < b.time() {
		if err = p.Room(plan); err == nil {
			b.plan = plan
		}
	}
	b.why = nearer(b.why, err)
}

// nearer is of two reasons why nothing fits the one with more room, or that is of room at all.
func nearer(a, b error) error {
	x, ok := errors.AsType[*pipeline.NoRoomError](a)
	y, is := errors.AsType[*pipeline.NoRoomError](b)
	if a == nil || is && (!ok || y.Over() < x.Over()) {
		return b
	}
	return a
}

func (b *chosen) result(ctx context.Context) (*pipeline.Plan, error) {
	if b.plan == nil {
		return nil, cmp.Or(b.why, ended.Why(ctx))
	}
	return b.plan, nil
}

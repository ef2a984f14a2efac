package pipeline

import (
	"cmp"
	"context"
	"slices"
	"sort"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// mostShifted is of how many of the fastest plans of whole sequences layers are moved about.
const mostShifted = 3

// Whole is the fastest plan found of what frameworks run: one forward, one backward (1F1B), of
// whole sequences, with as few layers of all chunks computed again, the same number on every stage
// that has as many, as there is room for. The stages are of one of the rows, each with the layers
// that it says and with those that let all be busy for as long; a row without layers has the latter
// alone. Sequences are packed to several numbers of tokens, and as the chunks say that are given.
//
// Errors: *IllegalError without a row, *pipeline.NoRoomError where none fits, a missing law, ctx's.
func (p *Problem) Whole(ctx context.Context, rows [][]pipeline.Stage, given ...[]pipeline.Chunk) (*pipeline.Plan, error) {
	if len(rows) == 0 {
		return nil, &IllegalError{Why: "there are no stages to plan on"}
	}
	ways := p.packings(given)
	var best chosen
	var fast []*pipeline.Plan
	for _, row := range rows {
		for _, f := range ways {
			if ctx.Err() != nil {
				break
			}
			for _, stages := range p.divided(row, f) {
				plan := planOf(stages, []*flight{f}, nil)
				err := cmp.Or(p.Run(plan), p.alike(plan))
				if best.take(p, plan, err); err == nil {
					fast = append(fast, plan)
				}
			}
		}
	}
	slices.SortStableFunc(fast, func(a, b *pipeline.Plan) int { return cmp.Compare(a.Time, b.Time) })
	for _, plan := range fast[:min(mostShifted, len(fast))] {
		best.take(p, p.shifted(ctx, plan), nil)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return best.result(ctx)
}

// packings are flights of whole sequences: those given, and of several numbers of tokens in a
// chunk.
func (p *Problem) packings(given [][]pipeline.Chunk) []*flight {
	var ways []*flight
	add := func(chunks []pipeline.Chunk) {
		same := func(f *flight) bool {
			return slices.EqualFunc(f.chunks, chunks, func(a, b pipeline.Chunk) bool { return slices.Equal(a.Whole, b.Whole) })
		}
		if !slices.ContainsFunc(ways, same) {
			var one [][]pipeline.Chunk
			for _, x := range chunks {
				one = append(one, []pipeline.Chunk{x})
			}
			ways = append(ways, newFlight(one))
		}
	}
	for _, chunks := range given {
		add(chunks)
	}
	for _, tokens := range p.chunkSizes() {
		add(slices.Concat(p.packed(tokens)...))
	}
	return ways
}

// divided are the stages of a row with the layers that it says, and with those that let all be
// busy for as long.
func (p *Problem) divided(row []pipeline.Stage, f *flight) [][]pipeline.Stage {
	var all [][]pipeline.Stage
	if have := layersOf(row); have == p.Layers {
		all = append(all, row)
	}
	if len(row) > p.Layers {
		return all
	}
	each, extra, most := make([]float64, len(row)), make([]float64, len(row)), make([]int, len(row))
	for s, x := range row {
		for _, c := range f.chunks {
			w := p.Work(x.Ranks, c)
			each[s] += float64(w.Forward + w.Backward)
			if s == len(row)-1 {
				extra[s] += float64(w.Loss)
			}
		}
		most[s] = p.mostLayers(row, f, s)
	}
	stages := p.layered(row, each, extra, most)
	if stages == nil { // without regard to room, for the reason why there is none
		stages = p.layered(row, each, extra, slices.Repeat([]int{p.Layers}, len(row)))
	}
	if len(all) == 0 || !slices.EqualFunc(all[0], stages, func(a, b pipeline.Stage) bool { return a.Layers == b.Layers }) {
		all = append(all, stages)
	}
	return all
}

func layersOf(row []pipeline.Stage) int {
	n := 0
	for _, x := range row {
		n += x.Layers
	}
	return n
}

// mostLayers is how many layers stage s of a row has room for, whatever is computed again.
func (p *Problem) mostLayers(row []pipeline.Stage, f *flight, s int) int {
	plan := planOf(slices.Clone(row), []*flight{f}, nil)
	fits := func(layers int) bool {
		plan.Stages[s].Layers = layers
		for _, again := range []int{layers, 0} {
			for k := range plan.Recompute[s] {
				plan.Recompute[s][k] = again
			}
			if m := p.StageMemory(plan, s); m.Capacity == 0 || m.Peak() <= m.Capacity {
				return true
			}
		}
		return false
	}
	return sort.Search(p.Layers, func(n int) bool { return !fits(n + 1) })
}

// shifted moves layers from the stage that is at work for longest to another for as long as that
// makes the plan faster; where stages are fixed, none.
func (p *Problem) shifted(ctx context.Context, plan *pipeline.Plan) *pipeline.Plan {
	for ctx.Err() == nil && p.Fixed == nil {
		from, most := -1, units.Seconds(0)
		for s, order := range plan.Orders {
			busy := p.Finish(plan, s).Total()
			for _, o := range order {
				busy += o.End - o.Start
			}
			if plan.Stages[s].Layers > 1 && busy > most {
				from, most = s, busy
			}
		}
		best := plan
		for to := range plan.Stages {
			if from < 0 || to == from {
				continue
			}
			now := plan.Clone()
			now.Stages[from].Layers--
			now.Stages[to].Layers++
			for _, again := range now.Recompute {
				clear(again)
			}
			if p.Run(now) == nil && now.Time < best.Time && p.alike(now) == nil && now.Time < best.Time {
				best = now
			}
		}
		if best == plan {
			break
		}
		plan = best
	}
	return plan
}

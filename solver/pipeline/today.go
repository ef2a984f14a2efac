package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// StaticSP is sequence parallelism (DeepSpeed-Ulysses) over all devices, or over those of some
// types where that is faster: a single stage, whole
// sequences packed to a fixed number of tokens, gradients accumulated, as many layers of all
// chunks computed again as there is no room for otherwise.
type StaticSP struct{}

// Name implements Strategy.
func (StaticSP) Name() string { return "static-sp" }

// Claims implements Strategy.
func (StaticSP) Claims() Claims {
	return Claims{Baseline: true, Doc: "no pipeline: every chunk of packed whole sequences on all devices at once, or on those of some types"}
}

// Solve implements Strategy.
func (StaticSP) Solve(ctx context.Context, p *Problem) (*pipeline.Plan, error) {
	if n := max(p.Stages, len(p.Fixed)); n > 1 {
		return nil, &IllegalError{Why: fmt.Sprintf("has a single stage: %d were asked for", n)}
	}
	shapes, err := p.shapes()
	if err != nil {
		return nil, err
	}
	shapes = slices.DeleteFunc(shapes, func(x []pipeline.Stage) bool { return len(x) > 1 })
	return p.even(ctx, shapes, p.packed)
}

// unstaged says what sequence parallelism alone takes, where stages were asked for: it has none,
// and so is no candidate, but may well be what a user runs today.
func (p *Problem) unstaged(ctx context.Context, plan *pipeline.Plan) []string {
	if p.Stages < 2 || p.Fixed != nil { // a run on fixed stages is a pipeline already
		return nil
	}
	alone, err := StaticSP{}.Solve(ctx, &Problem{Costs: p.Costs, Stages: 1})
	if err != nil {
		return nil
	}
	change, than := float64(alone.Time/plan.Time)-1, "more"
	if change < 0 {
		change, than = -change, "less"
	}
	return []string{fmt.Sprintf("gains are told over other pipelines of %s; without one, by sequence parallelism alone (%s), the batch is predicted to take %v by the same laws: %s %s than this pipeline; where the number of stages is left open, it is compared too",
		units.Count(p.Stages, "stage"), StaticSP{}.Name(), alone.Time, units.Percent(change), than)}
}

// OneF1B is what people run today: equal stages, whole sequences packed to a fixed number of
// tokens, one forward, one backward, as many layers of all chunks computed again as there is
// no room for otherwise.
type OneF1B struct{}

// Name implements Strategy.
func (OneF1B) Name() string { return "1f1b" }

// Claims implements Strategy.
func (OneF1B) Claims() Claims {
	return Claims{Baseline: true, Doc: "equal stages, chunks of packed whole sequences, the same recomputation for all"}
}

// Solve implements Strategy.
func (OneF1B) Solve(ctx context.Context, p *Problem) (*pipeline.Plan, error) {
	shapes, err := p.deep()
	if err != nil {
		return nil, err
	}
	return p.even(ctx, shapes, p.packed)
}

// Seq1F1B is the same with long sequences cut into slices of a fixed number of tokens (Ao et
// al., 2024): short ones and what is left of long ones are packed to as many.
type Seq1F1B struct{}

// Name implements Strategy.
func (Seq1F1B) Name() string { return "seq1f1b" }

// Claims implements Strategy.
func (Seq1F1B) Claims() Claims {
	return Claims{Baseline: true, Doc: "equal stages, slices of a fixed number of tokens, the same recomputation for all"}
}

// Solve implements Strategy.
func (Seq1F1B) Solve(ctx context.Context, p *Problem) (*pipeline.Plan, error) {
	shapes, err := p.deep()
	if err != nil {
		return nil, err
	}
	return p.even(ctx, shapes, p.sliced)
}

// deep are the stages that plans may have, two at least.
func (p *Problem) deep() ([][]pipeline.Stage, error) {
	shapes, err := p.shapes()
	if err != nil {
		return nil, err
	}
	shapes = slices.DeleteFunc(shapes, func(x []pipeline.Stage) bool { return len(x) == 1 })
	switch {
	case len(shapes) == 0 && p.Fixed != nil:
		return nil, &IllegalError{Why: "has two stages or more: one was asked for"}
	case len(shapes) == 0:
		return nil, &IllegalError{Why: "the devices and the model's heads do not give two equal stages or more"}
	}
	return shapes, nil
}

// even is the fastest plan on any of the stages with chunks of a fixed number of tokens, of
// several that are tried.
func (p *Problem) even(ctx context.Context, shapes [][]pipeline.Stage, chunked func(tokens units.Tokens) [][]pipeline.Chunk) (*pipeline.Plan, error) {
	var best chosen
	for t := range p.trials(ctx, shapes, p.fixedSizes(chunked), &best) {
		plan := planOf(t.stages, []*flight{newFlight(t.with.sequences)}, nil)
		err := p.Run(plan)
		if err == nil && plan.Time < best.time() {
			err = p.alike(plan)
		}
		best.take(p, plan, err)
	}
	return best.result(ctx)
}

// fixedSizes are chunks of several numbers of tokens, the same for all stages.
func (p *Problem) fixedSizes(chunked func(tokens units.Tokens) [][]pipeline.Chunk) func([]pipeline.Stage) []*chunking {
	var all []*chunking
	for _, n := range p.chunkSizes() {
		all = append(all, p.chunkingOf(chunked(n)))
	}
	return func([]pipeline.Stage) []*chunking { return all }
}

// chunkSizes are the numbers of tokens in a chunk that are tried.
func (p *Problem) chunkSizes() []units.Tokens {
	longest, all := units.Tokens(0), units.Tokens(0)
	for _, n := range p.Lengths {
		longest, all = max(longest, n), all+n
	}
	var sizes []units.Tokens
	for _, c := range cuttings() {
		if c.slices > 1 || c.times == 1 {
			sizes = append(sizes, (longest+units.Tokens(c.slices)-1)/units.Tokens(c.slices))
		}
	}
	for n := 2 * longest; n < 2*all; n *= 2 {
		sizes = append(sizes, n)
	}
	return sizes
}

// soon is a plan that takes next to no time to make: whole sequences, packed, on the first of
// the stages that there may be that have room.
func (p *Problem) soon() (*pipeline.Plan, error) {
	shapes, err := p.shapes()
	if err != nil {
		return nil, err
	}
	longest, all := units.Tokens(0), units.Tokens(0)
	for _, n := range p.Lengths {
		longest, all = max(longest, n), all+n
	}
	const most = 64 // chunks, or thereabouts
	var best chosen
	for _, tokens := range []units.Tokens{max(longest, all/most), longest} {
		chunks := []*flight{newFlight(p.packed(tokens))}
		for _, stages := range shapes {
			plan := planOf(stages, chunks, nil)
			err := cmp.Or(p.Run(plan), p.alike(plan))
			if best.take(p, plan, err); best.plan != nil {
				return plan, nil
			}
		}
	}
	return nil, best.why
}

// alike has as few layers of all chunks computed again as there is room for.
//
// Errors: *pipeline.NoRoomError.
func (p *Problem) alike(plan *pipeline.Plan) error {
	most := 0
	for _, s := range plan.Stages {
		most = max(most, s.Layers)
	}
	var err error
	set := func(n int) bool {
		for s, x := range plan.Stages {
			for k := range plan.Recompute[s] {
				plan.Recompute[s][k] = min(n, x.Layers)
			}
		}
		err = p.Room(plan)
		return err == nil
	}
	// A layer that is computed again takes room beside the others while it is: with one there
	// may be less than with none.
	if !set(0) && !set(1+sort.Search(most-1, func(n int) bool { return set(n + 1) })) {
		return err
	}
	return p.Run(plan)
}

// packed are whole sequences, the longest first, each in the fullest chunk that has room for
// it, of so many tokens; longer ones have chunks of their own.
func (p *Problem) packed(tokens units.Tokens) [][]pipeline.Chunk {
	var all [][]pipeline.Chunk
	for _, x := range p.fill(nil, byLength(p.Lengths), tokens) {
		all = append(all, []pipeline.Chunk{x})
	}
	return all
}

// sliced are sequences in slices of so many tokens, with shorter ones packed beside the last
// ones and one another.
func (p *Problem) sliced(tokens units.Tokens) [][]pipeline.Chunk {
	var cut [][]pipeline.Chunk
	var tails []pipeline.Chunk
	var short []int
	for _, i := range byLength(p.Lengths) {
		if p.Lengths[i] <= tokens {
			short = append(short, i)
			continue
		}
		var chunks []pipeline.Chunk
		for from := units.Tokens(0); from < p.Lengths[i]; from += tokens {
			chunks = append(chunks, pipeline.Chunk{Sequence: i, Context: from, Slice: min(tokens, p.Lengths[i]-from)})
		}
		tails = append(tails, chunks[len(chunks)-1])
		cut = append(cut, chunks)
	}
	filled := p.fill(tails, short, tokens)
	for i, chunks := range cut {
		chunks[len(chunks)-1] = filled[i]
	}
	return together(cut, filled[len(cut):])
}

// fill puts sequences, the longest first, each into the fullest chunk that has room for it,
// or a new one.
func (p *Problem) fill(chunks []pipeline.Chunk, sequences []int, tokens units.Tokens) []pipeline.Chunk {
	room := make([]units.Tokens, len(chunks))
	for i, x := range chunks {
		room[i] = tokens - p.Tokens(x)
	}
	for _, i := range sequences {
		into := -1
		for k := range chunks {
			if p.Lengths[i] <= room[k] && (into < 0 || room[k] < room[into]) {
				into = k
			}
		}
		if into < 0 {
			into = len(chunks)
			chunks, room = append(chunks, pipeline.Chunk{Sequence: -1}), append(room, tokens)
		}
		chunks[into].Whole = append(chunks[into].Whole, i)
		room[into] -= p.Lengths[i]
	}
	return chunks
}

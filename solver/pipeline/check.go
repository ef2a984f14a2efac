package pipeline

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Check verifies a plan against what its chunks take, and returns all violations, up to a
// hundred. The rules are: every layer is on one stage and every device in one at most; every
// token of every sequence is in one chunk, in order; a stage computes every chunk forward
// once and backward once, what later slices need before them and backward the other way
// round, one pass at a time; a pass begins when what it needs of the next stage is there;
// passes take what the prices say, and the plan as long as its last stage, which then
// adds up its gradients, those of a table that the first stage and the last one have with the
// other, and updates its parameters. It shares no code with any strategy or with the simulator.
func Check(c *pipeline.Costs, plan *pipeline.Plan) []error {
	b := batch{c.Lengths, c.Layers, c.Devices()}
	found := b.rules(plan)
	if len(found) > 0 {
		return found
	}
	found = b.times(plan)
	off := roundingOff * float64(plan.Time)
	passes, added := b.passes(plan), make([]float64, len(plan.Stages)) // when a stage's gradients are
	for s := range plan.Stages {
		ended := 0.0
		for _, o := range plan.Orders[s] {
			forward, backward := c.Passes(plan, s, o.Chunk)
			want := forward
			if o.Backward {
				want = backward
			}
			if took := o.End - o.Start; math.Abs(float64(took-want)) > off {
				found = violation(found, "orders[%d]: chunk %d takes %v: its layers take %v", s, o.Chunk, took, want)
			}
			ended = max(ended, float64(o.End))
			from := s - 1
			if o.Backward {
				from = s + 1
			}
			if from < 0 || from == len(plan.Stages) {
				continue
			}
			sent := c.Send(plan.Stages[min(s, from)].Ranks, plan.Stages[max(s, from)].Ranks, c.Tokens(plan.Chunks[o.Chunk]))
			there := passes[key{from, o.Chunk, o.Backward}].End + sent
			if float64(o.Start) < float64(there)-off {
				found = violation(found, "orders[%d]: chunk %d begins at %v: what it needs of stage %d is there at %v", s, o.Chunk, o.Start, from, there)
			}
		}
		added[s] = ended + float64(c.Finish(plan, s).Gradients)
	}
	both, over := max(added[0], added[len(added)-1])+float64(c.Tied(plan)), 0.0
	for s, at := range added {
		if c.Tied(plan) > 0 && (s == 0 || s == len(added)-1) {
			at = both
		}
		over = max(over, at+float64(c.Finish(plan, s).Parameters))
	}
	if math.Abs(over-float64(plan.Time)) > off {
		found = violation(found, "step_s: %v: the last stage has updated its parameters at %v", plan.Time, units.Seconds(over))
	}
	return found
}

// roundingOff is by what share of a plan's time its times may be off.
const roundingOff = 1e-9

const mostViolations = 100

func violation(found []error, format string, args ...any) []error {
	if len(found) < mostViolations {
		found = append(found, fmt.Errorf(format, args...))
	}
	return found
}

// batch is what a plan is of, as far as rules go.
type batch struct {
	lengths []units.Tokens
	layers  int
	devices int
}

// key names a pass.
type key struct {
	stage, chunk int
	backward     bool
}

// passes are a plan's passes by stage and chunk.
func (b batch) passes(plan *pipeline.Plan) map[key]pipeline.Op {
	all := map[key]pipeline.Op{}
	for s, order := range plan.Orders {
		for _, o := range order {
			all[key{s, o.Chunk, o.Backward}] = o
		}
	}
	return all
}

// rules says what of a plan cannot be, whatever it takes, but for the order in time.
func (b batch) rules(plan *pipeline.Plan) (found []error) {
	layers, stageOf := 0, map[int]int{}
	for s, x := range plan.Stages {
		if x.Layers < 1 || x.Layers > b.layers { // so that no sum wraps around to what is right
			return violation(found, "stages[%d].layers: %d: want 1 to %d", s, x.Layers, b.layers)
		}
		layers += x.Layers
		if len(x.Ranks) == 0 {
			found = violation(found, "stages[%d].ranks: none", s)
		}
		for i, r := range x.Ranks {
			if r < 0 || r >= b.devices {
				found = violation(found, "stages[%d].ranks: %d: there are %d devices", s, r, b.devices)
			}
			if i > 0 && r <= x.Ranks[i-1] {
				found = violation(found, "stages[%d].ranks: %d after %d: want rising ranks", s, r, x.Ranks[i-1])
			}
			if of, ok := stageOf[r]; ok {
				found = violation(found, "stages[%d].ranks: %d is in stage %d already", s, r, of)
			}
			stageOf[r] = s
		}
	}
	if layers != b.layers {
		found = violation(found, "stages: have %d layers: the model has %d", layers, b.layers)
	}
	if len(plan.Recompute) != len(plan.Stages) || len(plan.Orders) != len(plan.Stages) {
		return violation(found, "recomputed_layers, orders: of %d and %d stages: there are %d", len(plan.Recompute), len(plan.Orders), len(plan.Stages))
	}
	if found = b.covered(plan.Chunks, found); len(found) > 0 {
		return found
	}
	for s, again := range plan.Recompute {
		if len(again) != len(plan.Chunks) {
			return violation(found, "recomputed_layers[%d]: of %d chunks: there are %d", s, len(again), len(plan.Chunks))
		}
		for k, n := range again {
			if n < 0 || n > plan.Stages[s].Layers {
				found = violation(found, "recomputed_layers[%d][%d]: %d: stage %d has %d layers", s, k, n, s, plan.Stages[s].Layers)
			}
		}
	}
	for s, order := range plan.Orders {
		if len(order) != 2*len(plan.Chunks) {
			found = violation(found, "orders[%d]: has %d passes: want a forward and a backward one of %d chunks", s, len(order), len(plan.Chunks))
		}
		for i, o := range order {
			if o.Chunk < 0 || o.Chunk >= len(plan.Chunks) {
				found = violation(found, "orders[%d][%d].chunk: %d: there are %d", s, i, o.Chunk, len(plan.Chunks))
			}
		}
	}
	return found
}

// covered says which tokens are not in exactly one chunk, or out of order.
func (b batch) covered(chunks []pipeline.Chunk, found []error) []error {
	upTo := make([]units.Tokens, len(b.lengths))
	for k, x := range chunks {
		if x.Slice < 0 || x.Slice == 0 && (x.Sequence != -1 || x.Context != 0) || x.Slice == 0 && len(x.Whole) == 0 {
			return violation(found, "chunks[%d]: has no tokens, or no slice and sequence %d behind %d tokens: want -1 and 0", k, x.Sequence, int64(x.Context))
		}
		parts := make([][3]int64, 0, 1+len(x.Whole)) // sequence, context, tokens
		if x.Slice > 0 {
			parts = append(parts, [3]int64{int64(x.Sequence), int64(x.Context), int64(x.Slice)})
		}
		for _, w := range x.Whole {
			tokens := int64(0)
			if w >= 0 && w < len(b.lengths) {
				tokens = int64(b.lengths[w])
			}
			parts = append(parts, [3]int64{int64(w), 0, tokens})
		}
		for _, part := range parts {
			i := part[0]
			if i < 0 || i >= int64(len(b.lengths)) {
				return violation(found, "chunks[%d]: sequence %d: there are %d", k, i, len(b.lengths))
			}
			if part[1] != int64(upTo[i]) || part[2] > int64(b.lengths[i])-part[1] {
				return violation(found, "chunks[%d]: has tokens %d to %d of sequence %d, which has %d, and chunks before have up to %d", k, part[1], part[1]+part[2], i, int64(b.lengths[i]), int64(upTo[i]))
			}
			upTo[i] += units.Tokens(part[2])
		}
	}
	for i, n := range b.lengths {
		if upTo[i] != n {
			found = violation(found, "chunks: have %d of the %d tokens of sequence %d", int64(upTo[i]), int64(n), i)
		}
	}
	return found
}

// times says what of the order of passes of a plan that follows the rules, as their times have
// it, cannot be.
func (b batch) times(plan *pipeline.Plan) (found []error) {
	if !(plan.Time > 0) || math.IsInf(float64(plan.Time), 1) {
		return violation(found, "step_s: %v: want a time above 0", plan.Time)
	}
	off := units.Seconds(roundingOff) * plan.Time
	passes := b.passes(plan)
	for s, order := range plan.Orders {
		free := units.Seconds(0)
		for i, o := range order {
			switch {
			case !(o.Start >= 0 && o.End >= o.Start) || o.End > plan.Time+off:
				found = violation(found, "orders[%d][%d]: from %v to %v: want times within step_s, %v", s, i, o.Start, o.End, plan.Time)
			case o.Start < free-off:
				found = violation(found, "orders[%d][%d].start_s: %v: the stage is at work until %v", s, i, o.Start, free)
			}
			free = o.End
		}
		last := map[int]int{} // by sequence: the chunk with its last slice so far
		for k, x := range plan.Chunks {
			forward, has := passes[key{s, k, false}]
			backward, had := passes[key{s, k, true}]
			if !has || !had {
				found = violation(found, "orders[%d]: want a forward and a backward pass of chunk %d", s, k)
				continue
			}
			if backward.Start < forward.End-off {
				found = violation(found, "orders[%d]: chunk %d goes backward at %v and forward until %v", s, k, backward.Start, forward.End)
			}
			if x.Slice == 0 {
				continue
			}
			if of, ok := last[x.Sequence]; ok {
				before, after := passes[key{s, of, false}], passes[key{s, of, true}]
				if forward.Start < before.End-off || after.Start < backward.End-off {
					found = violation(found, "orders[%d]: chunk %d is not behind chunk %d of the same sequence forward, and before it backward", s, k, of)
				}
			}
			last[x.Sequence] = k
		}
	}
	return found
}

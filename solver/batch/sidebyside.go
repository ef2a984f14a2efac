package batch

import (
	"context"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
)

// SideBySide plans a step of one long sequence a micro-batch (package solver) as a batch
// of equal sequences, which may train at the same time, each in devices of its own: what
// the step takes where nothing asks for all devices at every sequence. Nil where a step
// has one sequence, or no group of the batch planner holds one.
//
// Recomputation is the job's. A group takes the time of a simulation of it alone, with one
// sequence or with all it holds, and between these on the line.
//
// Errors: as of groupcost.FromLaws, such as a law that only groups need, and ctx's.
func SideBySide(ctx context.Context, q *costmodel.Predictor, j costmodel.Job) (*Plan, error) {
	if j.Accumulate < 2 {
		return nil, nil
	}
	o := groupcost.Options{
		Recompute: j.Recompute == costmodel.RecomputeFull, NoRecompute: j.Recompute != costmodel.RecomputeFull,
		Of: costmodel.Documents{Tokens: j.SeqLen, Count: j.Accumulate},
	}
	costs, err := groupcost.FromLaws(q, j, o)
	if err != nil {
		return nil, err
	}
	lengths := make([]units.Tokens, j.Accumulate)
	for i := range lengths {
		lengths[i] = j.SeqLen
	}
	p, err := NewProblem(costs, lengths)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return Evenkeel{}.Solve(ctx, p)
}

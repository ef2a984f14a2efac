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
// has one sequence, or more than mostBeside.
//
// Errors: as of SameLengths, and those of Planner.Plan.
func SideBySide(ctx context.Context, q *costmodel.Predictor, j costmodel.Job) (*Plan, error) {
	if j.Accumulate < 2 || j.Accumulate > mostBeside {
		return nil, nil
	}
	p, err := SameLengths(ctx, q, j)
	if err != nil {
		return nil, err
	}
	return Evenkeel{}.Solve(ctx, p)
}

// mostBeside bounds the sequences of a step, far beyond any there is: twice as many take a
// second to plan, a million minutes.
const mostBeside = 10000

// SameLengths is the batch of a job's sequences. Recomputation is the job's. A group takes
// the time of a simulation of it alone, with one sequence or with all it holds, and
// between these on the line.
//
// Errors: as of groupcost.FromLaws, such as a law that only groups need or that no group
// holds a sequence.
func SameLengths(ctx context.Context, q *costmodel.Predictor, j costmodel.Job) (*Problem, error) {
	o := groupcost.Options{
		Recompute: j.Recompute == costmodel.RecomputeFull, NoRecompute: j.Recompute != costmodel.RecomputeFull,
		Of: costmodel.Documents{Tokens: j.SeqLen, Count: max(1, j.Accumulate)},
	}
	costs, err := groupcost.FromLaws(ctx, q, j, o)
	if err != nil {
		return nil, err
	}
	lengths := make([]units.Tokens, o.Of.Count)
	for i := range lengths {
		lengths[i] = j.SeqLen
	}
	p, err := NewProblem(costs, lengths)
	if err != nil {
		return nil, err
	}
	return p, p.Validate()
}

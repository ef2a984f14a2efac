package batch

import "context"

// Static uses groups of one size for every batch, as a job script sets it. With a zero Layout it
// chooses the best one for the batch, as Adaptive does. Of the strategies that are compared
// (Strategies) it has the smallest groups that hold the longest sequence of any batch: nobody knows
// which size is the best on average of batches that are yet to come.
type Static struct{ Layout Layout }

// Name is "static".
func (Static) Name() string { return "static" }

// Claims says that it is a baseline.
func (Static) Claims() Claims {
	return Claims{
		Baseline: true,
		Doc:      "groups of one degree for all batches, the smallest that hold the longest sequence (without recomputation if any do), packed by best fit decreasing; unequal devices are taken as equal: the smallest memory holds for all, and the slowest group sets the pace",
	}
}

// Solve packs the batch for the layout.
//
// Errors: *TooLongError if a sequence does not fit, *IllegalError if the layout
// is none of this fleet.
func (s Static) Solve(ctx context.Context, p *Problem) (*Plan, error) {
	if s.Layout.Degree == 0 {
		return Adaptive{}.Solve(ctx, p)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return lineUp(p).solve(s.Layout)
}

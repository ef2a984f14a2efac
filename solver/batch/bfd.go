package batch

import (
	"cmp"
	"context"
)

// BFD packs the sequences by best fit decreasing into groups of the smallest size that
// holds the longest sequence. It balances tokens and does not look at times.
type BFD struct{}

// Name is "bfd".
func (BFD) Name() string { return "bfd" }

// Claims says that it is a baseline.
func (BFD) Claims() Claims {
	return Claims{
		Baseline: true,
		Doc:      "best fit decreasing over groups of the smallest degree that holds the longest sequence; unequal devices are taken as equal: the smallest memory holds for all, and the slowest group sets the pace",
	}
}

// Solve takes the smallest degree that works, one without recomputation if any
// does.
func (BFD) Solve(ctx context.Context, p *Problem) (*Plan, error) {
	line := lineUp(p)
	var why error
	for _, y := range line.layouts() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		plan, err := line.solve(y)
		if err == nil {
			return plan, nil
		}
		why = moreTelling(why, err)
	}
	return nil, cmp.Or(why, error(&IllegalError{Why: "there are no classes of groups"}))
}

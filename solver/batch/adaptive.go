package batch

import (
	"cmp"
	"context"
	"errors"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Adaptive uses groups of one size, the best for each batch (BatchAda of the FlexSP paper,
// arXiv 2412.01523).
type Adaptive struct{}

// Name is "adaptive".
func (Adaptive) Name() string { return "adaptive" }

// Claims says that it is a baseline.
func (Adaptive) Claims() Claims {
	return Claims{
		Baseline: true,
		Doc:      "groups of one degree, the best for each batch, packed by best fit decreasing; unequal devices are taken as equal: the smallest memory holds for all, and the slowest group sets the pace",
	}
}

// Solve tries every layout.
func (a Adaptive) Solve(ctx context.Context, p *Problem) (*Plan, error) {
	return a.shorter(ctx, p, never, nil)
}

// shorter is the plan if it takes less than so long, and may be nil if not: layouts that
// take at least that long are not tried. Without atLeast all are.
func (Adaptive) shorter(ctx context.Context, p *Problem, than units.Seconds, atLeast func(Layout) units.Seconds) (*Plan, error) {
	line := lineUp(p)
	var best *Plan
	var why error
	all := line.layouts()
	for _, y := range all {
		if err := ctx.Err(); err != nil {
			why = cmp.Or(why, err)
			break
		}
		if atLeast != nil && atLeast(y) >= than {
			continue
		}
		plan, err := line.solve(y)
		switch {
		case err != nil:
			why = moreTelling(why, err)
		case best == nil || plan.Time < best.Time:
			best = plan
		}
	}
	if best == nil && len(all) == 0 {
		why = &IllegalError{Why: "there are no classes of groups"}
	}
	if best == nil {
		return nil, why
	}
	return best, nil
}

// solve packs a batch for one layout.
func (l *lineup) solve(y Layout) (*Plan, error) {
	e, err := l.equal(y)
	if err != nil {
		return nil, err
	}
	return e.pack()
}

// moreTelling is the error that says more when no layout works: of sequences that are
// too long, the one whose group holds most.
func moreTelling(a, b error) error {
	var x, y *TooLongError
	switch {
	case a == nil:
		return b
	case !errors.As(b, &y):
		return a
	case errors.As(a, &x) && x.Most >= y.Most:
		return a
	}
	return b
}

package batch

import (
	"cmp"
	"context"
	"errors"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Adaptive is groups of one degree, chosen anew for every batch: the best layout
// of equal groups (BatchAda of the FlexSP paper).
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
		why = &IllegalError{"there are no classes of groups"}
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

// TuneStatic finds the layout with the least time of all batches together, which
// must be of one fleet: what somebody gets who tunes the degree once. A layout
// that cannot train one of the batches is out.
//
// Errors: as those of Solve, of the layout that comes farthest; that of ctx.
func TuneStatic(ctx context.Context, batches []*Problem) (Static, error) {
	if len(batches) == 0 {
		return Static{}, errors.New("no batches to tune the degree on")
	}
	var best Static
	var least units.Seconds
	var why error
	for _, y := range lineUp(batches[0]).layouts() {
		total, err := totalTime(ctx, y, batches)
		if err == nil && (best.Layout.Degree == 0 || total < least) {
			best.Layout, least = y, total
		}
		if err != nil {
			why = moreTelling(why, err)
		}
		if err := ctx.Err(); err != nil {
			return Static{}, err
		}
	}
	if best.Layout.Degree == 0 {
		return Static{}, why
	}
	return best, nil
}

// totalTime is the time of all batches with a layout.
func totalTime(ctx context.Context, y Layout, batches []*Problem) (units.Seconds, error) {
	var total units.Seconds
	for _, p := range batches {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		plan, err := lineUp(p).solve(y)
		if err != nil {
			return 0, err
		}
		total += plan.Time
	}
	return total, nil
}

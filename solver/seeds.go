package solver

import (
	"context"
	"errors"
	"fmt"
)

// solveEach runs strategies one after the other. Every layout that fits is a
// seed for those that come later: they may start from it, and need not simulate
// it again. A strategy without any layout on this cluster is skipped and told
// why; so is one that ctx left no time for, unless nothing fits before it.
func (p *Problem) solveEach(ctx context.Context, todo []Strategy, report func(Progress)) (found []attempt, skipped []string, err error) {
	p.seeds, p.base = []Result{}, nil
	defer p.sim.Until(nil)
	var late error
	for _, s := range todo {
		a := attempt{strategy: s}
		if a.Result, err = s.Solve(ctx, p, report); err == nil || errors.As(err, &a.memErr) {
			err = p.account(ctx, &a.Result)
		}
		var none *IllegalError
		switch {
		case errors.As(err, &none):
			a.illegal = none.Reason
			found = append(found, a)
			continue
		case err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
			late = fmt.Errorf("strategy %s: %w", s.Name(), err)
			skipped = append(skipped, late.Error())
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("strategy %s: %w", s.Name(), err)
		}
		found = append(found, a)
		if a.memErr == nil {
			p.seeds = append(p.seeds, a.Result)
			if s.Claims().Baseline && (p.base == nil || a.time() < p.base.Step.Time.Mid) {
				p.base = &a.Result
			}
		}
	}
	if len(p.seeds) == 0 && late != nil {
		return nil, nil, late
	}
	return found, skipped, nil
}

// account simulates a result in full, unless its strategy did or another one
// found the same layout. Where ctx is ended meanwhile, see simulate.
func (p *Problem) account(ctx context.Context, r *Result) (err error) {
	if r.Step != nil {
		return nil
	}
	if same := p.seedLike(r.Layout); same != nil {
		r.Step = same.Step
		return nil
	}
	r.Step, err = p.simulate(ctx, r.Layout)
	return err
}

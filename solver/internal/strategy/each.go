package strategy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// SolveEach runs strategies one after the other. Every layout that fits is a
// seed for those that come later: they may start from it, and need not simulate
// it again. A strategy without any layout on this cluster is skipped and told
// why; so is one that ctx left no time for. Where nothing fits before that, it is the
// error, beside what was found.
func SolveEach(ctx context.Context, p *Problem, todo []Strategy, report func(Progress)) (found []Attempt, skipped []string, err error) {
	p.Seeds, p.Base = []Result{}, nil
	defer p.Sim.Until(nil)
	var late error
	for _, s := range todo {
		a := Attempt{Strategy: s}
		if a.Result, err = s.Solve(ctx, p, report); err == nil || errors.As(err, &a.MemErr) {
			err = p.account(ctx, &a.Result)
		}
		var none *IllegalError
		switch {
		case errors.As(err, &none):
			a.Illegal = none.Reason
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
		if a.MemErr == nil {
			p.Seeds = append(p.Seeds, a.Result)
			if s.Claims().Baseline && (p.Base == nil || a.Time() < p.Base.Step.Time.Mid) {
				p.Base = &a.Result
			}
		}
	}
	if len(p.Seeds) == 0 && late != nil {
		return found, skipped, late
	}
	return found, skipped, nil
}

// account simulates a result in full, unless its strategy did or another one
// found the same layout. Where ctx is ended meanwhile, see Simulate.
func (p *Problem) account(ctx context.Context, r *Result) (err error) {
	if r.Step != nil {
		return nil
	}
	if same := p.SeedLike(r.Layout); same != nil {
		r.Step = same.Step
		return nil
	}
	r.Step, err = p.Simulate(ctx, r.Layout)
	return err
}

// Attempt is a strategy's result, which may not fit or not exist.
type Attempt struct {
	Result
	Strategy Strategy
	MemErr   *MemoryError
	Illegal  string // why it has no layout at all; Step is nil then
}

// Time is that of its step.
func (a *Attempt) Time() units.Seconds { return a.Step.Time.Mid }

// TimeKnown is the time of a layout that a strategy before this one returned.
func (p *Problem) TimeKnown(l costmodel.Layout) (units.Seconds, bool) {
	r := p.SeedLike(l)
	if r == nil || r.Step == nil {
		return 0, false
	}
	return r.Step.Time.Mid, true
}

// SeedLike is the result of an earlier strategy with this layout, or nil.
func (p *Problem) SeedLike(l costmodel.Layout) *Result {
	at := slices.IndexFunc(p.Seeds, func(r Result) bool { return SameLayout(r.Layout, l) })
	if at < 0 {
		return nil
	}
	return &p.Seeds[at]
}

// SameLayout says whether two layouts are one.
func SameLayout(a, b costmodel.Layout) bool {
	group := func(a, b costmodel.Group) bool { return slices.Equal(a, b) }
	shard := func(a, b costmodel.Shard) bool { return slices.Equal(a.Segments, b.Segments) }
	return a.Schedule == b.Schedule && slices.EqualFunc(a.Groups, b.Groups, group) && slices.EqualFunc(a.Shards, b.Shards, shard)
}

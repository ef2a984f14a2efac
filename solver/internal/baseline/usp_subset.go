package baseline

import (
	"context"

	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// USPSubset is what people do when equal shares let fast devices wait for slow
// ones, or a slow network all of them: usp on a part of the cluster, the best of those in
// parts.go. Ranks that are left out have neither tokens nor a share of the states.
type USPSubset struct{}

// Name implements strategy.Strategy.
func (USPSubset) Name() string { return "usp-subset" }

// Claims implements strategy.Strategy.
func (USPSubset) Claims() strategy.Claims {
	return strategy.Claims{Baseline: true, Doc: "usp on a part of the cluster: some device types, some nodes, or some devices of them"}
}

// Solve implements strategy.Strategy. Of a single device there is no part to choose, nor where
// no part alone has laws of its links, and the error is an *IllegalError.
func (s USPSubset) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	m, err := analytic.New(p)
	if err != nil {
		return strategy.Result{}, err
	}
	parts, unpriced := parts(p, m)
	switch {
	case len(parts) == 0 && unpriced != nil:
		return strategy.Result{}, strategy.Illegal(s.Name(), "no part of the cluster can be priced alone: "+unpriced.Error())
	case len(parts) == 0:
		return strategy.Result{}, strategy.Illegal(s.Name(), "it is a single device, so nothing is left out")
	}
	c := strategy.NewContest(ctx, p, s.Name(), report)
	for _, part := range parts {
		for _, x := range Meshes(p, part.ranks) {
			x.try(p, c, m, " on "+part.name)
		}
	}
	return c.Result()
}

package baseline

import (
	"context"
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Ring is context parallelism as frameworks run it today: an equal share for
// every rank whatever its speed, zigzag against the causal imbalance, blocks
// passed on from node to node, in the order in which strategies see them.
type Ring struct{}

// Name implements strategy.Strategy.
func (Ring) Name() string { return "ring" }

// Claims implements strategy.Strategy.
func (Ring) Claims() strategy.Claims {
	return strategy.Claims{Baseline: true, Doc: "equal shares in zigzag order, key-value blocks passed on from node to node"}
}

// Solve implements strategy.Strategy. A simulation of either order is all there is to it, which
// only a large ring does not end in time.
func (s Ring) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	n := len(p.Ranks)
	res := strategy.Result{Layout: p.EqualRing(), Evaluated: 1}
	step, err := p.Sim.Step(res.Layout, costmodel.SimOptions{Until: strategy.WhenEnded(ctx)})
	if err != nil {
		return res, err
	}
	res.Step = step
	res.Why = fmt.Sprintf("%s, plain ring", shares(n))
	if bad := p.Overfull(res.Layout); bad != nil {
		return res, bad
	}
	if last, ok := ownLast(res.Layout); ok && ctx.Err() == nil {
		turned, err := p.Sim.Step(last, costmodel.SimOptions{Until: strategy.WhenEnded(ctx)})
		switch {
		case err == nil:
			res.Evaluated++
			if turned.Time.Mid < step.Time.Mid*(1-orderGain) {
				step, res.Layout, res.Step, res.Why = turned, last, turned, res.Why+ownLastWhy
			}
		case ctx.Err() == nil:
			return res, err
		}
	}
	if report != nil {
		report(strategy.Progress{Strategy: s.Name(), Evaluated: res.Evaluated, Best: step.Time.Mid})
	}
	return res, nil
}

// shares says how the tokens are split; a single rank shares them with none.
func shares(ranks int) string {
	if ranks == 1 {
		return "all tokens on one rank"
	}
	return fmt.Sprintf("%d equal shares", ranks)
}

// Package hexiseq is the scheduler of HexiSeq (Liang et al. 2026, arXiv 2605.07569) as
// published, in three stages: the topology is clustered into candidate all-to-all groups
// (groups.go), the sequence is split across them by named policies (split.go), and inside
// each group coordinate descent finds the ranks' tokens and heads under their memory
// (descent.go). Candidates are scored by an analytic model (package analytic) and those that
// do not fit are filtered. The candidate set has every baseline's layout.
//
// The paper prints no formulas, so sizes of the candidate set, policies beyond two and the
// model are reconstructions. It picks by its model alone; here the best few are simulated
// and the fastest is taken, which can only help it.
package hexiseq

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// HexiSeq is the strategy.
type HexiSeq struct{}

// Name implements strategy.Strategy.
func (HexiSeq) Name() string { return "hexiseq" }

// Claims implements strategy.Strategy.
func (HexiSeq) Claims() strategy.Claims {
	return strategy.Claims{Published: true, Doc: "HexiSeq's three stages: candidate groups, a split across them by policy, coordinate descent inside"}
}

// finalists is how many of the best candidates are simulated, and finalWork how
// many steps of all ranks in all: the time that a simulation takes goes with
// ranks x groups.
const (
	finalists = 16
	finalWork = 96_000_000
)

// Solve implements strategy.Strategy.
func (s HexiSeq) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	c := strategy.NewContest(ctx, p, s.Name(), report)
	// The fastest first: it is the only one where time is up.
	fastest := func(a, b strategy.Result) int { return cmp.Compare(a.Step.Time.Mid, b.Step.Time.Mid) }
	for _, r := range slices.SortedStableFunc(slices.Values(p.Seeds), fastest) {
		c.Try(r.Layout, "the layout of a baseline: "+r.Why)
	}
	if c.Done() { // forming groups of tens of thousands of ranks takes seconds
		return c.Result()
	}
	m, err := analytic.New(p)
	if err != nil {
		return strategy.Result{}, err
	}
	all, err := candidates(ctx, p, m)
	if err != nil {
		return strategy.Result{}, err
	}
	finals(p, c, m, all)
	res, err := c.Result()
	res.Why += fmt.Sprintf("; %d of %d candidates fit memory by the analytic model", fitting(all), len(all))
	return res, err
}

// finals simulates the best few candidates, and none that the model finds
// hopeless against the best so far.
func finals(p *strategy.Problem, c *strategy.Contest, m *analytic.Model, all []candidate) {
	simulated, work := 0, 0
	for _, x := range all {
		if simulated == finalists || c.Done() || c.Time() > 0 && m.Step(x.cost.Seconds) > analytic.Hopeless*float64(c.Time()) {
			return
		}
		if seats := len(p.Ranks) * len(x.groups); work+seats <= finalWork {
			work += seats
			simulated++
			c.Try(x.layout(p), x.why())
		}
	}
}

// fitting is the number of candidates that fit: the paper's feasibility rate is
// this over all.
func fitting(all []candidate) int {
	n := 0
	for _, x := range all {
		if x.cost.Over <= 1 {
			n++
		}
	}
	return n
}

// candidate is a grouping with a split across groups and inside them.
type candidate struct {
	grouping
	policy string
	shares []analytic.Share // by group
	cost   analytic.Cost    // over of the group that fits worst, seconds of the slowest
}

func (x *candidate) why() string {
	if len(x.groups) == 1 {
		return "1 group, " + x.name + "; tokens and heads inside by coordinate descent"
	}
	return fmt.Sprintf("%s, %s; tokens across groups %s, tokens and heads inside by coordinate descent", units.Count(len(x.groups), "group"), x.name, x.policy)
}

func (x *candidate) layout(p *strategy.Problem) costmodel.Layout {
	tokens := make([]units.Tokens, len(p.Ranks))
	groups := make([]costmodel.Group, len(x.groups))
	for g, ranks := range x.groups {
		s := &x.shares[g]
		for i, r := range ranks {
			tokens[r] = s.Tokens[i]
			if s.Tokens[i] > 0 || s.Heads[i] > 0 {
				groups[g] = append(groups[g], costmodel.HeadShare{Rank: r, QHeads: s.Heads[i]})
			}
		}
	}
	return costmodel.ZigZag(tokens, groups)
}

// scheduler makes candidates for a problem.
type scheduler struct {
	p *strategy.Problem
	m *analytic.Model
	t *capability
}

// candidates scores all candidates and sorts them, best first. When ctx ends it
// returns those it has.
func candidates(ctx context.Context, p *strategy.Problem, m *analytic.Model) ([]candidate, error) {
	s := &scheduler{p, m, capabilityOf(p, m)}
	var all []candidate
	for _, x := range groupings(p) {
		crews, err := m.Crews(x.groups)
		if err != nil {
			return nil, err
		}
		var splits [][]units.Tokens
		for _, rule := range policies() {
			if ctx.Err() != nil {
				break
			}
			split := s.t.splitGroups(p, rule, x.groups)
			if slices.ContainsFunc(splits, func(o []units.Tokens) bool { return slices.Equal(o, split) }) {
				continue
			}
			splits = append(splits, split)
			c := candidate{grouping: x, policy: rule.name}
			s.settle(&c, crews, split)
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.cost.Over, b.cost.Over), cmp.Compare(a.cost.Seconds, b.cost.Seconds))
	})
	return all, nil
}

// settle is stage III of a candidate with a split: one descent for all groups that are alike
// and have the same tokens.
func (s *scheduler) settle(x *candidate, crews []*analytic.Crew, split []units.Tokens) {
	type class struct {
		c     *analytic.Crew
		total units.Tokens
	}
	type solved struct {
		share analytic.Share
		cost  analytic.Cost
	}
	x.shares, x.cost = make([]analytic.Share, len(split)), analytic.Cost{Over: 1}
	for g, n := range split {
		x.shares[g].Total = n
	}
	all := analytic.PassingOf(x.shares)
	known := map[class]solved{}
	for g, n := range split {
		k := class{crews[g], n}
		best, ok := known[k]
		if !ok {
			best.share, best.cost = descend(s.m.Pricer(crews[g], all.Without(n), len(s.p.Ranks)), s.p, s.t, n)
			known[k] = best
		}
		x.shares[g] = best.share
		x.cost.Over, x.cost.Seconds = max(x.cost.Over, best.cost.Over), max(x.cost.Seconds, best.cost.Seconds)
	}
}

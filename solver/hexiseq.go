package solver

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

// hexiSeq is the scheduler of HexiSeq (Liang et al. 2026, arXiv 2605.07569) as
// published, in three stages: the topology is clustered into candidate
// all-to-all groups (hexiseq_groups.go), the sequence is split across them by
// named policies (hexiseq_split.go), and inside each group coordinate descent
// finds the ranks' tokens and heads under their memory (hexiseq_descent.go).
// Candidates are scored by an analytic model (hexiseq_model.go) and those that
// do not fit are filtered. The candidate set has every baseline's layout.
//
// The paper prints no formulas, so sizes of the candidate set, policies beyond
// two and the model are reconstructions. It picks by its model alone; here the
// best few are simulated and the fastest is taken, which can only help it.
type hexiSeq struct{}

func (hexiSeq) Name() string { return "hexiseq" }

func (hexiSeq) Claims() strategy.Claims {
	return strategy.Claims{Published: true, Doc: "HexiSeq's three stages: candidate groups, a split across them by policy, coordinate descent inside"}
}

// finalists is how many of the best candidates are simulated, and finalWork how
// many steps of all ranks in all: the time that a simulation takes goes with
// ranks x groups.
const (
	finalists = 16
	finalWork = 96_000_000
)

// Solve implements Strategy.
func (s hexiSeq) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	c := strategy.NewContest(ctx, p, s.Name(), report)
	for _, r := range p.Seeds {
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
func finals(p *strategy.Problem, c *strategy.Contest, m *analytic.Model, all []hexiCandidate) {
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
func fitting(all []hexiCandidate) int {
	n := 0
	for _, x := range all {
		if x.cost.Over <= 1 {
			n++
		}
	}
	return n
}

// hexiCandidate is a grouping with a split across groups and inside them.
type hexiCandidate struct {
	grouping
	policy string
	shares []analytic.Share // by group
	cost   analytic.Cost    // over of the group that fits worst, seconds of the slowest
}

func (x *hexiCandidate) why() string {
	if len(x.groups) == 1 {
		return "1 group, " + x.name + "; tokens and heads inside by coordinate descent"
	}
	return fmt.Sprintf("%d groups, %s; tokens across groups %s, tokens and heads inside by coordinate descent", len(x.groups), x.name, x.policy)
}

func (x *hexiCandidate) layout(p *strategy.Problem) costmodel.Layout {
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

// candidates scores all candidates and sorts them, best first. When ctx ends it
// returns those it has.
func candidates(ctx context.Context, p *strategy.Problem, m *analytic.Model) ([]hexiCandidate, error) {
	t := capabilityOf(p, m)
	var all []hexiCandidate
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
			split := t.splitGroups(p, rule, x.groups)
			if slices.ContainsFunc(splits, func(o []units.Tokens) bool { return slices.Equal(o, split) }) {
				continue
			}
			splits = append(splits, split)
			all = append(all, candidate(p, m, x, crews, rule, split, t))
		}
	}
	slices.SortStableFunc(all, func(a, b hexiCandidate) int {
		return cmp.Or(cmp.Compare(a.cost.Over, b.cost.Over), cmp.Compare(a.cost.Seconds, b.cost.Seconds))
	})
	return all, nil
}

// candidate is stage III of a grouping and split: one descent for all groups
// that are alike and have the same tokens.
func candidate(p *strategy.Problem, m *analytic.Model, x grouping, crews []*analytic.Crew, rule policy, split []units.Tokens, t *capability) hexiCandidate {
	type class struct {
		c     *analytic.Crew
		total units.Tokens
	}
	type solved struct {
		share analytic.Share
		cost  analytic.Cost
	}
	out := hexiCandidate{grouping: x, policy: rule.name, shares: make([]analytic.Share, len(split)), cost: analytic.Cost{Over: 1}}
	for g, n := range split {
		out.shares[g].Total = n
	}
	all := analytic.PassingOf(out.shares)
	known := map[class]solved{}
	for g, n := range split {
		k := class{crews[g], n}
		s, ok := known[k]
		if !ok {
			s.share, s.cost = descend(m.Pricer(crews[g], all.Without(n), len(p.Ranks)), p, t, n)
			known[k] = s
		}
		out.shares[g] = s.share
		out.cost.Over, out.cost.Seconds = max(out.cost.Over, s.cost.Over), max(out.cost.Seconds, s.cost.Seconds)
	}
	return out
}

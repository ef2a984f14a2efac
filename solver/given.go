package solver

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/evenkeel"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Given is a layout that the caller states instead of having one searched: the one that
// is run today, or one that no search would return.
type Given struct {
	// Shares are the relative shares of the tokens by rank; 0 is no tokens.
	Shares []int
	// QHeads are the query heads by rank of a single all-to-all group of all ranks. If empty
	// the layout is ring attention in rank order, each rank computing all heads.
	QHeads []int
	// Schedule must be one that the layout can have, see Suits.
	costmodel.Schedule
}

// ParseGiven reads the shares and heads of a command line: "5:3" and "10:6", or
// no heads. Errors begin with the name of the flag.
func ParseGiven(shares, heads string) (Given, error) {
	var g Given
	var err error
	if g.Shares, err = parseColons(shares); err != nil {
		return g, fmt.Errorf("shares %w", err)
	}
	if slices.Max(g.Shares) == 0 {
		return g, fmt.Errorf("shares %q: nobody gets a token", shares)
	}
	if heads == "" {
		return g, nil
	}
	if g.QHeads, err = parseColons(heads); err != nil {
		return g, fmt.Errorf("q-heads %w", err)
	}
	return g, nil
}

// mostShare keeps sums of shares far from overflow.
const mostShare = 1 << 30

func parseColons(s string) ([]int, error) {
	var list []int
	for part := range strings.SplitSeq(s, ":") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 || n > mostShare {
			return nil, fmt.Errorf("%q: %q: want a number from 0 to %d for every rank, such as 5:3", s, part, mostShare)
		}
		list = append(list, n)
	}
	return list, nil
}

// String is what was asked for, in words.
func (g Given) String() string {
	text := "shares " + colons(g.Shares)
	if g.QHeads == nil {
		text += ", a ring in rank order"
	} else {
		text += ", one all-to-all group with heads " + colons(g.QHeads)
	}
	if g.HeadChunks > 1 {
		text += fmt.Sprintf(" in %d chunks", g.HeadChunks)
	}
	if g.TwoBatch {
		text += ", two micro-batches at once"
	}
	if rings := g.InTurns(); rings != "" {
		text += ", their " + rings + " in turn"
	}
	return text
}

func colons(list []int) string {
	parts := make([]string, len(list))
	for i, n := range list {
		parts[i] = strconv.Itoa(n)
	}
	return strings.Join(parts, ":")
}

// SolveGiven is Solve with a layout that was asked for in the place of the
// searched one: priced and checked like any other, and compared with the
// baselines. The plan's strategy is called given.
//
// Errors: those of Solve, and shares or heads that do not suit the problem.
func SolveGiven(ctx context.Context, p *Problem, g Given, report func(Progress)) (*Plan, error) {
	layout, err := g.layout(p)
	if err != nil {
		return nil, err
	}
	todo, err := chooseStrategies(nil)
	if err != nil {
		return nil, err
	}
	todo = slices.DeleteFunc(todo, func(s strategy.Strategy) bool { return s.Name() == evenkeel.Name || s.Name() == evenkeel.SureName })
	in, err := p.inOrder()
	if err != nil {
		return nil, err
	}
	todo = append(todo, fixed{layout: in.ofListed(layout), why: "as asked for: " + g.String()})
	if no := p.room().proveInfeasible(); no != nil {
		return nil, no
	}
	bound, err := LowerBound(p)
	if err != nil {
		return nil, err
	}
	found, skipped, err := p.solveEach(ctx, in, todo, report)
	if err != nil {
		return nil, err
	}
	in.listAll(found)
	wanted := *p
	wanted.Take = fixed{}.Name()
	return wanted.pick(found, skipped, bound)
}

// Suits says what keeps the layout from being one of a problem.
func (g Given) Suits(p *Problem) error {
	_, err := g.layout(p)
	return err
}

// layout lays the tokens out in zigzag order, as every strategy does.
func (g Given) layout(p *Problem) (costmodel.Layout, error) {
	n, model := len(p.posed.Ranks), p.Job.Model
	if len(g.Shares) != n || g.QHeads != nil && len(g.QHeads) != n {
		return costmodel.Layout{}, fmt.Errorf("%s: the cluster has %d ranks, and each needs a number, even if it is 0", g, n)
	}
	tokens := dealShares(p.Job.SeqLen, p.posed.Block, g.Shares)
	groups := costmodel.Singles(tokens, model.QHeads)
	if g.QHeads != nil {
		groups = []costmodel.Group{nil}
		for r, heads := range g.QHeads {
			if heads > 0 || tokens[r] > 0 {
				groups[0] = append(groups[0], costmodel.HeadShare{Rank: r, QHeads: heads})
			}
		}
		if err := p.posed.Exchangeable(ranksOf(groups[0])); err != nil {
			return costmodel.Layout{}, err
		}
	}
	if n := max(1, p.Job.Accumulate); g.TwoBatch && n < 2 {
		return costmodel.Layout{}, fmt.Errorf("%s: with %d micro-batch in a step: it takes two", g, n)
	}
	l := costmodel.ZigZag(tokens, groups)
	l.Schedule = g.Schedule
	if err := l.Validate(p.Job.SeqLen, n, model.QHeads); err != nil {
		return costmodel.Layout{}, fmt.Errorf("%s: %w", g, err)
	}
	return l, nil
}

func ranksOf(g costmodel.Group) []int {
	var ranks []int
	for _, m := range g {
		ranks = append(ranks, m.Rank)
	}
	return ranks
}

// dealShares splits tokens in proportion to shares, in whole blocks but for the
// last rank with a share, which has the rest.
func dealShares(total, block units.Tokens, shares []int) []units.Tokens {
	sum, last := 0, 0
	for r, s := range shares {
		if sum += s; s > 0 {
			last = r
		}
	}
	split := make([]units.Tokens, len(shares))
	blocks, upTo, dealt := float64(total)/float64(block), 0, units.Tokens(0)
	for r, s := range shares[:last] {
		// Where the shares up to here end, rounded: what rounding takes from one
		// goes to the next.
		upTo += s
		end := min(total, block*units.Tokens(math.Round(blocks*float64(upTo)/float64(sum))))
		split[r], dealt = end-dealt, end
	}
	split[last] = total - dealt
	return split
}

// fixed is a strategy that has nothing to decide.
type fixed struct {
	layout costmodel.Layout
	why    string
}

// Name implements Strategy.
func (fixed) Name() string { return "given" }

// Claims implements Strategy.
func (fixed) Claims() strategy.Claims {
	return strategy.Claims{Doc: "a layout that somebody asked for, priced and checked as it is"}
}

// Solve implements Strategy.
func (s fixed) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	c := strategy.NewContest(ctx, p, s.Name(), report)
	c.Insist()
	c.Try(s.layout, s.why)
	return c.Result()
}

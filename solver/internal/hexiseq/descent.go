package hexiseq

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// descent is stage III for one crew: the members' tokens and heads, one at a time.
type descent struct {
	p     *strategy.Problem
	price *analytic.Pricer
	left  int // evaluations
	now   analytic.Share
	cost  analytic.Cost
}

// descentWork bounds the evaluations of one descent times members.
const descentWork = 12_000

// descend starts from shares in proportion to what members can do and moves
// tokens or heads from one member to another while that helps, in steps that
// halve down to a block and a head: a local optimum.
func descend(price *analytic.Pricer, p *strategy.Problem, t *capability, total units.Tokens) (analytic.Share, analytic.Cost) {
	d := &descent{p: p, price: price, left: descentWork / len(price.Crew.Types), now: firstShare(p, price.Crew, t, total)}
	d.cost = price.Cost(d.now)
	for step := d.largestStep(); step >= p.Block && d.mixed(); step /= 2 {
		for d.pass(step) {
		}
	}
	return d.now, d.cost
}

// firstShare is in proportion to compute, heads by largest remainder.
func firstShare(p *strategy.Problem, c *analytic.Crew, t *capability, total units.Tokens) analytic.Share {
	weights := make([]float64, len(c.Types))
	for i, d := range c.Types {
		weights[i] = t.compute[d]
	}
	s := analytic.Share{Total: total, Tokens: proportional(total, min(p.Block, max(1, total/units.Tokens(len(weights)))), weights)}
	for _, h := range proportional(units.Tokens(p.Job.Model.QHeads), 1, weights) {
		s.Heads = append(s.Heads, int(h))
	}
	return s
}

// mixed says whether members differ, so that other shares than equal ones can
// help: in their devices, or in a number of heads that does not divide.
func (d *descent) mixed() bool {
	same := func(x []int) bool { return slices.Min(x) == slices.Max(x) }
	return len(d.price.Crew.Types) > 1 && !(same(d.price.Crew.Types) && same(d.now.Heads))
}

func (d *descent) largestStep() units.Tokens {
	step := d.p.Block
	for step*16 <= d.now.Total {
		step *= 2
	}
	return step
}

// pass tries every move of tokens by a step, of a head and of the query heads of
// a key-value head, once. It says whether any helped.
func (d *descent) pass(step units.Tokens) bool {
	helped := false
	each := d.p.Job.Model.QHeads / d.p.Job.Model.KVHeads
	for _, from := range d.kinds() {
		for _, to := range d.kinds() {
			if from == to || d.left <= 0 {
				continue
			}
			helped = d.move(from, to, step, 0) || helped
			helped = d.move(from, to, 0, 1) || helped
			if each > 1 {
				helped = d.move(from, to, 0, each) || helped
			}
		}
	}
	return helped && d.left > 0
}

// kinds lists a member of each kind: of one device with one share. Members that
// are alike take turns, since the one that gave or took is no longer alike.
func (d *descent) kinds() []int {
	type kind struct {
		dev, node, heads int
		tokens           units.Tokens
	}
	seen := map[kind]bool{}
	var first []int
	for i, dev := range d.price.Crew.Types {
		k := kind{dev, d.price.Crew.Nodes[i], d.now.Heads[i], d.now.Tokens[i]}
		if !seen[k] {
			seen[k] = true
			first = append(first, i)
		}
	}
	return first
}

// move gives tokens and heads of one member to another if that helps.
func (d *descent) move(from, to int, tokens units.Tokens, heads int) bool {
	s := d.now
	tokens, heads = min(tokens, s.Tokens[from]), min(heads, s.Heads[from])
	empty := s.Tokens[from]-tokens == 0 && s.Heads[from]-heads == 0
	if tokens == 0 && heads == 0 || empty {
		return false
	}
	d.left--
	s.Tokens[from], s.Tokens[to] = s.Tokens[from]-tokens, s.Tokens[to]+tokens
	s.Heads[from], s.Heads[to] = s.Heads[from]-heads, s.Heads[to]+heads
	if c := d.price.Cost(s); c.Less(d.cost) {
		d.cost = c
		return true
	}
	s.Tokens[from], s.Tokens[to] = s.Tokens[from]+tokens, s.Tokens[to]-tokens
	s.Heads[from], s.Heads[to] = s.Heads[from]+heads, s.Heads[to]-heads
	return false
}

// memoryOfStates is a rank's share of nothing but the states.
func memoryOfStates(ranks int) costmodel.MemoryShare { return costmodel.MemoryShare{Ranks: ranks} }

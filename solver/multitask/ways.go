package multitask

import (
	"cmp"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
)

// turn is the devices of a pool by node, in the order in which they are taken.
type turn struct {
	pool  int
	nodes [][]int
}

// inTurn is the order in which devices are taken by those who take all for equal.
func (p *Problem) inTurn() []turn {
	if p.turns == nil {
		for i, pool := range p.Pools {
			p.turns = append(p.turns, turn{i, pool.Ranks})
		}
	}
	return p.turns
}

// ways are the problem, and the same with devices taken in other orders: with those of another
// pool first and the others behind it in turn, in either direction, of three pools in all orders;
// and with the last nodes of each pool first. No rule tells which is best: who takes fast devices
// first leaves slow ones to others, or waits for both kinds. With fast devices first alone,
// sequential and distmm-mt took up to 1.6 times as long.
func (p *Problem) ways() []*Problem {
	if p.inTurns != nil {
		return p.inTurns
	}
	p.inTurns = []*Problem{p}
	add := func(turns []turn) {
		same := func(x *Problem) bool { return slices.EqualFunc(x.inTurn(), turns, turn.equal) }
		if !slices.ContainsFunc(p.inTurns, same) {
			p.inTurns = append(p.inTurns, &Problem{Costs: p.Costs, turns: turns})
		}
	}
	for _, way := range [][]turn{p.inTurn(), reversed(p.inTurn())} {
		for i := range way {
			turns := slices.Concat(way[i:], way[:i])
			add(turns)
			turns = slices.Clone(turns)
			for k := range turns {
				turns[k].nodes = reversed(turns[k].nodes)
			}
			add(turns)
		}
	}
	return p.inTurns
}

func (t turn) equal(o turn) bool {
	return t.pool == o.pool && slices.EqualFunc(t.nodes, o.nodes, slices.Equal)
}

func reversed[T any](all []T) []T {
	out := slices.Clone(all)
	slices.Reverse(out)
	return out
}

// fastestWay is the best plan that a strategy makes in any of the ways; those without a plan are
// passed over.
func (p *Problem) fastestWay(plan func(*Problem) (*multitask.Plan, error)) (best *multitask.Plan, why error) {
	for _, way := range p.ways() {
		now, err := plan(way)
		if err == nil && (best == nil || p.better(now, best)) {
			best = now
		}
		why = cmp.Or(why, err)
	}
	if best != nil {
		return best, nil
	}
	return nil, why
}

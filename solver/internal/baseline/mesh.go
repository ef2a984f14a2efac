package baseline

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Mesh is a placement of cp x hp ranks.
type Mesh struct {
	cp, hp  int
	strided bool // ring neighbours are neighbours in rank order
	Groups  [][]int
}

// Name says what the mesh is.
func (x Mesh) Name() string {
	switch {
	case x.hp == 1:
		return fmt.Sprintf("ring %d, no all-to-all", x.cp)
	case x.cp == 1:
		return fmt.Sprintf("all-to-all %d, no ring", x.hp)
	case x.strided:
		return fmt.Sprintf("ring %d x all-to-all %d, ring among neighbours", x.cp, x.hp)
	}
	return fmt.Sprintf("ring %d x all-to-all %d, all-to-all among neighbours", x.cp, x.hp)
}

// Meshes lists every legal mesh of some ranks: hp divides their number and the
// number of heads, and the all-to-all has a law. Those of few groups, which are
// cheap to simulate, come first.
func Meshes(p *strategy.Problem, ranks []int) []Mesh {
	n := len(ranks)
	var all []Mesh
	for hp := min(n, p.Job.Model.QHeads); hp > 0; hp-- {
		if n%hp != 0 || p.Job.Model.QHeads%hp != 0 {
			continue
		}
		for _, strided := range []bool{false, true} {
			same := strided && (hp == 1 || hp == n) // one placement
			if x := meshOf(ranks, hp, strided); !same && p.AllExchangeable(x.Groups) {
				all = append(all, x)
			}
		}
	}
	return all
}

func meshOf(ranks []int, hp int, strided bool) Mesh {
	cp := len(ranks) / hp
	x := Mesh{cp: cp, hp: hp, strided: strided, Groups: make([][]int, cp)}
	for i, r := range ranks {
		g := i / hp
		if strided {
			g = i % cp
		}
		x.Groups[g] = append(x.Groups[g], r)
	}
	return x
}

// try judges a mesh, unless it is costly to simulate and the analytic model finds it far
// slower than the best so far.
func (x Mesh) try(p *strategy.Problem, c *strategy.Contest, m *analytic.Model, on string) {
	if c.Done() {
		return
	}
	l := EqualShares(p, x.Groups)
	if c.Time() > 0 && strategy.Costly(l) {
		if _, known := p.TimeKnown(l); !known && m.Layout(l) > analytic.Hopeless*float64(c.Time()) {
			return
		}
	}
	why := fmt.Sprintf("%s%s; equal shares", x.Name(), on)
	t := c.Try(l, why)
	// Gradients hide behind no more than the own block, so that half the time is the least.
	if last, ok := ownLast(l); ok && t > 0 && t/2 < c.Time() {
		c.TryUnder(last, why+ownLastWhy, t*(1-orderGain))
	}
}

// ownLast is a layout with own blocks last in the backward pass: the other order in which people
// run rings today. ring-flash-attention, which USP's own code rests on, computes a rank's own block
// first in both passes; TransformerEngine, and with it Megatron-LM, goes backward in the reversed
// order, the own block last. It is false where there is no ring, or where a simulation takes so
// long that the order is not worth it: rings of that many ranks are far slower than others.
func ownLast(l costmodel.Layout) (costmodel.Layout, bool) {
	if len(l.Groups) < 2 || strategy.Costly(l) {
		return l, false
	}
	l.OwnLast = true
	return l, true
}

// orderGain is the least gain for which own blocks come last. Below it, which is far less than laws
// are known to, a layout keeps the order of the zero Schedule, so that plans that are as good as
// equal do not change to and fro between two orders.
const orderGain = 5e-3

const ownLastWhy = "; backward own blocks come last"

// EqualShares gives the ranks of groups of one size equal tokens, and equal
// heads inside each group; the size divides the number of heads.
func EqualShares(p *strategy.Problem, groups [][]int) costmodel.Layout {
	split := strategy.EqualSplit(p.Job.SeqLen, len(groups)*len(groups[0]))
	tokens := make([]units.Tokens, len(p.Ranks))
	all := make([]costmodel.Group, len(groups))
	next := 0
	for g, ranks := range groups {
		for _, r := range ranks {
			tokens[r] = split[next]
			next++
			all[g] = append(all[g], costmodel.HeadShare{Rank: r, QHeads: p.Job.Model.QHeads / len(ranks)})
		}
	}
	return costmodel.ZigZag(tokens, all)
}

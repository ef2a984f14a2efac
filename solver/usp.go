package solver

import (
	"context"
	"fmt"

	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// usp is unified sequence parallelism (Fang and Zhao 2024): a mesh of cp x hp
// ranks, all-to-all among hp of them, a ring over cp such groups, equal shares
// for all. It takes the best pair of factors, in either placement: neighbours
// share an all-to-all, or a ring.
type usp struct{}

func (usp) Name() string { return "usp" }

func (usp) Claims() strategy.Claims {
	return strategy.Claims{Baseline: true, Doc: "a mesh of ring x all-to-all in equal shares, at the best pair of factors and placement"}
}

// Solve implements Strategy.
func (s usp) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	m, err := analytic.New(p)
	if err != nil {
		return strategy.Result{}, err
	}
	c := strategy.NewContest(ctx, p, s.Name(), report)
	for _, x := range meshes(p, p.AllRanks()) {
		x.try(p, c, m, "")
	}
	return c.Result()
}

// mesh is a placement of cp x hp ranks.
type mesh struct {
	cp, hp  int
	strided bool // ring neighbours are neighbours in rank order
	groups  [][]int
}

// name says what the mesh is.
func (x mesh) name() string {
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

// meshes lists every legal mesh of some ranks: hp divides their number and the
// number of heads, and the all-to-all has a law. Those of few groups, which are
// cheap to simulate, come first.
func meshes(p *strategy.Problem, ranks []int) []mesh {
	n := len(ranks)
	var all []mesh
	for hp := min(n, p.Job.Model.QHeads); hp > 0; hp-- {
		if n%hp != 0 || p.Job.Model.QHeads%hp != 0 {
			continue
		}
		for _, strided := range []bool{false, true} {
			same := strided && (hp == 1 || hp == n) // one placement
			if x := meshOf(ranks, hp, strided); !same && p.AllExchangeable(x.groups) {
				all = append(all, x)
			}
		}
	}
	return all
}

func meshOf(ranks []int, hp int, strided bool) mesh {
	cp := len(ranks) / hp
	x := mesh{cp: cp, hp: hp, strided: strided, groups: make([][]int, cp)}
	for i, r := range ranks {
		g := i / hp
		if strided {
			g = i % cp
		}
		x.groups[g] = append(x.groups[g], r)
	}
	return x
}

// try judges a mesh, unless it is costly to simulate and the analytic model finds it far
// slower than the best so far.
func (x mesh) try(p *strategy.Problem, c *strategy.Contest, m *analytic.Model, on string) {
	if c.Done() {
		return
	}
	l := equalShares(p, x.groups)
	if c.Time() > 0 && strategy.Costly(l) {
		if _, known := p.TimeKnown(l); !known && m.Layout(l) > analytic.Hopeless*float64(c.Time()) {
			return
		}
	}
	c.Try(l, fmt.Sprintf("%s%s; equal shares", x.name(), on))
}

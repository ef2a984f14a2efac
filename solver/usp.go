package solver

import (
	"context"
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
)

// usp is unified sequence parallelism (Fang and Zhao 2024): a mesh of cp x hp
// ranks, all-to-all among hp of them, a ring over cp such groups, equal shares
// for all. It takes the best pair of factors, in either placement: neighbours
// share an all-to-all, or a ring.
type usp struct{}

func (usp) Name() string { return "usp" }

func (usp) Claims() Claims {
	return Claims{Baseline: true, Doc: "a mesh of ring x all-to-all in equal shares, at the best pair of factors and placement"}
}

// Solve implements Strategy.
func (s usp) Solve(ctx context.Context, p *Problem, report func(Progress)) (Result, error) {
	c := newContest(ctx, p, s.Name(), report)
	m, err := newPerfModel(p)
	if err != nil {
		return Result{}, err
	}
	for _, x := range p.meshes(countTo(len(p.ranks))) {
		c.tryMesh(m, x, "")
	}
	return c.result()
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
func (p *Problem) meshes(ranks []int) []mesh {
	n := len(ranks)
	var all []mesh
	for hp := min(n, p.Job.Model.QHeads); hp > 0; hp-- {
		if n%hp != 0 || p.Job.Model.QHeads%hp != 0 {
			continue
		}
		for _, strided := range []bool{false, true} {
			same := strided && (hp == 1 || hp == n) // one placement
			if x := meshOf(ranks, hp, strided); !same && p.allExchangeable(x.groups) {
				all = append(all, x)
			}
		}
	}
	return all
}

func (p *Problem) allExchangeable(groups [][]int) bool {
	known := map[string]bool{} // a link either has a law or has not
	for _, g := range groups {
		if len(g) < 2 {
			continue
		}
		link := p.linkAmong(g)
		ok, seen := known[link]
		if !seen {
			ok = p.exchangeable(g) == nil
			known[link] = ok
		}
		if !ok {
			return false
		}
	}
	return true
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

// tryMesh judges a mesh, unless it is costly to simulate and the analytic model
// finds it far slower than the best so far.
func (c *contest) tryMesh(m *perfModel, x mesh, on string) {
	if c.done() {
		return
	}
	l := c.p.equalShares(x.groups)
	why := fmt.Sprintf("%s%s; equal shares", x.name(), on)
	if c.time > 0 && costly(l) {
		if _, known := c.p.timeKnown(l); !known && m.layout(l) > hopeless*float64(c.time) {
			c.all++
			return
		}
	}
	c.try(l, why)
}

// hopeless is how many times slower than the best the analytic model must find a
// layout for it not to be simulated. The model leaves out the queues at ports,
// which only make a layout slower, and is within this factor of the simulator on
// equal shares (TestModelOfEqualShares).
const hopeless = 1.2

// costlySteps is how many steps of a rank make a simulation costly: some
// milliseconds. A mesh of 256 ranks or fewer never has as many.
const costlySteps = 200_000

// costly says whether simulating a layout is worth a look at the model first.
func costly(l costmodel.Layout) bool {
	seats := 0
	for _, g := range l.Groups {
		seats += len(g)
	}
	return seats*len(l.Groups) > costlySteps
}

package multitask

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
)

// width is a number of devices that a module may have where all have as many samples, and
// what one of its layers takes there.
type width struct {
	n    int
	time units.Seconds
}

// equalWidths lists the numbers of devices that divide a module's batch, as far as a layer takes
// less on them than on fewer. It is how those see a cluster who take all its devices for equal
// ones: each takes as long as the slowest would.
func (p *Problem) equalWidths(module int) []width {
	var all []width
	order := p.compact()
	for n := 1; n <= len(order); n++ {
		batch := p.Tasks.Modules[module].Batch
		if batch%n != 0 {
			continue
		}
		if t := slowest(p.Costs, module, order[:n], batch/n); len(all) == 0 || t < all[len(all)-1].time {
			all = append(all, width{n, t})
		}
	}
	return all
}

// slowest is what a layer takes on ranks if every device were of the slowest type.
func slowest(c *multitask.Costs, module int, ranks []int, samples int) units.Seconds {
	worst := units.Seconds(0)
	for p := range c.Pools {
		worst = max(worst, c.Alone(module, p, samples))
	}
	shares := make([]int, len(ranks))
	for i := range shares {
		shares[i] = samples
	}
	own := units.Seconds(0)
	for _, r := range ranks {
		own = max(own, c.Alone(module, c.PoolOf(r), samples))
	}
	return worst - own + c.Layer(module, ranks, shares)
}

// compact lists all ranks node by node, devices of one type together.
func (p *Problem) compact() []int {
	var all []int
	for _, t := range p.inTurn() {
		all = append(all, slices.Concat(t.nodes...)...)
	}
	return all
}

// fastest is the width with the least time.
func fastest(all []width) width { return all[len(all)-1] }

// next is the place of the next width after one; -1 if there is none.
func next(all []width, n int) int {
	return slices.IndexFunc(all, func(w width) bool { return w.n > n })
}

// timeAt is what a layer takes on n devices, which is one of the widths.
func timeAt(all []width, n int) units.Seconds {
	return all[slices.IndexFunc(all, func(w width) bool { return w.n == n })].time
}

// levels sorts the modules by the longest chain of modules that each waits for.
func levels(c *multitask.Costs) [][]int {
	depth := make([]int, len(c.Tasks.Modules))
	var all [][]int
	for _, m := range c.Tasks.Order() {
		for _, need := range c.Needs[m] {
			depth[m] = max(depth[m], depth[need]+1)
		}
		for len(all) <= depth[m] {
			all = append(all, nil)
		}
		all[depth[m]] = append(all[depth[m]], m)
	}
	for _, level := range all {
		slices.Sort(level)
	}
	return all
}

// inverse is the continuous number of devices on which n layers take so long, by equation
// (11) of Spindle: between two widths it is linear in the time. Below one device it is the
// share of one device's time.
func inverse(all []width, layers int, time units.Seconds) float64 {
	each := float64(time) / float64(layers)
	if first := all[0]; each >= float64(first.time) {
		return float64(first.n) * float64(first.time) / each
	}
	for i := 1; i < len(all); i++ {
		if lo, hi := all[i-1], all[i]; each >= float64(hi.time) {
			a, b := float64(lo.time), float64(hi.time)
			return ((each-b)*float64(lo.n) + (a-each)*float64(hi.n)) / (a - b)
		}
	}
	return math.Inf(1) // no number of devices is as fast
}

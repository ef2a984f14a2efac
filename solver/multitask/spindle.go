package multitask

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Spindle is the planner of Spindle (Wang et al., ASPLOS 2025): level by level it spreads
// the devices over the modules so that all would end together, if devices and layers could
// be divided at will (section 3), splits every module over the two nearest numbers of
// devices that may be, and packs the parts into waves (algorithm 1).
//
// It takes all devices for equal. Of the orders in which parts are proposed it has the
// published one, widest first.
type Spindle struct{}

// Name implements Strategy.
func (Spindle) Name() string { return "spindle" }

// Claims implements Strategy.
func (Spindle) Claims() Claims {
	return Claims{Published: true, Doc: "waves of modules side by side, each on about as many devices as lets all end together (Spindle)"}
}

// Solve implements Strategy.
func (Spindle) Solve(_ context.Context, p *Problem) (*multitask.Plan, error) {
	return p.fastestWay(func(p *Problem) (*multitask.Plan, error) { return p.waves(widestFirst) })
}

// part is so many layers of a module on so many devices (a tuple of Spindle).
type part struct {
	module, n, layers int
}

// before says which of two parts is proposed first, by what each has left to do.
type before func(w *packer, a, b part) int

// widestFirst proposes the part on the most devices first, of those the longest.
func widestFirst(w *packer, a, b part) int {
	return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(w.length(b), w.length(a)), cmp.Compare(a.module, b.module))
}

// longestFirst proposes a part of the module that has most left to do first.
func longestFirst(w *packer, a, b part) int {
	return cmp.Or(cmp.Compare(w.left(b.module), w.left(a.module)), cmp.Compare(b.n, a.n), cmp.Compare(a.module, b.module))
}

// waves plans all levels, one after the other.
func (p *Problem) waves(first before) (*multitask.Plan, error) {
	w := &packer{c: p.Costs, first: first, free: newFree(p), was: make([][]int, len(p.Tasks.Modules)), widths: p.equal()}
	plan := &multitask.Plan{Waves: true}
	for _, level := range levels(p.Costs) {
		w.parts = w.parts[:0]
		time := p.together(level)
		for _, m := range level {
			w.parts = append(w.parts, split(w.widths[m], m, p.Tasks.Modules[m].Layers, time)...)
		}
		w.pack(plan)
	}
	return plan, p.Simulate(plan)
}

// Continuous is the time in which all modules end, level by level, if devices and layers
// can be divided at will: the C* that Spindle aims at. It is no bound: see Bound.
func (p *Problem) Continuous() units.Seconds {
	sum := units.Seconds(0)
	for _, level := range levels(p.Costs) {
		sum += p.together(level)
	}
	return sum
}

// together is the time in which all modules of a level end if devices and layers can be
// divided at will (algorithm 2 of Spindle, by bisection).
func (p *Problem) together(level []int) units.Seconds {
	need := func(time units.Seconds) float64 {
		sum := 0.0
		for _, m := range level {
			sum += inverse(p.equal()[m], p.Tasks.Modules[m].Layers, time)
		}
		return sum
	}
	lo, hi := units.Seconds(0), units.Seconds(0)
	for _, m := range level {
		layers, widths := units.Seconds(p.Tasks.Modules[m].Layers), p.equal()[m]
		lo, hi = max(lo, layers*fastest(widths).time), hi+layers*widths[0].time
	}
	devices := float64(p.Devices())
	if need(lo) <= devices {
		return lo
	}
	for hi-lo > 1e-8*hi {
		if mid := (lo + hi) / 2; need(mid) < devices {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}

// split divides a module between the two nearest widths so that it takes the time (bi-point
// discretisation): the layers on either are rounded.
func split(all []width, module, layers int, time units.Seconds) []part {
	n := inverse(all, layers, time)
	at := slices.IndexFunc(all, func(w width) bool { return float64(w.n) >= n })
	switch {
	case at < 0:
		return []part{{module, fastest(all).n, layers}}
	case at == 0:
		return []part{{module, all[0].n, layers}}
	}
	lo, hi := all[at-1], all[at]
	wide := int(math.Round((float64(lo.time)*float64(layers) - float64(time)) / float64(lo.time-hi.time)))
	wide = min(max(wide, 0), layers)
	var parts []part
	if wide > 0 {
		parts = append(parts, part{module, hi.n, wide})
	}
	if wide < layers {
		parts = append(parts, part{module, lo.n, layers - wide})
	}
	return parts
}

// packer packs parts into waves.
type packer struct {
	c      *multitask.Costs
	widths [][]width // by module
	first  before
	parts  []part
	free   *free
	was    [][]int // ranks that a module ran on last
	wave   int
}

// length is the seconds that a part takes.
func (w *packer) length(x part) units.Seconds {
	return units.Seconds(x.layers) * timeAt(w.widths[x.module], x.n)
}

// left is the seconds that the parts of a module take that are in no wave yet.
func (w *packer) left(module int) units.Seconds {
	sum := units.Seconds(0)
	for _, x := range w.parts {
		if x.module == module {
			sum += w.length(x)
		}
	}
	return sum
}

// pack appends waves to a plan until no part is left.
func (w *packer) pack(plan *multitask.Plan) {
	for len(w.parts) > 0 {
		chosen := w.propose()
		wide := w.extend(chosen)
		span := w.align(chosen, wide)
		w.commit(plan, chosen, wide, span)
		w.wave++
	}
}

// propose picks parts that fit side by side, one of a module at most, and returns their
// places.
func (w *packer) propose() []int {
	slices.SortStableFunc(w.parts, func(a, b part) int { return w.first(w, a, b) })
	var chosen []int
	left := w.c.Devices()
	for i, x := range w.parts {
		if x.n <= left && !slices.ContainsFunc(chosen, func(j int) bool { return w.parts[j].module == x.module }) {
			chosen, left = append(chosen, i), left-x.n
		}
	}
	return chosen
}

// extend gives devices that are left to chosen parts, whichever module has most left to do
// first, and returns how many each has.
func (w *packer) extend(chosen []int) []int {
	left, wide := w.c.Devices(), make([]int, len(chosen))
	for i, at := range chosen {
		wide[i] = w.parts[at].n
		left -= wide[i]
	}
	for {
		best, to := -1, 0
		for i, at := range chosen {
			m := w.parts[at].module
			k := next(w.widths[m], wide[i])
			if k < 0 || w.widths[m][k].n-wide[i] > left {
				continue
			}
			if best < 0 || w.left(m) > w.left(w.parts[chosen[best]].module) {
				best, to = i, w.widths[m][k].n
			}
		}
		if best < 0 {
			return wide
		}
		left -= to - wide[best]
		wide[best] = to
	}
}

// align is how long a wave lasts: about as long as the shortest of its parts, in whole
// layers of all.
func (w *packer) align(chosen, wide []int) units.Seconds {
	shortest := units.Seconds(math.Inf(1))
	for i, at := range chosen {
		x := w.parts[at]
		shortest = min(shortest, units.Seconds(x.layers)*timeAt(w.widths[x.module], wide[i]))
	}
	span := units.Seconds(0)
	for i, at := range chosen {
		x := w.parts[at]
		each := timeAt(w.widths[x.module], wide[i])
		layers := min(x.layers, max(1, int(math.Round(float64(shortest/each)))))
		span = max(span, units.Seconds(layers)*each)
	}
	return span
}

// commit appends a wave to the plan and takes its layers off the parts.
func (w *packer) commit(plan *multitask.Plan, chosen, wide []int, span units.Seconds) {
	const rounding = 1e-9
	w.free.reset()
	for i, at := range chosen {
		x := &w.parts[at]
		each := timeAt(w.widths[x.module], wide[i])
		layers := min(x.layers, int(float64(span/each)*(1+rounding)))
		ranks := w.free.take(nil, w.free.any(wide[i]), w.was[x.module])
		w.was[x.module] = ranks
		plan.Runs = append(plan.Runs, multitask.Run{Module: x.module, Layers: layers, Ranks: ranks, Samples: w.c.EqualShares(x.module, len(ranks)), Wave: w.wave})
		x.layers -= layers
	}
	w.parts = slices.DeleteFunc(w.parts, func(x part) bool { return x.layers == 0 })
}

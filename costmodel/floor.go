package costmodel

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Factor is what a law multiplies its body by at every shape.
func (l *Law) Factor() float64 {
	if l.Scale == 0 {
		return 1
	}
	return l.Scale
}

// Least is a floor of the correction's logarithm over all shapes whose axes lie
// between those of lo and hi. Between nodes the field is linear along each axis,
// so that its least is at a node or an end of the box; beyond them it decays
// towards none.
func (f *Field) Least(lo, hi op.Shape) float64 {
	if f == nil {
		return 0
	}
	var room [8 * maxFieldAxes]cell // for what most boxes have
	var places [maxFieldAxes][]cell
	list, beyond := room[:0], false
	for i := range f.Axes {
		from := len(list)
		a, b := f.coord(i, lo), f.coord(i, hi)
		first, out := f.Axes[i].locate(a)
		last, over := f.Axes[i].locate(b)
		if list = append(list, first); last != first {
			list = append(list, last)
		}
		for n, x := range f.Axes[i].Nodes {
			if a < x && x < b {
				list = append(list, cell{n, 0})
			}
		}
		places[i] = list[from:]
		beyond = beyond || out > 0 || over > 0
	}
	var chosen [maxFieldAxes]cell
	least := f.lowest(places[:len(f.Axes)], &chosen, 0)
	if beyond {
		least = min(least, 0)
	}
	return least * f.Step
}

// lowest is the least of the field over every combination of places, those of the
// axes before `axis` chosen.
func (f *Field) lowest(places [][]cell, chosen *[maxFieldAxes]cell, axis int) float64 {
	if axis == len(places) {
		return f.blend(chosen[:axis], 0, 0)
	}
	least := math.Inf(1)
	for _, c := range places[axis] {
		chosen[axis] = c
		least = min(least, f.lowest(places, chosen, axis+1))
	}
	return least
}

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
	var places [maxFieldAxes][]cell
	beyond := false
	for i := range f.Axes {
		a, b := f.coord(i, lo), f.coord(i, hi)
		var out, over float64
		places[i] = make([]cell, 2, 2+len(f.Axes[i].Nodes))
		places[i][0], out = f.Axes[i].locate(a)
		places[i][1], over = f.Axes[i].locate(b)
		for n, x := range f.Axes[i].Nodes {
			if a < x && x < b {
				places[i] = append(places[i], cell{n, 0})
			}
		}
		beyond = beyond || out > 0 || over > 0
	}
	least := f.lowest(places[:len(f.Axes)], nil)
	if beyond {
		least = min(least, 0)
	}
	return least * f.Step
}

// lowest is the least of the field over every combination of places.
func (f *Field) lowest(places [][]cell, chosen []cell) float64 {
	if len(chosen) == len(places) {
		return f.blend(chosen, 0, 0)
	}
	least := math.Inf(1)
	for _, c := range places[len(chosen)] {
		least = min(least, f.lowest(places, append(chosen, c)))
	}
	return least
}

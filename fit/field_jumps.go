package fit

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/stats"
)

// A jump between two lengths too near to each other for two nodes is believed where so many pairs
// of points, that differ in nothing else, differ the same way by more than noise makes them.
const (
	fewestTwins  = 5
	clearlyApart = 5 // in standard deviations of a point
)

// splitAtJumps gives both lengths beside a jump a node of the first lattice, if they have none.
func (l *correction) splitAtJumps(nodes [][]float64, axes []string, places [][]float64) {
	if a := slices.Index(axes, "q_len"); a >= 0 {
		nodes[a] = withNodes(nodes[a], l.jumps(a, axes, places))
	}
}

// jumps are places on an axis, octaves, of neighbours nearer than two nodes between which the
// correction jumps, as where a library changes its kernel: one node for both is off at either.
func (l *correction) jumps(axis int, axes []string, places [][]float64) []float64 {
	thin := l.shape.thinning(axes)[axis]
	of := map[float64]map[string]float64{} // what the core leaves, by place and by all other places
	for i, x := range places {
		rest := slices.Clone(x)
		rest[axis] = 0
		if of[x[axis]] == nil {
			of[x[axis]] = map[string]float64{}
		}
		of[x[axis]][fmt.Sprint(rest)] = l.y[i]
	}
	var jumps []float64
	at := slices.Sorted(maps.Keys(of))
	for i := range len(at) - 1 {
		if at[i+1]-at[i] >= thin {
			continue
		}
		var logs []float64
		rising := 0
		for rest, y := range of[at[i]] {
			if z, ok := of[at[i+1]][rest]; ok {
				logs = append(logs, math.Abs(z-y))
				if z > y {
					rising++
				}
			}
		}
		if n := len(logs); n >= fewestTwins && stats.Median(logs) > clearlyApart*l.shape.noise && max(rising, n-rising)*10 >= 9*n {
			jumps = append(jumps, at[i], at[i+1])
		}
	}
	return jumps
}

// withNodes are nodes with others among them, as far as there may be so many.
func withNodes(nodes, others []float64) []float64 {
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(nodes, others))))
	if len(all) > mostNodesAnAxis {
		return nodes
	}
	return all
}

package groupcost

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
)

// unequalHeads is one all-to-all of devices of several types whose heads follow
// their speed in attention, all devices of a pool having as many; nil where the
// model's heads cannot be dealt so.
func (g *group) unequalHeads(ranks int) *mechanism {
	best := dealHeads(g.job.Model.QHeads, g.kind.uses, g.b.perHead)
	if best == nil {
		return nil
	}
	m := &mechanism{heads: ranks, qHeads: best, groups: make([]costmodel.Group, 1)}
	for r := range ranks {
		m.groups[0] = append(m.groups[0], costmodel.HeadShare{Rank: r, QHeads: best[g.poolOf(r)]})
	}
	return m
}

// dealHeads is how many heads, one or more, each device of a pool gets, by pool, where
// all heads are dealt and the slowest pool takes the least time: slow is what a device of
// each takes over a head. Of several ways alike it is the one that gives the first pool
// the fewest, then the second, and so on. Nil where there is none.
//
// Trying every way takes, of 128 heads on six pools, 250 million steps, and each further
// pool some twenty times as many; this takes pools·heads² at most.
func dealHeads(heads int, uses []int, slow []float64) []int {
	rest := leastTimes(heads, uses, slow)
	least := rest[0][heads]
	if math.IsInf(least, 1) {
		return nil
	}
	dealt := make([]int, len(uses))
	for p, u := range uses {
		if u == 0 {
			continue
		}
		h := 1
		for max(float64(h)*slow[p], rest[p+1][heads-h*u]) > least {
			h++
		}
		dealt[p], heads = h, heads-h*u
	}
	return dealt
}

// leastTimes is the least that the slowest of pool p and those behind it takes over so
// many heads, by p and heads; infinite where they cannot be dealt.
func leastTimes(heads int, uses []int, slow []float64) [][]float64 {
	times := make([][]float64, len(uses)+1)
	last := make([]float64, heads+1)
	for left := 1; left <= heads; left++ {
		last[left] = math.Inf(1)
	}
	times[len(uses)] = last
	for p := len(uses) - 1; p >= 0; p-- {
		if times[p] = times[p+1]; uses[p] == 0 {
			continue
		}
		times[p] = make([]float64, heads+1)
		for left := range times[p] {
			least := math.Inf(1)
			// A pool alone takes longer with every head: beyond least nothing is better.
			for h := 1; h*uses[p] <= left && float64(h)*slow[p] < least; h++ {
				least = min(least, max(float64(h)*slow[p], times[p+1][left-h*uses[p]]))
			}
			times[p][left] = least
		}
	}
	return times
}

package batch

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// begun is groups that a chunk begins with, and their time on buckets.
type begun struct {
	shares []share
	time   units.Seconds
}

// begins offers all starts as plans, and keeps those that do on buckets too, the
// best first, for the engine.
func (c *chunk) begins(a *alike) {
	for i, l := range a.levels {
		c.homogeneous(a, i)
		for _, levels := range mixtures(a, c.longest(a), i) {
			c.fill(a, levels, byTime)
		}
		c.fill(a, slices.Repeat([]int{i}, l.most), byTime)
	}
	slices.SortStableFunc(c.starts, func(x, y begun) int { return cmp.Compare(x.time, y.time) })
}

// homogeneous is the start of the released code: groups of one level, as many as
// there are devices for; buckets in falling order, each sequence to the group of the
// fewest tokens.
func (c *chunk) homogeneous(a *alike, i int) {
	c.fill(a, slices.Repeat([]int{i}, a.levels[i].most), byTokens)
}

// mixtures are one, two and more groups of the level that the longest sequence
// needs, and a lower level for the devices that are left.
func mixtures(a *alike, longest, lower int) [][]int {
	var all [][]int
	if lower >= longest {
		return nil
	}
	for n := 1; ; n++ {
		left := a.devices - n*a.levels[longest].degree
		rest := left / a.levels[lower].degree
		if rest < 1 || n > a.levels[longest].most {
			return all
		}
		all = append(all, append(slices.Repeat([]int{longest}, n), slices.Repeat([]int{lower}, rest)...))
	}
}

// longest is the level that the longest sequence needs.
func (c *chunk) longest(a *alike) int { return a.holds(c.buckets[len(c.buckets)-1].bound) }

// order says which group gets a sequence: the one of the least value. load and end
// are what the group would have then; never is a group that does not get it.
type order func(load, bound, most units.Tokens, end units.Seconds) float64

// byTokens is the released code's order, the fewest tokens whether or not they fit.
func byTokens(load, bound, _ units.Tokens, _ units.Seconds) float64 { return float64(load - bound) }

// byTime prefers the group that would end first, of those with memory left.
func byTime(load, _, most units.Tokens, end units.Seconds) float64 {
	if load > most {
		return math.Inf(1)
	}
	return float64(end)
}

// fill gives sequences, longest first, to groups of the levels and offers the
// outcome: as a plan where memory does on real lengths, as a start where it does on
// buckets as well.
func (c *chunk) fill(a *alike, levels []int, by order) {
	shares := make([]share, len(levels))
	loads, times := make([]units.Tokens, len(levels)), make([]units.Seconds, len(levels))
	for g, i := range levels {
		shares[g].level, times[g] = i, a.levels[i].base
	}
	price := make([]units.Seconds, len(a.levels))
	for q := len(c.buckets) - 1; q >= 0; q-- {
		bound := c.buckets[q].bound
		for i := range price {
			price[i] = a.time(i, bound)
		}
		for _, k := range c.buckets[q].members {
			best, least := -1, math.Inf(1)
			for g, i := range levels {
				if v := by(loads[g]+bound, bound, a.levels[i].cap, times[g]+price[i]); v < least {
					best, least = g, v
				}
			}
			if best < 0 {
				return
			}
			shares[best].sequences = append(shares[best].sequences, k)
			loads[best] += bound
			times[best] += price[levels[best]]
		}
	}
	c.keep(a, shares, loads, times)
}

// keep offers filled groups as a plan, and as a start.
func (c *chunk) keep(a *alike, shares []share, loads []units.Tokens, times []units.Seconds) {
	s := begun{shares: shares}
	for g, v := range shares {
		l := a.levels[v.level]
		if tokensOf(a.p.Lengths, v.sequences) > l.cap {
			return
		}
		if len(v.sequences) > 0 {
			s.time = max(s.time, times[g])
		}
		if loads[g] > l.cap {
			s.time = never
		}
	}
	c.offer(a, shares)
	if s.time < never {
		c.starts = append(c.starts, s)
	}
}

package evenkeel

import (
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// pace is a group's time as an affine function of its tokens: fixed + perToken s.
type pace struct{ fixed, perToken float64 }

// level splits tokens over kinds of groups so that all groups finish at the same
// time theta, but for those that are full or would not have begun by then. A
// group's tokens never fall with theta, so bisection finds it. It returns the
// tokens of one group of each kind, nil if the caps are too low in all.
func level(total float64, paces []pace, counts, caps []float64) (each []float64, theta float64) {
	lo, hi := 0.0, 0.0
	room := func(i int) float64 {
		if caps == nil {
			return total
		}
		return min(total, caps[i])
	}
	each = make([]float64, len(paces))
	fill := func(theta float64) float64 {
		all := 0.0
		for i, c := range paces {
			each[i] = min(room(i), max(0, (theta-c.fixed)/c.perToken))
			all += counts[i] * each[i]
		}
		return all
	}
	for i, c := range paces {
		hi = max(hi, c.fixed+c.perToken*room(i))
	}
	if fill(hi) < total*(1-1e-12) {
		return nil, 0
	}
	for range levelSteps {
		if mid := (lo + hi) / 2; fill(mid) < total {
			lo = mid
		} else {
			hi = mid
		}
	}
	if all := fill(hi); all > total { // the last hair, lest rounding deal more than there is
		for i := range each {
			each[i] *= total / all
		}
	}
	return each, hi
}

// levelSteps of bisection leave a relative error of 1e-15.
const levelSteps = 50

// dealByWeight splits tokens in proportion to weights, in whole blocks but for
// the rest: rounded down, and what is left to who, working at the rate of its
// weight, is done first.
func dealByWeight(total, block units.Tokens, weights []float64) []units.Tokens {
	all := 0.0
	for _, w := range weights {
		all += w
	}
	split, left := make([]units.Tokens, len(weights)), total
	for i, w := range weights {
		// A hair below a whole number of blocks is that number.
		split[i] = min(left, units.Tokens(math.Floor(w/all*float64(total/block)+1e-9))*block)
		left -= split[i]
	}
	for left > 0 {
		n, first, end := min(left, block), 0, math.Inf(1)
		for i, w := range weights {
			if done := float64(split[i]+n) / w; done < end {
				first, end = i, done
			}
		}
		split[first] += n
		left -= n
	}
	return split
}

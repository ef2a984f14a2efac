package solver

import (
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// pace is a rank's time as an affine function of its tokens: fixed + perToken s.
type pace struct{ fixed, perToken float64 }

// level is the tokens that a rank finishes by time theta, at most room.
func (c pace) level(theta float64, room units.Tokens) float64 {
	return min(float64(room), max(0, (theta-c.fixed)/c.perToken))
}

// waterfill splits tokens so that all ranks finish at the same time theta, but
// for those that are full or would not have begun by then: a rank's tokens
// never fall with theta, so bisection finds it. It deals whole blocks and returns nil if the rooms are too small in all.
func waterfill(total, block units.Tokens, paces []pace, rooms []units.Tokens) (split []units.Tokens, theta float64) {
	if sum(rooms) < total {
		return nil, 0
	}
	held := func(theta float64) float64 {
		n := 0.0
		for r, c := range paces {
			n += c.level(theta, rooms[r])
		}
		return n
	}
	lo, hi := 0.0, 0.0
	for r, c := range paces {
		hi = max(hi, c.fixed+c.perToken*float64(min(rooms[r], total)))
	}
	for range 100 {
		if mid := (lo + hi) / 2; held(mid) < float64(total) {
			lo = mid
		} else {
			hi = mid
		}
	}
	shares := make([]float64, len(paces))
	for r, c := range paces {
		shares[r] = c.level(hi, rooms[r])
	}
	return deal(total, block, shares, paces, rooms), hi
}

// deal rounds shares down to whole blocks and gives what is left, a block at a
// time, to the rank with room that is then done first: of all roundings up of
// the same shares the one that ends earliest. By largest remainder a slow rank
// could get a block that takes it four times as long as a fast one.
func deal(total, block units.Tokens, shares []float64, paces []pace, rooms []units.Tokens) []units.Tokens {
	split := make([]units.Tokens, len(shares))
	left := total
	for r, s := range shares {
		// A hair below a whole number of blocks is that number.
		split[r] = min(left, rooms[r], units.Tokens(math.Floor(s/float64(block)+1e-9))*block)
		left -= split[r]
	}
	for left > 0 {
		first, end := -1, math.Inf(1)
		for r, c := range paces {
			n := min(block, left, rooms[r]-split[r])
			if done := c.fixed + c.perToken*float64(split[r]+n); n > 0 && done < end {
				first, end = r, done
			}
		}
		n := min(block, left, rooms[first]-split[first])
		split[first] += n
		left -= n
	}
	return split
}

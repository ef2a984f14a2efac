package workload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Bin counts the sequences of Low to High tokens, both inclusive. Weight is their number
// or share.
type Bin struct {
	Low    units.Tokens
	High   units.Tokens
	Weight float64
}

// Histogram is a distribution of lengths by ranges, in rising order.
type Histogram struct{ Bins []Bin }

// Validate reports the first bin that is empty, overlaps the one before or has
// no weight.
func (h *Histogram) Validate() error {
	total, last := 0.0, units.Tokens(0)
	for i, b := range h.Bins {
		switch {
		case b.Low < 1 || b.High > MaxLength:
			return fmt.Errorf("bin %d: %d to %d tokens: want 1 to %d", i+1, int64(b.Low), int64(b.High), int64(MaxLength))
		case b.High < b.Low:
			return fmt.Errorf("bin %d: %d to %d tokens: its end is before its beginning", i+1, int64(b.Low), int64(b.High))
		case b.Low <= last:
			return fmt.Errorf("bin %d: begins at %d tokens, and the one before ends at %d: bins must rise and not overlap", i+1, int64(b.Low), int64(last))
		case !(b.Weight >= 0) || math.IsInf(b.Weight, 0):
			return fmt.Errorf("bin %d: count %v: want a number of 0 or more", i+1, b.Weight)
		}
		last = b.High
		total += b.Weight
	}
	if !(total > 0) || math.IsInf(total, 0) {
		return fmt.Errorf("%d bins with %v lengths in all: want at least one", len(h.Bins), total)
	}
	return nil
}

// Draw draws n lengths from a valid histogram: a bin by its weight, and a length
// in it so that the share of longer ones falls as a power of the length, as it
// does in text: a straight line between the known points on logarithmic scales.
// At the end of the last bin no share is known; it goes on as steeply as the bin
// before, and is cut off there.
func (h *Histogram) Draw(n int, seed uint64) []units.Tokens {
	return draws(n, h.drawer(seed))
}

func (h *Histogram) drawer(seed uint64) func() units.Tokens {
	bins := slices.DeleteFunc(slices.Clone(h.Bins), func(b Bin) bool { return b.Weight == 0 })
	total := 0.0
	for _, b := range bins {
		total += b.Weight
	}
	sums := make([]float64, len(bins))
	falls := make([]float64, len(bins))
	sum := 0.0
	for i, b := range bins {
		before := sum
		sum += b.Weight
		sums[i] = sum
		falls[i] = math.Log((total-before)/(total-sum)) / math.Log(b.ratio())
		if i == len(bins)-1 {
			falls[i] = falls[max(0, i-1)]
		}
	}
	g := newPCG64(seed)
	return func() units.Tokens {
		u := g.float64() * total
		i := min(len(sums)-1, sort.Search(len(sums), func(i int) bool { return sums[i] > u }))
		return bins[i].at(g.float64(), falls[i])
	}
}

// ratio of the bin's ends.
func (b Bin) ratio() float64 { return float64(b.High+1) / float64(b.Low) }

// at is the length that a share u of the bin's are below, where the share of
// longer ones falls as length^-fall.
func (b Bin) at(u, fall float64) units.Tokens {
	grown := math.Pow(b.ratio(), u) // the limit of no fall
	if fall > 1e-9 && !math.IsInf(fall, 0) {
		grown = math.Pow(1-u*(1-math.Pow(b.ratio(), -fall)), -1/fall)
	}
	return min(max(units.Tokens(float64(b.Low)*grown), b.Low), b.High)
}

// sorted returns the bins in rising order; files list them in any.
func (h *Histogram) sorted() *Histogram {
	slices.SortStableFunc(h.Bins, func(a, b Bin) int { return cmp.Compare(a.Low, b.Low) })
	return h
}

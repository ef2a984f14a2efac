package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// bootstrapStream is the second word of the PCG seed. It only has to be fixed, so
// that one seed names one stream for ever; the value is 2^64 divided by the
// golden ratio.
const bootstrapStream = 0x9e3779b97f4a7c15

// Bootstrap draws n samples of len(x) from x with replacement, applies statistic
// to each and returns the n values in ascending order. The slice given to
// statistic is reused: it may be sorted in place but not kept.
// It panics if x is empty, n < 1, or statistic returns NaN or an infinity.
func Bootstrap(x []float64, statistic func([]float64) float64, n int, seed uint64) []float64 {
	draw := make([]float64, len(x))
	return BootstrapIndices(len(x), func(index []int) float64 {
		for i, j := range index {
			draw[i] = x[j]
		}
		return statistic(draw)
	}, n, seed)
}

// BootstrapIndices is [Bootstrap] for data that is not a slice of numbers: the
// statistic gets size indices drawn from 0..size-1 with replacement, and applies
// them to rows of a table, to whole runs, or to whatever must be drawn together.
// It panics if size < 1, n < 1, or statistic returns NaN or an infinity.
func BootstrapIndices(size int, statistic func(index []int) float64, n int, seed uint64) []float64 {
	if size < 1 || n < 1 {
		panic(fmt.Sprintf("stats: bootstrap of %d values, %d replicates: want at least one of each", size, n))
	}
	rng := rand.New(rand.NewPCG(seed, bootstrapStream))
	index := make([]int, size)
	replicates := make([]float64, n)
	for r := range replicates {
		for i := range index {
			index[i] = rng.IntN(size)
		}
		replicates[r] = statistic(index)
	}
	mustBeFinite("bootstrap replicate", replicates)
	slices.Sort(replicates)
	return replicates
}

// BootstrapInterval returns the percentile interval of sorted replicates: the
// (1-confidence)/2 and (1+confidence)/2 quantiles. The confidence is nominal: for
// small samples the percentile bootstrap covers a little less. With fewer than
// 2/(1-confidence) replicates the ends are little better than the extremes.
// It panics if replicates are empty, not finite or not ascending, or confidence is
// outside (0, 1).
func BootstrapInterval(replicates []float64, confidence float64) Interval {
	mustBeReplicates("BootstrapInterval", replicates, confidence)
	tail := (1 - confidence) / 2
	return Interval{Lo: quantileSorted(replicates, tail), Hi: quantileSorted(replicates, 1-tail)}
}

// UpperBound returns the one-sided percentile bound of sorted replicates: the
// value below which the statistic lies with the given confidence.
// It panics as [BootstrapInterval] does.
func UpperBound(replicates []float64, confidence float64) float64 {
	mustBeReplicates("UpperBound", replicates, confidence)
	return quantileSorted(replicates, confidence)
}

func mustBeReplicates(fn string, replicates []float64, confidence float64) {
	mustBeInside(fn, "confidence", confidence)
	if len(replicates) == 0 {
		panic("stats: " + fn + ": no replicates")
	}
	mustBeFinite("replicate", replicates)
	if !slices.IsSorted(replicates) {
		panic("stats: " + fn + ": replicates are not in ascending order; they come from Bootstrap")
	}
}

// floorPositive keeps a divisor away from zero.
func floorPositive(v float64) float64 { return math.Max(v, math.SmallestNonzeroFloat64) }

package stats

import (
	"fmt"
	"math"
)

// LeastBlocks is the least number of blocks that Regret needs.
const LeastBlocks = 6

// regretReplicates are so many that the bound hardly depends on the seed. Few
// values make it sit on an edge: the median of five is the largest of them in
// 5.8 % of all samples, and 200 replicates take it for less than 5 % in every
// third case.
const regretReplicates = 2000

// RegretOf is how much longer the chosen option takes than the best one, as a log ratio;
// 0 if it is the best.
type RegretOf struct {
	// Split is the regret with the best option taken from the odd blocks (the second, the
	// fourth, ...) and the times from the even ones. Taking both from the same noisy blocks
	// would make the best option look too good (winner's curse). Split errs downward where
	// the odd blocks pick an option that is not the best.
	Split      float64
	SplitUpper float64 // upper 95 % bootstrap bound over the even blocks
	// Unsplit uses all blocks for both. The two values bracket the truth.
	Unsplit      float64
	UnsplitUpper float64
	Best         int // option, of the odd blocks
	UnsplitBest  int
	// Noise is the relative standard deviation (a robust estimate) of an option's times
	// between blocks after removing what all options of a block have in common; the median
	// over options.
	Noise float64
}

// Regret estimates the regret of the chosen option from blocks, each with the times of all
// options measured one after the other, so that what slows a whole block down cancels. seed
// is that of the bootstrap.
//
// It panics if there are fewer than [LeastBlocks] blocks, if blocks differ in
// length, if chosen is none of the options, or if a time is not positive.
func Regret(blocks [][]float64, chosen int, seed uint64) RegretOf {
	return regretOf(blocks, chosen, regretReplicates, seed)
}

func regretOf(blocks [][]float64, chosen, replicates int, seed uint64) RegretOf {
	logs := relativeLogs(blocks, chosen)
	var odd, even [][]float64
	for i, b := range logs {
		if i%2 == 1 {
			odd = append(odd, b)
		} else {
			even = append(even, b)
		}
	}
	r := RegretOf{Noise: noiseOf(logs), Best: fastest(odd), UnsplitBest: fastest(logs)}
	r.Split, r.SplitUpper = slower(even, chosen, r.Best, replicates, seed)
	r.Unsplit, r.UnsplitUpper = slower(logs, chosen, r.UnsplitBest, replicates, seed)
	return r
}

// relativeLogs are the logarithms of times over their block's geometric mean.
func relativeLogs(blocks [][]float64, chosen int) [][]float64 {
	if len(blocks) < LeastBlocks || chosen < 0 || chosen >= len(blocks[0]) {
		panic(fmt.Sprintf("stats: Regret of option %d in %d blocks: want at least %d, and one of their options", chosen, len(blocks), LeastBlocks))
	}
	logs := make([][]float64, len(blocks))
	for i, b := range blocks {
		if len(b) != len(blocks[0]) {
			panic(fmt.Sprintf("stats: Regret: block %d has %d options, block 0 has %d", i, len(b), len(blocks[0])))
		}
		mean := 0.0
		for _, t := range b {
			if !(t > 0) || math.IsInf(t, 0) {
				panic(fmt.Sprintf("stats: Regret: a time of %v in block %d", t, i))
			}
			logs[i] = append(logs[i], math.Log(t))
			mean += math.Log(t) / float64(len(b))
		}
		for k := range logs[i] {
			logs[i][k] -= mean
		}
	}
	return logs
}

// optionOf is one option's values in all blocks.
func optionOf(logs [][]float64, option int) []float64 {
	x := make([]float64, len(logs))
	for i, b := range logs {
		x[i] = b[option]
	}
	return x
}

// fastest is the option with the smallest median, the first of equals.
func fastest(logs [][]float64) int {
	best, least := 0, math.Inf(1)
	for k := range logs[0] {
		if m := Median(optionOf(logs, k)); m < least {
			best, least = k, m
		}
	}
	return best
}

// slower is the median over blocks of how much longer one option takes than
// another, with its upper 95 % bound.
func slower(logs [][]float64, option, than, replicates int, seed uint64) (median, upper float64) {
	d := make([]float64, len(logs))
	for i, b := range logs {
		d[i] = b[option] - b[than]
	}
	return Median(d), UpperBound(Bootstrap(d, Median, replicates, seed), 0.95)
}

// noiseOf is the typical scatter of an option between blocks.
func noiseOf(logs [][]float64) float64 {
	var scatter []float64
	for k := range logs[0] {
		scatter = append(scatter, MAD(optionOf(logs, k)))
	}
	return Median(scatter)
}

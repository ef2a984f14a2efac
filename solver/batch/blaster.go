package batch

import (
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// chunks cuts sequences, in their order, into exactly m parts that follow one
// another, so that the largest part has the fewest tokens: equation (23) of
// FlexSP (arXiv 2412.01523). Instead of its dynamic programme the tokens of the
// largest part are bisected, each guess judged by filling parts one after the
// other, which is exact as well. Where that takes fewer parts, the one of the most
// sequences is halved. Nil if there are fewer sequences than parts.
func chunks(lengths []units.Tokens, order []int, m int) [][]int {
	if len(order) < m || m < 1 {
		return nil
	}
	var lo, hi units.Tokens // the largest part has more than lo tokens, at most hi
	for _, k := range order {
		lo, hi = max(lo, lengths[k]-1), hi+lengths[k]
	}
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		if filled(lengths, order, mid) <= m {
			hi = mid
		} else {
			lo = mid
		}
	}
	parts := fill(lengths, order, hi)
	for len(parts) < m {
		i := 0
		for j := range parts {
			if len(parts[j]) > len(parts[i]) {
				i = j
			}
		}
		half := len(parts[i]) / 2
		parts = slices.Insert(parts, i+1, parts[i][half:])
		parts[i] = parts[i][:half]
	}
	return parts
}

// fill makes parts of at most so many tokens, each as full as the next sequence
// allows.
func fill(lengths []units.Tokens, order []int, most units.Tokens) [][]int {
	var parts [][]int
	begin, tokens := 0, units.Tokens(0)
	for i, k := range order {
		if tokens+lengths[k] > most && i > begin {
			parts = append(parts, order[begin:i:i])
			begin, tokens = i, 0
		}
		tokens += lengths[k]
	}
	return append(parts, order[begin:])
}

// filled is how many parts fill makes.
func filled(lengths []units.Tokens, order []int, most units.Tokens) int {
	parts, tokens := 1, units.Tokens(0)
	for _, k := range order {
		if tokens+lengths[k] > most && tokens > 0 {
			parts, tokens = parts+1, 0
		}
		tokens += lengths[k]
	}
	return parts
}

// fits reports whether no part has more tokens than the devices hold.
func fits(lengths []units.Tokens, parts [][]int, capacity units.Tokens) bool {
	return !slices.ContainsFunc(parts, func(part []int) bool { return tokensOf(lengths, part) > capacity })
}

func tokensOf(lengths []units.Tokens, sequences []int) units.Tokens {
	var sum units.Tokens
	for _, k := range sequences {
		sum += lengths[k]
	}
	return sum
}

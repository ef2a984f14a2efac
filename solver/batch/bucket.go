package batch

import (
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// bucket is sequences that count as long as the longest of them.
type bucket struct {
	bound   units.Tokens
	members []int // longest first
}

// buckets groups the sequences of a micro-batch (longest first) into the given
// number of buckets of least tokens added: equation (16) of FlexSP. As in its
// released code there are more of them until the bucketed tokens are at most half
// way between the tokens and what the devices hold, so that rounding up does not
// cost the micro-batch its place. As many buckets as sequences are sequences.
func buckets(lengths []units.Tokens, descending []int, want int, capacity units.Tokens) []bucket {
	var tokens units.Tokens
	for _, k := range descending {
		tokens += lengths[k]
	}
	if len(descending) > want {
		b := newBucketing(lengths, descending)
		for b.count < min(want, len(b.values)) || tokens+b.added() > (tokens+capacity)/2 && b.count < len(b.values) {
			b.more()
		}
		if b.count < len(descending) {
			return b.cut(descending)
		}
	}
	all := make([]bucket, len(descending))
	for i, k := range descending {
		all[len(all)-1-i] = bucket{lengths[k], []int{k}}
	}
	return all
}

// bucketing is the dynamic programme over the distinct lengths, rising; sequences
// of equal length are never worth separating. Entry k is about the first k values.
type bucketing struct {
	values  []units.Tokens
	members []int          // how many sequences are among the first k values
	tokens  []units.Tokens // of those
	count   int            // buckets so far
	err     []float64      // least tokens added with count buckets
	last    [][]int        // by bucket count: where the last bucket begins
}

func newBucketing(lengths []units.Tokens, descending []int) *bucketing {
	b := &bucketing{members: []int{0}, tokens: []units.Tokens{0}}
	for i := len(descending) - 1; i >= 0; i-- {
		s := lengths[descending[i]]
		n := len(b.values)
		if n == 0 || b.values[n-1] != s {
			b.values, b.members, b.tokens = append(b.values, s), append(b.members, b.members[n]), append(b.tokens, b.tokens[n])
			n++
		}
		b.members[n]++
		b.tokens[n] += s
	}
	b.err = make([]float64, len(b.values)+1)
	for k := range b.err[1:] {
		b.err[k+1] = math.Inf(1)
	}
	return b
}

// cost is the tokens added by one bucket of the values j..k-1.
func (b *bucketing) cost(j, k int) float64 {
	return float64(b.values[k-1]*units.Tokens(b.members[k]-b.members[j]) - (b.tokens[k] - b.tokens[j]))
}

// added is the least tokens added by the buckets so far.
func (b *bucketing) added() units.Tokens { return units.Tokens(b.err[len(b.values)]) }

// more allows one more bucket. The best beginning of the last bucket never moves
// back as values are added (the cost satisfies the quadrangle inequality), so
// halving the values settles a layer in n log n steps.
func (b *bucketing) more() {
	n := len(b.values)
	next, last := make([]float64, n+1), make([]int, n+1)
	var solve func(lo, hi, from, to int)
	solve = func(lo, hi, from, to int) {
		if lo > hi {
			return
		}
		mid := (lo + hi) / 2
		best, at := math.Inf(1), from
		for j := from; j <= min(mid-1, to); j++ {
			if v := b.err[j] + b.cost(j, mid); v < best {
				best, at = v, j
			}
		}
		next[mid], last[mid] = best, at
		solve(lo, mid-1, from, at)
		solve(mid+1, hi, at, to)
	}
	solve(1, n, 0, n-1)
	b.count++
	b.err, b.last = next, append(b.last, last)
}

// cut makes the buckets of the programme, by rising bound.
func (b *bucketing) cut(descending []int) []bucket {
	all := make([]bucket, b.count)
	k := len(b.values)
	for q := b.count - 1; q >= 0; q-- {
		j := b.last[q][k]
		from, to := len(descending)-b.members[k], len(descending)-b.members[j]
		all[q] = bucket{b.values[k-1], descending[from:to]}
		k = j
	}
	return all
}

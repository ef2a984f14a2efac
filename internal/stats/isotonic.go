package stats

import "fmt"

// Isotonic returns the non-decreasing sequence nearest to y in weighted least
// squares, by pooling adjacent violators (Ayer et al., Annals of Mathematical
// Statistics 26, 1955) in one pass. weights are positive, one a value; nil means
// all equal. y is not changed. An empty y gives an empty result.
// It panics if the lengths differ, y is not finite, or a weight is not a positive
// finite number.
func Isotonic(y, weights []float64) []float64 {
	checkIsotonic(y, weights)
	blocks := make([]block, 0, len(y))
	for i, v := range y {
		b := block{mean: v, weight: 1, count: 1}
		if weights != nil {
			b.weight = weights[i]
		}
		for len(blocks) > 0 && blocks[len(blocks)-1].mean >= b.mean {
			b = blocks[len(blocks)-1].merge(b)
			blocks = blocks[:len(blocks)-1]
		}
		blocks = append(blocks, b)
	}
	out := make([]float64, 0, len(y))
	for _, b := range blocks {
		for range b.count {
			out = append(out, b.mean)
		}
	}
	return out
}

// block is a run of values that share one fitted level.
type block struct {
	mean, weight float64
	count        int
}

// merge moves b's mean towards c's by c's share; this form, unlike the quotient of
// sums, leaves equal means exactly equal.
func (b block) merge(c block) block {
	w := b.weight + c.weight
	return block{mean: b.mean + (c.mean-b.mean)*(c.weight/w), weight: w, count: b.count + c.count}
}

func checkIsotonic(y, weights []float64) {
	mustBeFinite("y", y)
	if weights == nil {
		return
	}
	if len(weights) != len(y) {
		panic(fmt.Sprintf("stats: Isotonic: %d values, %d weights", len(y), len(weights)))
	}
	mustBeFinite("weights", weights)
	for i, w := range weights {
		if w <= 0 {
			panic(fmt.Sprintf("stats: Isotonic: weights[%d] = %v, want > 0", i, w))
		}
	}
}

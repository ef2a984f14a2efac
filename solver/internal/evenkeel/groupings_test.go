package evenkeel

import (
	"slices"
	"testing"
)

// Of sizes too many to combine those go first that do not divide a node.
func TestLeastMissed(t *testing.T) {
	for _, tc := range []struct {
		sizes  []int
		inNode int
		want   []int // in the order in which they go
	}{
		{[]int{1, 2, 4, 8, 16}, 8, []int{2, 4, 8}},
		{[]int{1, 2, 4, 5, 8, 16, 40}, 8, []int{5, 16, 2, 4, 8}},
		{[]int{1, 2, 3, 4}, 4, []int{3, 2}},
		{[]int{1, 2, 4}, 1, []int{2}},
	} {
		sizes := slices.Clone(tc.sizes)
		var gone []int
		for len(sizes) > 2 {
			at := leastMissed(sizes, tc.inNode)
			gone = append(gone, sizes[at])
			sizes = slices.Delete(sizes, at, at+1)
		}
		if !slices.Equal(gone, tc.want) {
			t.Errorf("%v, %d in a node: %v go, want %v", tc.sizes, tc.inNode, gone, tc.want)
		}
	}
}

package baseline

import (
	"slices"
	"testing"
)

// Every number of nodes up to eight is tried, then twice as many each time, and all of them.
func TestNumbersOfNodesDoubleBeyondEight(t *testing.T) {
	upTo8 := []int{1, 2, 3, 4, 5, 6, 7, 8}
	for nodes, want := range map[int][]int{
		1:  {1},
		8:  upTo8,
		9:  append(slices.Clone(upTo8), 9),
		16: append(slices.Clone(upTo8), 16),
		20: append(slices.Clone(upTo8), 16, 20),
		64: append(slices.Clone(upTo8), 16, 32, 64),
	} {
		if got := numbers(nodes); !slices.Equal(got, want) {
			t.Errorf("of %d nodes %v are tried, want %v", nodes, got, want)
		}
	}
}

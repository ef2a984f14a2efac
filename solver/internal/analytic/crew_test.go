package analytic

import (
	"testing"

	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// Rings are remembered by the link that blocks come over: members are alike only where
// it is the same.
func TestMembersOfLikeLinks(t *testing.T) {
	p := world.Problem(t, "2x(2 fast)", 65536)
	m, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	users := m.cardUsers([][]int{{0, 1}, {2, 3}})
	for _, tc := range []struct {
		ranks, before []int
		want          []int
	}{
		{[]int{0, 1}, []int{2, 3}, []int{0, 0}}, // both from the other node
		{[]int{0, 2}, []int{1, 1}, []int{0, 1}}, // one of them
		{[]int{0, 2, 1, 3}, []int{1, 1, 0, 0}, []int{0, 1, 0, 1}},
	} {
		c, err := m.crewOf(tc.ranks, tc.before, users)
		if err != nil {
			t.Fatal(err)
		}
		for i, h := range c.hops {
			if h.like != tc.want[i] {
				t.Errorf("%v from %v: member %d is like %d, want %d", tc.ranks, tc.before, i, h.like, tc.want[i])
			}
		}
	}
}

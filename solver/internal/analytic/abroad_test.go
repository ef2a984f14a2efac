package analytic

import (
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// Of a crew on two nodes what takes longest counts, between nodes or inside one, in bytes of
// the network: its own link here takes four times as long a byte.
func TestCrewsOnTwoNodes(t *testing.T) {
	far := world.Link("far", 0, 1e-9)
	far.Nodes, far.Assumed = 2, "a guess"
	p := world.ProblemOf(t, world.Profile([]world.Device{world.Fast()}, []world.Wire{world.Link("near", 0, 4e-9), far}), world.Job(t, "2x2 fast", 1<<12))
	m, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	crews, err := m.Crews([][]int{{0, 1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	c := crews[0]
	if got := c.port([]float64{1, 1, 1, 1}, []float64{1, 1, 1, 1}); math.Abs(got-4) > 0.02 {
		t.Errorf("slow inside: %v, want one byte that counts for four", got)
	}
	c.beside = []float64{0.1, 0.1}
	if got := c.port([]float64{1, 1, 1, 1}, []float64{1, 1, 1, 1}); got != 2 {
		t.Errorf("fast inside: %v, want the two bytes between nodes", got)
	}
}

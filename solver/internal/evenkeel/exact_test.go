package evenkeel

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// The search on random instances small enough to try everything: all ways to
// leave ranks out, to form groups, to order them in the ring, to split blocks
// over ranks and heads over the members of groups (in rank order).
func TestAgainstExactSearch(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	instances := 200
	r := rand.New(rand.NewPCG(11, 1))
	var gaps []float64
	for i := range instances {
		p, blocks := world.Small(t, r)
		best := world.Exact(t, p, blocks)
		ours := float64(world.Seconds(t, p, solvedAlone(t, p).Layout))
		gaps = append(gaps, ours/best-1)
		if gaps[i] > 0.02 {
			t.Errorf("instance %d: %s, %d blocks of %d, %d heads: %v above the best", i, p.Job.Cluster, blocks, p.Block, p.Job.Model.QHeads, gaps[i])
		}
	}
	slices.Sort(gaps)
	if m := gaps[len(gaps)/2]; m > 1e-9 {
		t.Errorf("median gap %v", m)
	}
	over := 0
	for _, g := range gaps {
		if g > 1e-9 {
			over++
		}
	}
	t.Logf("%d instances: median %.4f %%, worst %.3f %%, %d not exact", len(gaps), 100*gaps[len(gaps)/2], 100*gaps[len(gaps)-1], over)
}

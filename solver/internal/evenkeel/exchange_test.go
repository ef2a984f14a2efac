package evenkeel

import (
	"testing"

	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// Groups that meet across the same network cards are estimated to take as many times
// as long for their all-to-alls as the simulator has them take, whatever the number
// of cards and of groups beside them, whether of their kind or of another.
func TestEstimateSharesCards(t *testing.T) {
	for _, groups := range [][][]int{
		{{0, 4}, {1, 5}, {2, 6}, {3, 7}},
		{{0, 1, 4, 5}, {2, 3, 6, 7}},
		{{0, 1, 2, 3}, {4, 5, 6, 7}}, // none crosses
		{{0, 1, 4, 5}, {2, 6}, {3, 7}},
	} {
		estimated, simulated := crowded(t, groups, 4)
		for _, cards := range []int{1, 2} {
			e, s := crowded(t, groups, cards)
			e, s = e/estimated, s/simulated
			if e < 0.9*s || e > 1.1*s {
				t.Errorf("groups %v, %d cards instead of 4: estimated %.2f times as long, simulated %.2f", groups, cards, e, s)
			}
		}
	}
}

// crowded is the estimated and the simulated seconds of the layers of groups on two
// nodes of four ranks that share so many cards, between which messages take nearly
// all the time.
func crowded(t *testing.T, groups [][]int, cards int) (estimated, simulated float64) {
	t.Helper()
	job := world.Job(t, "2x4 fast", 16_000)
	for i := range job.Cluster.Nodes {
		job.Cluster.Nodes[i].NICs = cards
	}
	far := world.Far()
	far.Beta *= 100
	p := world.ProblemOf(t, world.Profile([]world.Device{world.Fast()}, []world.Wire{world.Near(), far}), job)
	e, err := newEstimator(p)
	if err != nil {
		t.Fatal(err)
	}
	d := e.draft(groups)
	e.setShares(d, len(groups), 1, false)
	estimated = e.solve(d, nil)
	step, err := p.Sim.Time(d.layout(len(p.Ranks), p.Block))
	if err != nil {
		t.Fatal(err)
	}
	open, _, err := e.tax(countTo(len(p.Ranks)))
	if err != nil {
		t.Fatal(err)
	}
	return estimated, float64(step) - open
}

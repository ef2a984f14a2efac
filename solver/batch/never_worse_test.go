package batch

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
)

// hardBatch is hundreds of sequences that leave little room in dozens of
// micro-batches: all alike, of a few lengths, even, or many short ones with a few
// that fill a large group.
func hardBatch(rng *rand.Rand, most units.Tokens) []units.Tokens {
	shape, all := rng.IntN(4), 0.01+0.15*rng.Float64()
	lengths := make([]units.Tokens, 100+rng.IntN(400))
	for i := range lengths {
		share := all
		switch shape {
		case 1:
			share = math.Exp2(-float64(rng.IntN(9)))
		case 2:
			share = rng.Float64() / 4
		case 3:
			if share = 1e-3; rng.IntN(30) == 0 {
				share = 0.3 + 0.7*rng.Float64()
			}
		}
		lengths[i] = max(1, units.Tokens(share*float64(most)))
	}
	return lengths
}

// Where no filling under roofs finds memory for all, others' plans are a beginning:
// of 400 alike that need four devices each, groups of four took half the time.
func TestEvenkeelIsNeverWorseWhereMemoryIsShort(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 12
	}
	rng := rand.New(rand.NewPCG(8, 8))
	fleets := append(testFleets(), flexspBatch(nil), fcpProblem(24, 8192, ringDegrees(16), nil), fcpProblem(48, 8192, ringDegrees(32), nil))
	pl := NewPlanner(Options{})
	for i := range n {
		p := *fleets[i%len(fleets)]
		p.Lengths = hardBatch(rng, longestHeld(&p))
		ours, err := pl.Plan(context.Background(), &p)
		if err != nil {
			t.Fatal(err)
		}
		if found := Check(&p, ours); len(found) > 0 {
			t.Fatalf("batch %d: %v", i, found)
		}
		for _, s := range append(testBaselines(), FCP{}) {
			plan, err := s.Solve(context.Background(), &p)
			if err != nil {
				continue // has no plan for such nodes or lengths
			}
			if slower(ours.Time, plan.Time) {
				t.Errorf("batch %d (%d sequences, the first of %d tokens, fleet %d): %v in %d micro-batches, %s takes %v in %d",
					i, len(p.Lengths), int64(p.Lengths[0]), i%len(fleets), ours.Time, len(ours.Micro), s.Name(), plan.Time, len(plan.Micro))
			}
		}
	}
}

// Nor where devices are unequal: of 30 batches a quick plan was longer than a baseline's
// twice.
func TestEvenkeelIsNeverWorseOnUnequalDevices(t *testing.T) {
	profile, job := reference.Job(t, reference.Llama(8), "2x1 h100_sxm + 2x1 rtx_pro_6000_server", 1024)
	costs, err := groupcost.FromLaws(t.Context(), costmodel.NewPredictor(profile), job, groupcost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(9, 5))
	for i := range 30 {
		p, err := NewProblem(costs, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.Lengths = hardBatch(rng, longestHeld(p))
		ours, err := NewPlanner(Options{Effort: Quick}).Plan(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if found := Check(p, ours); len(found) > 0 {
			t.Fatalf("batch %d: %v", i, found)
		}
		for _, s := range append(testBaselines(), FCP{}) {
			if plan, err := s.Solve(t.Context(), p); err == nil && slower(ours.Time, plan.Time) {
				t.Errorf("batch %d (%d sequences): %v, %s takes %v", i, len(p.Lengths), ours.Time, s.Name(), plan.Time)
			}
		}
	}
}

package strategy_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// Of many ranks what is missing is found in a few of them as in all; no type and no link is
// left out.
func TestMissingLawsOfManyRanks(t *testing.T) {
	world.Sequential(t)
	profile := world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Far()})
	job := world.Job(t, "30x8 fast + 30x(4 fast + 4 slow)", 1<<18)
	p := world.ProblemOf(t, profile, job)
	l := p.EqualRing()
	if few := strategy.Sample(job.Cluster); !strategy.Costly(l) || len(few.Nodes) != 4 || len(few.Ranks()) != 12 || len(job.Cluster.Ranks()) != 480 {
		t.Errorf("%d nodes, %d ranks of %d", len(few.Nodes), len(few.Ranks()), len(job.Cluster.Ranks()))
	}
	cards := job
	cards.Cluster.Nodes = slices.Clone(job.Cluster.Nodes)
	for i := range cards.Cluster.Nodes {
		cards.Cluster.Nodes[i].NICs = 8
	}
	if _, err := strategy.New(profile, cards); err != nil {
		t.Errorf("with cards: %v", err)
	}
	found := 0
	for i, law := range profile.Laws {
		part := *profile
		part.Laws = slices.Delete(slices.Clone(profile.Laws), i, i+1)
		all, err := costmodel.NewSimulator(costmodel.NewPredictor(&part), job)
		if err != nil {
			t.Fatal(err)
		}
		_, want := all.Time(l)
		_, got := strategy.New(&part, job)
		var missing, expected *costmodel.MissingLawError
		if errors.As(want, &expected) != errors.As(got, &missing) || expected != nil && (missing.Op != expected.Op || missing.Op != law.Op) {
			t.Errorf("without %s on %s%s: %v, of all ranks %v", law.Op, law.Device, law.Group, got, want)
		}
		if missing != nil {
			found++
		}
	}
	if found < len(world.ComputeVariants())*2 {
		t.Errorf("%d laws are found missing", found)
	}
}

package evenkeel

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// TestAllToAllsHideBehindChunks: where the ranks of one group wait long for their
// all-to-alls, over few network cards, the plan has chunks of heads and is faster for
// them; equal nodes keep the layout that is known.
func TestAllToAllsHideBehindChunks(t *testing.T) {
	gain := func(cluster string) (float64, int) {
		p := world.GPUs(t, cluster, 1<<16)
		job := p.Job
		for i := range job.Cluster.Nodes {
			job.Cluster.Nodes[i].NICs = 1
		}
		job.Model.KVHeads = job.Model.QHeads
		p = world.ProblemOf(t, p.Profile, job)
		r, err := world.After(t.Context(), p, &Evenkeel{}, baseline.Strategies())
		if err != nil {
			t.Fatal(err)
		}
		whole := r.Layout
		whole.HeadChunks = 0
		return float64(world.Seconds(t, p, whole) / world.Seconds(t, p, r.Layout)), r.Layout.HeadChunks
	}
	if by, k := gain("2x4 h100_sxm + 1x2 h100_sxm"); k < 2 || by < 1.1 {
		t.Errorf("%d chunks, %.3f times faster by them", k, by)
	}
	if by, k := gain("2x4 h100_sxm"); k != 0 {
		t.Errorf("equal ranks have %d chunks and are %.3f times faster", k, by)
	}
}

// TestRingsTakeTurns where a rank waits for its neighbour's first block, and the plan says
// so; one by one they take longer.
func TestRingsTakeTurns(t *testing.T) {
	world.Sequential(t)
	p := world.GPUs(t, "2x4 h100_sxm + 1x4 a100_sxm", 1<<18)
	job := p.Job
	job.Accumulate, job.Model.KVHeads = 2, job.Model.QHeads
	p = world.ProblemOf(t, p.Profile, job)
	r, err := world.After(t.Context(), p, &Evenkeel{}, baseline.Strategies())
	if err != nil {
		t.Fatal(err)
	}
	after := r.Layout
	after.WeaveForward, after.WeaveBackward = false, false
	by := world.Seconds(t, p, after) / world.Seconds(t, p, r.Layout)
	if !r.Layout.WeaveForward && !r.Layout.WeaveBackward || by < 1.01 || !strings.Contains(r.Why, "step by step in turn") {
		t.Errorf("%d groups, in twos %v, %.3f times faster by taking turns: %s", len(r.Layout.Groups), r.Layout.TwoBatch, float64(by), r.Why)
	}
}

// TestMicroBatchesGoInTwos where ranks wait for their all-to-alls, unless there is only
// one. Equal devices keep the shares and groups of the best layout that is known.
func TestMicroBatchesGoInTwos(t *testing.T) {
	world.Sequential(t)
	solve := func(cluster string, batches int) (p *strategy.Problem, r strategy.Result) {
		p = world.GPUs(t, cluster, 1<<16)
		job := p.Job
		for i := range job.Cluster.Nodes {
			job.Cluster.Nodes[i].NICs = 1
		}
		job.Accumulate, job.Model.KVHeads = batches, job.Model.QHeads
		p = world.ProblemOf(t, p.Profile, job)
		r, err := world.After(t.Context(), p, &Evenkeel{}, baseline.Strategies())
		if err != nil {
			t.Fatal(err)
		}
		return p, r
	}
	p, r := solve("2x4 h100_sxm + 1x2 h100_sxm", 2)
	alone := r.Layout
	alone.Schedule = alone.OneByOne()
	if by := world.Seconds(t, p, alone) / world.Seconds(t, p, r.Layout); !r.Layout.TwoBatch || by < 1.05 || !strings.Contains(r.Why, "in twos") {
		t.Errorf("in twos %v, %.3f times faster by it: %s", r.Layout.TwoBatch, float64(by), r.Why)
	}
	if _, r := solve("2x4 h100_sxm + 1x2 h100_sxm", 1); r.Layout.TwoBatch {
		t.Error("one micro-batch goes in twos")
	}
	if p, r = solve("2x4 h100_sxm", 2); !r.Layout.TwoBatch {
		t.Errorf("equal ranks go one by one: %s", r.Why)
	}
	known := slices.MinFunc(p.Seeds, func(a, b strategy.Result) int { return cmp.Compare(a.Step.Time.Mid, b.Step.Time.Mid) })
	alone = r.Layout
	if alone.Schedule = alone.OneByOne(); !strategy.SameLayout(alone, known.Layout) || world.Seconds(t, p, alone) < 1.05*world.Seconds(t, p, r.Layout) {
		t.Errorf("equal ranks do not keep the layout that is known, %+v, but have %+v", known.Layout, alone)
	}
}

// TestTwosCostNothingOfTheSearch: what is searched for in twos comes on top of what is
// searched for one by one, so that the plan is never slower for it.
func TestTwosCostNothingOfTheSearch(t *testing.T) {
	world.Sequential(t)
	for _, cluster := range []string{"2x2 h100_sxm + 3x3 a100_sxm", "1x4 h100_sxm + 1x2 a100_sxm", "1x(2 h100_sxm + 2 a100_sxm)"} {
		p := world.GPUs(t, cluster, 1<<15)
		job := p.Job
		job.Accumulate = 2
		p = world.ProblemOf(t, p.Profile, job)
		alone := searchOf(t, p)
		alone.run()
		r, err := world.After(t.Context(), p, &Evenkeel{}, baseline.Strategies())
		if err != nil || alone.Err() != nil {
			t.Fatal(err, alone.Err())
		}
		if at := world.Seconds(t, p, r.Layout); at > alone.Time() {
			t.Errorf("%s: %v, %v with nothing searched for in twos", cluster, at, alone.Time())
		} else if r.Layout.TwoBatch && at > alone.Time()*(1-dropGain) {
			t.Errorf("%s: in twos for %v, %v one by one", cluster, at, alone.Time())
		}
	}
}

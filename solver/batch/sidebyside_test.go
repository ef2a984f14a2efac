package batch_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// longJob is a step that recomputes, and hides its exchange behind the layers.
func longJob(t *testing.T, cluster string, s units.Tokens, sequences int) (*costmodel.Predictor, costmodel.Job) {
	t.Helper()
	q, j := lawJob(t, cluster, s, sequences)
	j.Recompute, j.OverlapZero = costmodel.RecomputeFull, true
	return q, j
}

func sideBySide(t *testing.T, q *costmodel.Predictor, j costmodel.Job) *batch.Plan {
	t.Helper()
	plan, err := batch.SideBySide(t.Context(), q, j)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// oneByOne is the step by its simulator where every sequence is shared by all devices
// equally, in one all-to-all or in a ring, whichever is faster.
func oneByOne(t *testing.T, q *costmodel.Predictor, j costmodel.Job) units.Seconds {
	t.Helper()
	ranks := len(j.Cluster.Ranks())
	tokens := make([]units.Tokens, ranks)
	var group costmodel.Group
	for r := range tokens {
		tokens[r] = j.SeqLen / units.Tokens(ranks)
		group = append(group, costmodel.HeadShare{Rank: r, QHeads: j.Model.QHeads / ranks})
	}
	var best units.Seconds
	for _, groups := range [][]costmodel.Group{{group}, costmodel.Singles(tokens, j.Model.QHeads)} {
		step, err := costmodel.Simulate(q, j, costmodel.ZigZag(tokens, groups), costmodel.SimOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if best == 0 || step.Time.Mid < best {
			best = step.Time.Mid
		}
	}
	return best
}

// On a node whose sequences are long the best is one after the other on all of it, and
// both judges say how long that takes.
func TestSideBySideAgreesWithTheStepOnOneNode(t *testing.T) {
	q, j := longJob(t, "1x4 h100_sxm", 400000, 3)
	plan, want := sideBySide(t, q, j), oneByOne(t, q, j)
	if len(plan.Micro) != 3 || math.Abs(float64(plan.Time/want)-1) > 0.01 {
		t.Errorf("%d micro-batches in %v: want 3 in %v", len(plan.Micro), plan.Time, want)
	}
}

// On two nodes each trains a sequence of its own, which takes what one takes on its node
// alone: all that the two share is the exchange of parameters and gradients.
func TestSideBySideOnTwoNodes(t *testing.T) {
	q, j := longJob(t, "2x8 h100_sxm", 131072, 2)
	plan := sideBySide(t, q, j)
	if len(plan.Micro) != 1 || len(plan.Micro[0].Groups) != 2 {
		t.Fatalf("%+v: want two groups side by side", plan.Micro)
	}
	_, one := longJob(t, "1x8 h100_sxm", 131072, 1)
	want := oneByOne(t, q, one)
	if r := float64(plan.Time / want); r < 0.95 || r > 1.05 {
		t.Errorf("%v for two at a time: one takes %v on its node", plan.Time, want)
	}
	if both := oneByOne(t, q, j); plan.Time > both {
		t.Errorf("%v, and %v with every sequence on both nodes", plan.Time, both)
	}
}

// A step of one sequence has nothing to put beside it; and what is wrong is an error.
func TestSideBySideOfNothing(t *testing.T) {
	q, j := longJob(t, "1x4 h100_sxm", 8192, 1)
	if plan := sideBySide(t, q, j); plan != nil {
		t.Errorf("one sequence: %+v", plan)
	}
	j.Accumulate = 1 << 30
	if plan := sideBySide(t, q, j); plan != nil {
		t.Errorf("a billion sequences: %+v", plan)
	}
	j.Accumulate, j.SeqLen = 2, 40<<20
	if _, err := batch.SideBySide(t.Context(), q, j); err == nil {
		t.Error("sequences that fit nowhere: no error")
	}
}

// When its context ends, so does the pricing of groups: on these devices it would take
// minutes.
func TestSideBySideEndsWithItsContext(t *testing.T) {
	q, j := longJob(t, "256x8 h100_sxm + 256x8 a100_sxm + 256x8 b200_sxm + 256x8 gb200", 65536, 64)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if plan, err := batch.SideBySide(ctx, q, j); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", plan, err)
	}
}

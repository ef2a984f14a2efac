package solver

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/evenkeel"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

func compared(plan *Plan, strategy string) *Candidate {
	at := slices.IndexFunc(plan.Compared, func(c Candidate) bool { return c.Strategy == strategy })
	if at < 0 {
		return nil
	}
	return &plan.Compared[at]
}

// TestSurePlanWhereTheFastestIsATie: it is recommended, gains by more than its error and
// does without what the doubt is of.
func TestSurePlanWhereTheFastestIsATie(t *testing.T) {
	p := toSolve(t, world.Doubtful(t, 5))
	plan := solvePlan(t, p)
	ours, sure := compared(plan, "evenkeel"), compared(plan, "evenkeel-sure")
	if ours.Verdict != Tie || sure == nil || sure.Verdict != Chosen || plan.Strategy != "evenkeel-sure" || plan.Taken {
		t.Fatalf("%s of %+v", plan.Strategy, plan.Compared)
	}
	base := plan.Baseline()
	if sure.Time.Mid <= ours.Time.Mid || base.Time.Mid-sure.Time.Mid <= sure.GainError {
		t.Errorf("evenkeel %v, sure %v +- %v, baseline %v", ours.Time.Mid, sure.Time.Mid, sure.GainError, base.Time.Mid)
	}
	for _, r := range plan.Ranks {
		if r.Device == "odd" && r.Tokens > 0 {
			t.Errorf("rank %d of the odd device has %d tokens", r.Rank, int64(r.Tokens))
		}
	}
	if !strings.Contains(sure.Why, "ring of 3 groups") || !strings.Contains(sure.Why, "more than the cost model can be wrong by") {
		t.Errorf("why: %s", sure.Why)
	}
	if err := Check(plan, p.Profile); err != nil {
		t.Error(err)
	}
	again, err := doc.Encode(solvePlan(t, toSolve(t, world.Doubtful(t, 5))))
	if first, e := doc.Encode(plan); err != nil || e != nil || !bytes.Equal(first, again) {
		t.Errorf("two runs differ: %v, %v", err, e)
	}
	p = toSolve(t, world.Doubtful(t, 5))
	p.Take = "evenkeel"
	if plan := solvePlan(t, p); plan.Strategy != p.Take || !plan.Taken || compared(plan, "evenkeel-sure").Verdict != Slower {
		t.Errorf("taken: %s of %+v", plan.Strategy, plan.Compared)
	}
}

// TestNoSurePlanWhereTheFastestIsSure: then there is none to tell of, unless it is asked for.
func TestNoSurePlanWhereTheFastestIsSure(t *testing.T) {
	p := toSolve(t, world.Doubtful(t, 1.02))
	if plan := solvePlan(t, p); plan.Strategy != "evenkeel" || compared(plan, "evenkeel-sure") != nil {
		t.Errorf("%s of %+v", plan.Strategy, plan.Compared)
	}
	plan, err := Solve(context.Background(), p, []string{"evenkeel-sure"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if sure := compared(plan, "evenkeel-sure"); plan.Strategy != "evenkeel" || sure == nil || sure.Verdict != NotLegal || !strings.Contains(sure.Why, "surely gains already") {
		t.Errorf("%s of %+v", plan.Strategy, plan.Compared)
	}
	p.Take = "evenkeel-sure"
	var none *InfeasibleError
	const want = "the plan of evenkeel-sure was asked for: no layout of evenkeel's is faster than a plan that surely gains already; way out: take another strategy"
	if _, err := Solve(context.Background(), p, nil, nil); !errors.As(err, &none) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("taken: %v", err)
	}
}

// TestNoSurePlanWhereNoneGains: on equal devices the baseline is as good as it gets, and on
// two of which one is in doubt nothing else is to be had.
func TestNoSurePlanWhereNoneGains(t *testing.T) {
	for _, tc := range []struct {
		p    *Problem
		want string
	}{
		{testProblem(t, "1x4 fast", 32768), "no layout that evenkeel simulated is faster"},
		{toSolve(t, world.DoubtfulOn(t, "1x(1 fast + 1 odd)", 5)), "none gains more over the strongest baseline"},
	} {
		plan, err := Solve(t.Context(), tc.p, []string{"evenkeel-sure"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if sure := compared(plan, "evenkeel-sure"); sure == nil || sure.Verdict != NotLegal || !strings.Contains(sure.Why, tc.want) || plan.Strategy != plan.Baseline().Strategy {
			t.Errorf("%s of %+v", plan.Strategy, plan.Compared)
		}
	}
}

// TestSurePlanThatIsFaster: evenkeel has it too, whichever search came by it.
func TestSurePlanThatIsFaster(t *testing.T) {
	attempt := func(s strategy.Strategy, seconds units.Seconds, why string) strategy.Attempt {
		return strategy.Attempt{Strategy: s, Result: strategy.Result{Step: &costmodel.Step{Time: costmodel.Estimate{Mid: seconds}}, Why: why, Evaluated: 7}}
	}
	for _, x := range []struct {
		sure units.Seconds
		want string
	}{{1, "its own"}, {2, "its own"}, {0.5, "of the sure"}} {
		found := []strategy.Attempt{attempt(&evenkeel.Sure{}, x.sure, "of the sure"), attempt(&evenkeel.Evenkeel{}, 1, "its own")}
		if lendSure(found); found[1].Why != x.want || found[1].Time() != min(1, x.sure) || found[0].Why != "of the sure" {
			t.Errorf("sure takes %v: %+v", x.sure, found)
		}
	}
	found := []strategy.Attempt{attempt(&evenkeel.Evenkeel{}, 1, "its own"), {Strategy: &evenkeel.Sure{}, Illegal: "no gain is sure"}}
	if lendSure(found); found[0].Why != "its own" {
		t.Errorf("no sure one: %+v", found)
	}
}

// TestEffortKeepsWhatIsSure: faster layouts that more work finds may all be doubtful here, and
// must not crowd out the slower one that surely gains.
func TestEffortKeepsWhatIsSure(t *testing.T) {
	profile, job := world.GPUJob(t, "2x4 a100_sxm + 1x4 rtx_pro_6000_server", 128<<10)
	for i := range job.Cluster.Nodes {
		job.Cluster.Nodes[i].NICs = 1
	}
	job.Accumulate, job.Recompute = 8, costmodel.RecomputeFull
	p := toSolve(t, world.ProblemOf(t, profile, job))
	usual := solvePlan(t, p)
	if base := usual.Baseline(); usual.Step.Time.Mid >= base.Time.Mid {
		t.Fatalf("%s takes %v and the baseline %v: the test says nothing", usual.Strategy, usual.Step.Time.Mid, base.Time.Mid)
	}
	p.Effort = 8
	if more := solvePlan(t, p); more.Step.Time.Mid > usual.Step.Time.Mid*(1+1e-12) {
		t.Errorf("%s takes %v with eight times the effort, %s %v without", more.Strategy, more.Step.Time.Mid, usual.Strategy, usual.Step.Time.Mid)
	}
}

package solver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
)

// longRing is a cluster whose ring has more tasks in a pass, 1104 x 1104, than a simulation
// does before it asks whether to go on.
const longRing = "138x8 fast"

// Once time is up a long ring is given up, the first of a mesh's layouts is not, and of
// further ones none is begun; an interruption leaves nothing to wait for but what is short.
func TestALongLayoutIsGivenUpInTheMiddle(t *testing.T) {
	sequential(t)
	late, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	interrupted, cancel := context.WithCancel(context.Background())
	cancel()
	p := testProblem(t, longRing, 1<<18)
	for _, ctx := range []context.Context{late, interrupted} {
		if _, err := (ring{}).Solve(ctx, p, nil); !errors.Is(err, ctx.Err()) {
			t.Errorf("ring: %v, want %v", err, ctx.Err())
		}
	}
	odd := testProblem(t, "1103x1 fast", 1<<18) // no mesh but a ring, for 1103 is prime
	if res, err := (usp{}).Solve(late, odd, nil); err != nil || res.Evaluated != 1 || len(res.Layout.Groups) != 1103 {
		t.Errorf("usp, the only plan: %d layouts: %v", res.Evaluated, err)
	} else if want, err := odd.simulate(context.Background(), res.Layout); err != nil || res.Step == nil || res.Step.Time != want.Time {
		t.Errorf("usp, the only plan, has not the account of its layout: %v", err)
	}
	if _, err := (usp{}).Solve(interrupted, odd, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("usp, interrupted: %v", err)
	}
	odd.seeds = []Result{{Layout: solveWith(t, testProblem(t, "1x1 fast", 1<<10), ring{}).Layout}}
	if res, err := (usp{}).Solve(late, odd, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("usp, with a plan before it: %d layouts: %v", res.Evaluated, err)
	}
}

// A deadline that is over before anything begins leaves a plan, which the strategies that
// come later take as well; one that was asked for by name and not solved says so.
func TestADeadlineLeavesTheFirstPlan(t *testing.T) {
	late, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	p := testProblem(t, longRing, 1<<18)
	plan, err := Solve(late, p, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Strategy == "ring" || !slices.Contains(plan.Warnings, "strategy ring: context deadline exceeded") {
		t.Errorf("by %s: %q", plan.Strategy, plan.Warnings)
	}
	p.Take = "ring"
	if _, err = Solve(late, p, nil, nil); err == nil || errors.As(err, new(*InfeasibleError)) {
		t.Errorf("with --take ring: %v", err)
	}
}

// hurried returns a ring without an account, and somebody presses Ctrl-C meanwhile.
type hurried struct{ press context.CancelFunc }

func (hurried) Name() string   { return "hurried" }
func (hurried) Claims() Claims { return Claims{} }

func (h hurried) Solve(_ context.Context, p *Problem, _ func(Progress)) (Result, error) {
	h.press()
	return Result{Layout: p.equalRing()}, nil
}

// Ctrl-C is heard in the account of a plan that takes long: what was found before it stays.
// That of a short one is not given up for it, and none for a deadline.
func TestAnInterruptionIsHeardInALongAccount(t *testing.T) {
	sequential(t)
	ctx, press := context.WithCancel(context.Background())
	p := testProblem(t, "750x8 fast", 1<<20) // 6000 x 6000 tasks in each of two passes
	found, skipped, err := p.solveEach(ctx, []Strategy{ulysses{}, usp{}, hurried{press}}, nil)
	if err != nil || len(skipped) != 1 || skipped[0] != "strategy hurried: context canceled" || len(found) != 2 {
		t.Errorf("%d found, skipped %q: %v", len(found), skipped, err)
	}
	short := testProblem(t, longRing, 1<<18)
	if found, skipped, err = short.solveEach(ctx, []Strategy{hurried{press}}, nil); err != nil || len(skipped) > 0 || found[0].Step == nil {
		t.Errorf("a short one: skipped %q: %v", skipped, err)
	}
}

func TestASimulationMayEndSoonAfterAnInterruption(t *testing.T) {
	ctx, press := context.WithCancel(context.Background())
	ask := whenLeft(ctx, 2)
	if err := ask(); err != nil {
		t.Error(err)
	}
	press()
	for i, want := range []error{nil, nil, context.Canceled, context.Canceled} {
		if err := ask(); !errors.Is(err, want) {
			t.Errorf("question %d after the end: %v, want %v", i, err, want)
		}
	}
	late, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	if err := whenLeft(late, 0)(); err != nil {
		t.Errorf("at a deadline: %v", err)
	}
}

// Once time is up hexiseq has the plans of before and forms no groups, which takes seconds of
// tens of thousands of ranks.
func TestNoGroupsAreFormedOnceTimeIsUp(t *testing.T) {
	late, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	p := testProblem(t, "1x(2 fast + 2 slow)", 1<<15)
	p.seeds = []Result{solveWith(t, testProblem(t, "1x(2 fast + 2 slow)", 1<<15), ring{})}
	res, err := hexiSeq{}.Solve(late, p, nil)
	if err != nil || !res.Stopped || strings.Contains(res.Why, "candidates fit memory") || !sameLayout(res.Layout, p.seeds[0].Layout) {
		t.Errorf("%+v: %v", res.Why, err)
	}
}

// Of many ranks what is missing is found in a few of them as in all; no type and no link is
// left out.
func TestMissingLawsOfManyRanks(t *testing.T) {
	sequential(t)
	profile := testProfile([]device{fast(), slow()}, []wire{nearLink(), farLink()})
	job := testJob(t, "30x8 fast + 30x(4 fast + 4 slow)", 1<<18)
	p := problemOf(t, profile, job)
	l := p.equalRing()
	if few := sample(job.Cluster); !costly(l) || len(few.Nodes) != 4 || len(few.Ranks()) != 12 || len(job.Cluster.Ranks()) != 480 {
		t.Errorf("%d nodes, %d ranks of %d", len(few.Nodes), len(few.Ranks()), len(job.Cluster.Ranks()))
	}
	cards := job
	cards.Cluster.Nodes = slices.Clone(job.Cluster.Nodes)
	for i := range cards.Cluster.Nodes {
		cards.Cluster.Nodes[i].NICs = 8
	}
	if _, err := NewProblem(profile, cards); err != nil {
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
		_, got := NewProblem(&part, job)
		var missing, expected *costmodel.MissingLawError
		if errors.As(want, &expected) != errors.As(got, &missing) || expected != nil && (missing.Op != expected.Op || missing.Op != law.Op) {
			t.Errorf("without %s on %s%s: %v, of all ranks %v", law.Op, law.Device, law.Group, got, want)
		}
		if missing != nil {
			found++
		}
	}
	if found < len(computeVariants())*2 {
		t.Errorf("%d laws are found missing", found)
	}
}

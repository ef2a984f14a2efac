package solver

import (
	"context"
	"errors"
	"slices"
	"testing"
)

func TestStrategiesAreSolvedInTableOrder(t *testing.T) {
	var names []string
	for _, s := range Strategies() {
		names = append(names, s.Name())
		if s.Claims().Doc == "" || s.Claims().Baseline && s.Claims().Published {
			t.Errorf("%s: %+v", s.Name(), s.Claims())
		}
	}
	if want := []string{"ring", "ulysses", "usp", "usp-subset", "hexiseq", "evenkeel"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	for _, asked := range [][]string{nil, {"evenkeel"}, {"evenkeel-sure"}, {"hexiseq", "evenkeel-sure"}} { // one does not go without the other
		todo, err := chooseStrategies(asked)
		if err != nil || len(todo) != len(names)+1 || todo[len(names)-1].Name() != "evenkeel" || todo[len(names)].Name() != "evenkeel-sure" {
			t.Errorf("asked for %v: %v, %v", asked, todo, err)
		}
	}
	if todo, err := chooseStrategies([]string{"ring"}); err != nil || len(todo) != 5 {
		t.Errorf("beside ring %d strategies are solved: %v", len(todo), err)
	}
}

// What fits is a seed, in order; what is not legal is told, with the reason.
func TestSeedsAreWhatFits(t *testing.T) {
	p := testProblem(t, "1x3 fast + 1x4 slow", 16384)
	found, skipped, err := p.solveEach(context.Background(), Strategies()[:5], nil)
	if err != nil || len(found) != 5 || len(skipped) > 0 {
		t.Fatalf("%d found, skipped %v: %v", len(found), skipped, err)
	}
	if found[1].illegal != "8 heads do not divide over 7 ranks" {
		t.Errorf("ulysses: %q", found[1].illegal)
	}
	var seeds []Result
	for _, a := range found {
		if a.illegal == "" {
			seeds = append(seeds, a.Result)
		}
	}
	if len(p.seeds) != len(seeds) || len(seeds) != 4 {
		t.Fatalf("%d seeds, want %d", len(p.seeds), len(seeds))
	}
	for i := range seeds {
		if !sameLayout(p.seeds[i].Layout, seeds[i].Layout) || p.seeds[i].Step == nil {
			t.Errorf("seed %d is not what was found", i)
		}
	}
}

// A strategy that time is up for is skipped if another has an answer; if none
// has, its error is the answer.
func TestLateStrategies(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("deadline of the test")
	cancel(why)
	p := testProblem(t, "1x2 fast", 16384)
	found, skipped, err := p.solveEach(ctx, []Strategy{ring{}, late{}}, nil)
	if err != nil || len(found) != 1 || len(skipped) != 1 {
		t.Errorf("%d found, skipped %v: %v", len(found), skipped, err)
	}
	if _, _, err := p.solveEach(ctx, []Strategy{late{}}, nil); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
}

// late finds nothing in time.
type late struct{}

func (late) Name() string   { return "late" }
func (late) Claims() Claims { return Claims{} }
func (late) Solve(ctx context.Context, _ *Problem, _ func(Progress)) (Result, error) {
	return Result{}, context.Cause(ctx)
}

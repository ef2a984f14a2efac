package solver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// inEachSetting is a problem of GPUs under every ZeRO stage and with and without
// recomputation, the least memory last.
func inEachSetting(t *testing.T, seq units.Tokens) []*Problem {
	t.Helper()
	p := gpuProblem(t, "1x4 h100_sxm + 1x4 a100_sxm", seq)
	var all []*Problem
	for _, again := range []costmodel.Recompute{costmodel.RecomputeNone, costmodel.RecomputeFull} {
		for _, zero := range []costmodel.ZeRO{costmodel.Zero0, costmodel.Zero1, costmodel.Zero2, costmodel.Zero3} {
			job := p.Job
			job.Zero, job.Recompute, job.OverlapZero, job.Accumulate = zero, again, true, 4
			all = append(all, problemOf(t, p.Profile, job))
		}
	}
	return all
}

func solveOne(ctx context.Context, p *Problem) (*Plan, error) { return Solve(ctx, p, nil, nil) }

// TestSettingsTakeTheShortestStep of all, and plan no more than that needs.
func TestSettingsTakeTheShortestStep(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	for _, seq := range []units.Tokens{8192, 1 << 17, 1 << 18} {
		posed := inEachSetting(t, seq)
		planned := map[*Problem]bool{}
		plan, own, err := SolveSettings(t.Context(), posed, func(ctx context.Context, p *Problem) (*Plan, error) {
			planned[p] = true
			return solveOne(ctx, p)
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(plan, own.Profile); err != nil || own.Job.Zero != plan.Job.Zero || own.Job.Recompute != plan.Job.Recompute {
			t.Errorf("%d tokens: %v", int64(seq), err)
		}
		if len(planned) > 4 || len(plan.Settings) != len(posed) {
			t.Errorf("%d tokens: %d of %d planned", int64(seq), len(planned), len(posed))
		}
		for i, p := range inEachSetting(t, seq) {
			s := plan.Settings[i]
			alone, err := solveOne(t.Context(), p)
			switch {
			case errors.As(err, new(*InfeasibleError)):
				if s.Verdict != Infeasible || !strings.Contains(err.Error(), s.Why) {
					t.Errorf("%d tokens, %s, recompute %s: %s, %q; alone %v", int64(seq), s.Zero, s.Recompute, s.Verdict, s.Why, err)
				}
			case err != nil:
				t.Fatal(err)
			case s.Zero != alone.Job.Zero || s.Recompute != alone.Job.Recompute || s.Bound != alone.Bound || plan.Step.Time.Mid > alone.Step.Time.Mid*(1+hardlyLonger):
				t.Errorf("%d tokens: %+v, chosen %v; alone %v, bound %v", int64(seq), s, plan.Step.Time.Mid, alone.Step.Time.Mid, alone.Bound)
			case planned[posed[i]] == (s.Verdict == Untried) || s.Verdict != Untried && (s.Time != alone.Step.Time || s.Strategy != alone.Strategy || s.Baseline != alone.Baseline().Time.Mid):
				t.Errorf("%d tokens: %+v; alone %s in %v", int64(seq), s, alone.Strategy, alone.Step.Time)
			}
		}
	}
}

// TestAsFastASettingThatNeedsLessMemoryIsTaken where the time hardly tells them apart, in
// whichever order they come.
func TestAsFastASettingThatNeedsLessMemoryIsTaken(t *testing.T) {
	all := inEachSetting(t, 1<<17)
	of := func(zero costmodel.ZeRO) *Problem {
		return all[slices.IndexFunc(all, func(p *Problem) bool { return p.Job.Zero == zero })]
	}
	two, three := of(costmodel.Zero2), of(costmodel.Zero3)
	ring := Given{Shares: []int{5, 5, 5, 5, 3, 3, 3, 3}} // the same in both, so that states alone tell their memory apart
	for longer, want := range map[units.Seconds]*Problem{0.99: three, 0.999: three, 1: three, 1.004: three, 1.006: two, 1.1: two} {
		for _, posed := range [][]*Problem{{two, three}, {three, two}} {
			plan, own, err := SolveSettings(t.Context(), posed, func(ctx context.Context, p *Problem) (*Plan, error) {
				return takingAsLong(ctx, p, two, ring, longer)
			})
			if plan == nil || own != want {
				t.Errorf("%v times as long: %+v, %v", float64(longer), plan.Settings, err)
				continue
			}
			for i, s := range plan.Settings {
				chosen, equal := posed[i] == want, longer > 0.995 && longer < 1.005
				if chosen != (s.Verdict == Chosen) || !chosen && equal != (s.Verdict == Equal) {
					t.Errorf("%v times as long: %s is %s", float64(longer), s.Zero, s.Verdict)
				}
			}
		}
	}
}

// takingAsLong is the plan of a layout, as if it took so many times as long as in another
// setting.
func takingAsLong(ctx context.Context, p, other *Problem, g Given, longer units.Seconds) (*Plan, error) {
	plan, err := SolveGiven(ctx, p, g, nil)
	if err != nil || p == other {
		return plan, err
	}
	beside, err := SolveGiven(ctx, other, g, nil)
	if err == nil {
		plan.Step.Time = beside.Step.Time.Times(float64(longer))
		plan.Gap = gapOf(plan.Step.Time.Mid, plan.Bound)
	}
	return plan, err
}

// TestASettingWithinTheErrorIsATie: what is slower by less than the model can be wrong by.
func TestASettingWithinTheErrorIsATie(t *testing.T) {
	posed := inEachSetting(t, 1<<17)[2:4]
	plan, own, err := SolveSettings(t.Context(), posed, func(ctx context.Context, p *Problem) (*Plan, error) {
		if p == posed[0] {
			return solveOne(ctx, p)
		}
		fast, err := solveOne(ctx, posed[0])
		if err != nil {
			return nil, err
		}
		ring, err := SolveGiven(ctx, p, Given{Shares: []int{1, 1, 1, 1, 1, 1, 1, 1}}, nil) // it rests on other laws
		if err == nil {
			ring.Step.Time = fast.Step.Time.Times(1.01)
			ring.Gap = gapOf(ring.Step.Time.Mid, ring.Bound)
		}
		return ring, err
	})
	if err != nil || own != posed[0] || plan.Settings[1].Verdict != Tie || plan.Settings[1].GainError <= plan.Step.Time.Mid/100 {
		t.Errorf("%+v, %v", plan, err)
	}
}

// TestSettingsWhenTheTimeIsUp: the best so far is taken, and the others say why they have
// none.
func TestSettingsWhenTheTimeIsUp(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	posed := inEachSetting(t, 1<<17)
	asked := 0
	solve := func(c context.Context, p *Problem) (*Plan, error) {
		if asked++; asked == 2 {
			stop()
		}
		return solveOne(c, p)
	}
	plan, _, err := SolveSettings(ctx, posed, solve)
	if err != nil {
		t.Fatal(err)
	}
	untried := 0
	for _, s := range plan.Settings {
		if s.Verdict == Untried && s.Why == "it was interrupted" {
			untried++
		}
	}
	if asked != 2 || untried == 0 {
		t.Errorf("%d asked, %d untried of %+v", asked, untried, plan.Settings)
	}
	if plan, _, err := SolveSettings(ctx, posed, solve); err != nil || asked != 3 || plan.Validate() != nil {
		t.Errorf("with no time at all %d asked: %v", asked-2, err)
	}
}

// TestASettingThatTheTimeDidNotSufficeForIsNotTried: an interrupt that ends the planning of
// one leaves those that were planned.
func TestASettingThatTheTimeDidNotSufficeForIsNotTried(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	posed := inEachSetting(t, 1<<17)
	asked := 0
	plan, _, err := SolveSettings(ctx, posed, func(c context.Context, p *Problem) (*Plan, error) {
		if asked++; asked > 1 {
			stop()
			return nil, c.Err()
		}
		return solveOne(c, p)
	})
	if err != nil || asked != 2 || slices.IndexFunc(plan.Settings, func(s Setting) bool { return s.Verdict == Chosen }) < 0 {
		t.Errorf("%d asked: %+v, %v", asked, plan, err)
	}
}

// TestNoSettingFits: the error is that of the setting with the least memory, and a law that
// is missing ends it all.
func TestNoSettingFits(t *testing.T) {
	posed := inEachSetting(t, 1<<24)
	_, want := solveOne(t.Context(), posed[len(posed)-1])
	_, _, err := SolveSettings(t.Context(), posed, solveOne)
	if want == nil || err == nil || err.Error() != want.Error() {
		t.Errorf("%v, want %v", err, want)
	}
	_, _, err = SolveSettings(t.Context(), inEachSetting(t, 8192), func(_ context.Context, p *Problem) (*Plan, error) {
		return nil, &InfeasibleError{Reason: string(p.Job.Zero) + " " + string(p.Job.Recompute)}
	})
	if err == nil || !strings.Contains(err.Error(), "zero3 full") {
		t.Errorf("none found: %v", err)
	}
	lost := errors.New("lost")
	if _, _, err := SolveSettings(t.Context(), inEachSetting(t, 8192), func(context.Context, *Problem) (*Plan, error) { return nil, lost }); !errors.Is(err, lost) {
		t.Error(err)
	}
}

package solver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Setting is one way to train that a job leaves open, and what its plan takes: how the
// states are sharded, and whether the forward pass is computed again.
type Setting struct {
	Zero      costmodel.ZeRO      `json:"zero"`
	Recompute costmodel.Recompute `json:"recompute"`
	// Verdict is Chosen, Equal where its step is as long within half a percent, Tie where the
	// difference is within the cost model's error, Slower, or, for a reason that Why has,
	// Infeasible or Untried.
	Verdict Verdict       `json:"verdict"`
	Why     string        `json:"why,omitzero"`
	Bound   units.Seconds `json:"lower_bound_s,omitzero"` // of any plan; 0 where none fits
	// Of a plan: whose it is, its step, the step of today's fastest layout that fits (0
	// without one), and the memory of the rank that uses the largest share of its capacity.
	Strategy string             `json:"strategy,omitzero"`
	Time     costmodel.Estimate `json:"time,omitzero"`
	Baseline units.Seconds      `json:"baseline_s,omitzero"`
	Peak     units.Bytes        `json:"peak_memory_bytes,omitzero"`
	// GainError is the error of what the chosen setting gains over this one: half the 90 %
	// interval, on the side of no difference.
	GainError units.Seconds `json:"gain_error_s,omitzero"`
}

// Untried is the verdict on a setting that nobody planned.
const Untried Verdict = "not tried"

// SolveSettings plans a job in several settings, each a problem that differs from the others
// in Job.Zero and Job.Recompute alone, and returns the plan of the shortest step, with
// Plan.Settings, and its problem. Of plans that take as long within the part hardlyLonger it
// is the one that needs the least memory. solve plans one of them: Solve, or SolveGiven.
//
// The setting whose lower bound is the least goes first, and none is planned of which that
// shows that it takes longer than a plan already found. When ctx ends the best so far is
// taken.
//
// Errors: those of solve. Where nothing fits in any setting it is that of the last one, which
// should be the one that needs the least memory.
func SolveSettings(ctx context.Context, problems []*Problem, solve func(context.Context, *Problem) (*Plan, error)) (*Plan, *Problem, error) {
	x := settings{problems: problems, all: make([]Setting, len(problems)), plans: make([]*Plan, len(problems)), best: -1}
	order, err := x.promising()
	if err != nil {
		return nil, nil, err
	}
	for _, i := range order {
		if err := x.try(ctx, i, solve); err != nil {
			return nil, nil, err
		}
	}
	if x.best < 0 {
		return nil, nil, x.none
	}
	at := x.leastMemory()
	plan := x.plans[at]
	plan.Settings = x.judged(at)
	return plan, problems[at], plan.Validate()
}

// hardlyLonger is how much longer a step may be for what its setting saves of memory: ZeRO-3
// may need half of what ZeRO-1 does and take 0.1 % longer.
const hardlyLonger = 0.005

// settings are those of a job, with the plans found.
type settings struct {
	problems []*Problem
	all      []Setting
	plans    []*Plan
	best     int   // of the shortest step, the first of equals; -1 for none
	none     error // why the last of the settings that have no plan has none
	noneOf   int   // which that is
}

// promising lists the settings that may have a plan, the one with the least lower bound first.
func (x *settings) promising() ([]int, error) {
	var order []int
	for i, p := range x.problems {
		x.all[i] = Setting{Zero: p.Job.Zero, Recompute: p.Job.Recompute}
		if no := p.room().proveInfeasible(); no != nil {
			x.without(i, no, no.Reason)
			continue
		}
		var err error
		if x.all[i].Bound, err = LowerBound(p); err != nil {
			return nil, err
		}
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(x.all[a].Bound, x.all[b].Bound) })
	return order, nil
}

// without notes that a setting has no plan.
func (x *settings) without(i int, no error, why string) {
	x.all[i].Verdict, x.all[i].Why = Infeasible, why
	if x.none == nil || i > x.noneOf {
		x.none, x.noneOf = no, i
	}
}

// try plans a setting, unless that is known to be of no use.
func (x *settings) try(ctx context.Context, i int, solve func(context.Context, *Problem) (*Plan, error)) error {
	untried := func(why string) error {
		x.all[i].Verdict, x.all[i].Why = Untried, why
		return nil
	}
	if x.best >= 0 {
		switch best := x.plans[x.best].Step.Time.Mid; {
		case ctx.Err() != nil:
			return untried(strategy.WhenEnded(ctx)().Error())
		case x.all[i].Bound >= best:
			return untried(fmt.Sprintf("no plan of it takes less than %v", x.all[i].Bound))
		}
	}
	plan, err := solve(ctx, x.problems[i])
	var no *InfeasibleError
	switch {
	case errors.As(err, &no):
		x.without(i, err, no.Reason)
	case err != nil && x.best >= 0 && ctx.Err() != nil:
		return untried(strategy.WhenEnded(ctx)().Error())
	case err != nil:
		return err
	default:
		x.add(i, plan)
	}
	return nil
}

// add takes the plan of a setting.
func (x *settings) add(i int, p *Plan) {
	x.plans[i] = p
	x.all[i].of(p)
	if x.best < 0 || p.Step.Time.Mid < x.plans[x.best].Step.Time.Mid {
		x.best = i
	}
}

// of takes what a setting says of its plan.
func (s *Setting) of(p *Plan) {
	s.Strategy, s.Time = p.Strategy, p.Step.Time
	if base := p.Baseline(); base != nil {
		s.Baseline = base.Time.Mid
	}
	for _, c := range p.Compared {
		if c.Strategy == p.Strategy {
			s.Peak = c.Peak
		}
	}
}

// leastMemory is the setting whose step is hardly longer than the best and that needs the
// least memory.
func (x *settings) leastMemory() int {
	at, best := x.best, x.plans[x.best].Step.Time.Mid
	for i, p := range x.plans {
		if p != nil && x.all[i].Peak < x.all[at].Peak && p.Step.Time.Mid <= best*(1+hardlyLonger) {
			at = i
		}
	}
	return at
}

// judged are the settings with their verdicts beside the chosen one.
func (x *settings) judged(chosen int) []Setting {
	own := x.plans[chosen]
	for i, p := range x.plans {
		s := &x.all[i]
		switch {
		case p == nil:
			continue
		case i == chosen:
			s.Verdict = Chosen
			continue
		}
		s.GainError, _ = costmodel.GainError(&p.Step, &own.Step)
		switch lost := p.Step.Time.Mid - own.Step.Time.Mid; {
		case lost <= own.Step.Time.Mid*hardlyLonger:
			s.Verdict = Equal
		case lost <= s.GainError:
			s.Verdict = Tie
		default:
			s.Verdict = Slower
		}
	}
	return x.all
}

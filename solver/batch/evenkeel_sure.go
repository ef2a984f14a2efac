package batch

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Sure is our planner for those who do not bet, as evenkeel-sure is of one sequence
// (package solver). The fastest plan keeps every device busy to the end, also those to
// which the baseline gives less than they could do; then it rests on laws that the
// baseline has room for, and its gain may be less than what these are off by. A plan that
// leaves such devices some room, or has more groups of the kinds that the baseline has,
// gains a little less and is worth more. It is found at prices that are raised, each by a
// share of what a group of the class may take longer while the baseline takes no longer.
//
// It comes after other strategies, whose attempts it needs, and has no plan where none of
// them is faster than a plan that surely gains already, or none that it finds gains surely.
func Sure(attempts []Attempt, o Options) Strategy { return evenSure{attempts, o} }

const sureName = "evenkeel-sure"

type evenSure struct {
	attempts []Attempt
	options  Options
}

func (evenSure) Name() string { return sureName }

func (evenSure) Claims() Claims {
	return Claims{Doc: "evenkeel's search at prices raised by a share of what each kind of group may take longer while the strongest baseline does not: of the plans found the fastest that surely gains, where no faster plan does"}
}

// Prices are raised by `shares` shares of the doubts, from leastWary to twice the doubt:
// with none in doubt the search is evenkeel's, beyond that a class is as good as not there.
// Of 53 batches on eight clusters whose gain was in doubt, and not nothing, 35 were given a
// plan, with every other share 32.
const (
	shares    = 9
	leastWary = 1.0 / 8
)

// Solve implements Strategy.
func (x evenSure) Solve(ctx context.Context, p *Problem) (*Plan, error) {
	s, err := x.seek(p)
	if err != nil {
		return nil, err
	}
	for by := leastWary; s.made < shares && ctx.Err() == nil; by *= math.Sqrt2 {
		if err := s.try(ctx, by); err != nil {
			return nil, err
		}
	}
	switch {
	case s.best != nil:
		return s.best, nil
	case s.made < shares:
		return nil, ctx.Err()
	}
	return nil, noSure("of %s made none gains more over the strongest baseline than the cost model can be wrong by", units.Count(s.made, "plan"))
}

func noSure(why string, args ...any) error { return &IllegalError{Why: fmt.Sprintf(why, args...)} }

// seek says what a plan has to be faster than, and what it has to gain over.
func (x evenSure) seek(p *Problem) (*seeker, error) {
	plans := make([]*recommend.Plan, len(x.attempts))
	least := units.Seconds(math.Inf(1))
	for i := range x.attempts {
		if plans[i] = x.attempts[i].plan(); plans[i] != nil {
			least = min(least, plans[i].Time)
		}
	}
	best, base := recommend.Best(plans)
	of, _ := p.laws()
	switch {
	case base < 0:
		return nil, noSure("no baseline has a plan, so that there is nothing to gain over")
	case plans[base].Step == nil || of == nil:
		return nil, noSure("nobody knows how far the prices are off, so that every gain is taken as sure")
	case !slower(plans[best].Time, least) && best == base:
		return nil, noSure("no plan is faster than the strongest baseline")
	case !slower(plans[best].Time, least):
		return nil, noSure("no plan is faster than one that surely gains already")
	}
	s := &seeker{p: p, base: plans[base].Step, than: plans[best].Time, planner: NewPlanner(x.options)}
	var err error
	s.doubts, err = doubtsOf(p, of, s.base)
	return s, err
}

// seeker makes plans at raised prices and keeps the fastest whose gain is beyond doubt.
type seeker struct {
	p       *Problem
	planner *Planner
	base    *costmodel.Step // the baseline's
	doubts  []float64       // by class
	than    units.Seconds   // what a plan has to be faster than
	best    *Plan
	made    int
}

// try raises prices by a share of their doubts.
func (s *seeker) try(ctx context.Context, by float64) error {
	plan, err := s.planner.Plan(ctx, s.p.raised(s.doubts, by))
	if ctx.Err() != nil && err != nil {
		return nil // what was found before stays
	}
	if err != nil {
		return err
	}
	s.made++
	Evaluate(s.p, plan)
	if !slower(s.than, plan.Time) {
		return nil
	}
	step, err := accountOf(s.p, plan)
	if err != nil {
		return err
	}
	if half, _ := costmodel.GainError(s.base, step); s.base.Time.Mid-plan.Time > half {
		s.best, s.than = plan, plan.Time
	}
	return nil
}

// doubtsOf says of each class by what share a group of it may take longer than it is priced
// at while a plan takes no longer: 0 where all that it may be off by the plan is off by too.
func doubtsOf(p *Problem, of accountant, plan *costmodel.Step) ([]float64, error) {
	doubts := make([]float64, len(p.Classes))
	for c := range p.Classes {
		lengths := typical(p.Lengths, p.Classes[c].Cap)
		if len(lengths) == 0 {
			continue
		}
		step, err := of.Account(c, lengths)
		if err != nil {
			return nil, err
		}
		half, _ := costmodel.GainError(plan.Scaled(1), step.Scaled(1))
		doubts[c] = float64(half)
	}
	return doubts, nil
}

// typical are sequences that fill a group of so many tokens, some of each length that it
// may hold: every so many-th, the longest first.
func typical(lengths []units.Tokens, room units.Tokens) []units.Tokens {
	var fit, some []units.Tokens
	total := units.Tokens(0)
	for _, n := range lengths {
		if n <= room {
			fit = append(fit, n)
			total += n
		}
	}
	slices.Sort(fit)
	slices.Reverse(fit)
	each := int((total + room - 1) / room)
	for i := 0; i < len(fit); i += each {
		if fit[i] <= room {
			some = append(some, fit[i])
			room -= fit[i]
		}
	}
	return some
}

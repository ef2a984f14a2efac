package recommend

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// doubtful is a plan that may take longer by so much, which no baseline here may.
func doubtful(name string, time, by units.Seconds) *Plan {
	return &Plan{Strategy: name, Time: time, Step: &costmodel.Step{Time: costmodel.Estimate{Lo: time, Mid: time, Hi: time + by}, Contention: by}}
}

func today(name string, time units.Seconds) *Plan {
	p := doubtful(name, time, 0)
	p.Baseline = true
	return p
}

// unknown is a plan whose error nobody knows.
func unknown(name string, time units.Seconds, baseline bool) *Plan {
	return &Plan{Strategy: name, Baseline: baseline, Time: time}
}

func TestTheFastestPlanThatSurelyGainsIsRecommended(t *testing.T) {
	hair := units.Seconds(math.Nextafter(10, 0))
	for name, c := range map[string]struct {
		plans    []*Plan
		best     string
		verdicts string
	}{
		"none":                                  {[]*Plan{nil, nil}, "", ""},
		"no baseline":                           {[]*Plan{nil, doubtful("a", 9, 5), doubtful("b", 8, 5)}, "b", "- slower chosen"},
		"sure":                                  {[]*Plan{today("old", 12), today("older", 14), doubtful("a", 9, 2)}, "a", "slower slower chosen"},
		"the faster is less sure":               {[]*Plan{today("old", 10), doubtful("a", 7, 3.5), doubtful("b", 8, 1)}, "b", "slower ~ chosen"},
		"none is sure":                          {[]*Plan{today("old", 10), doubtful("a", 7, 3), doubtful("b", 8, 9)}, "old", "chosen ~ ~"},
		"a gain of just the error is none":      {[]*Plan{today("old", 10), doubtful("a", 7, 3)}, "old", "chosen ~"},
		"a baseline is not tied with a faster":  {[]*Plan{today("old", 10), today("older", 10.5), doubtful("a", 9, 2)}, "old", "chosen slower ~"},
		"one that takes longer is slower":       {[]*Plan{today("old", 10), doubtful("a", 11, 5)}, "old", "chosen slower"},
		"baselines as fast as each other":       {[]*Plan{today("old", 10), today("older", 10), doubtful("a", 8, 1)}, "a", "slower slower chosen"},
		"as fast as the baseline":               {[]*Plan{today("old", 10), doubtful("a", 10, 0)}, "old", "chosen equal"},
		"a gain of rounding is none":            {[]*Plan{today("old", 10), doubtful("a", 10, 0), doubtful("b", hair, 1e-19)}, "old", "chosen equal equal"},
		"the last of equals":                    {[]*Plan{today("old", 10), doubtful("a", 7, 1), doubtful("b", 7*(1+1e-12), 1)}, "b", "slower equal chosen"},
		"the last of equals, unless less sure":  {[]*Plan{today("old", 10), doubtful("a", 7, 1), doubtful("b", 7, 2)}, "a", "slower chosen equal"},
		"of those whose error is not known too": {[]*Plan{unknown("old", 10, true), unknown("a", 9, false), unknown("b", 9, false)}, "b", "slower equal chosen"},
	} {
		best, base := Best(c.plans)
		if best < 0 {
			if c.best != "" || base >= 0 {
				t.Errorf("%s: %d, %d", name, best, base)
			}
			continue
		}
		var against *Plan
		if base >= 0 {
			against = c.plans[base]
			if against.Strategy != "old" {
				t.Errorf("%s: against %s", name, against.Strategy)
			}
		}
		var verdicts []string
		for _, p := range c.plans {
			if p == nil {
				verdicts = append(verdicts, "-")
				continue
			}
			verdicts = append(verdicts, string(p.Verdict(c.plans[best], against)))
		}
		if got := strings.Join(verdicts, " "); c.plans[best].Strategy != c.best || got != c.verdicts {
			t.Errorf("%s: %s, want %s: %s, want %s", name, c.plans[best].Strategy, c.best, got, c.verdicts)
		}
	}
}

func TestADoubtfulGainSaysWhatSettlesIt(t *testing.T) {
	plans := []*Plan{today("old", 10), doubtful("a", 7, 4)}
	Best(plans)
	const want = "gains 3 s +- 4 s over old, which the cost model cannot tell from nothing; most of the doubt is how much messages slow computing beside them (overlap); to settle it: evenkeel replay of the plan, then check; or take the plan all the same: --take a"
	if got := plans[1].InDoubt(plans[0]); got != want {
		t.Errorf("%q", got)
	}
	// A hair's difference is rounding's: "gains 0.00178 ps +- 1.86 ms" told nobody anything.
	if got, want := (&Plan{Strategy: "b", Time: 10 - 1e-12, GainError: 2e-3}).InDoubt(plans[0]), "takes as long as old, +- 2 ms by the cost model's error"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := (&Plan{Strategy: "b", Time: 10}).InDoubt(plans[0]), "takes as long as old, part for part"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if plans[0].GainError != 0 || plans[0].Doubt != "" {
		t.Errorf("the baseline against itself: %+v", plans[0])
	}
}

func TestAnUnknownNameIsToldTheNearest(t *testing.T) {
	names := []string{"ring", "ulysses", "evenkeel"}
	for name, want := range map[string]string{
		"evenkeil": `unknown strategy "evenkeil" (did you mean "evenkeel"?); the strategies are ring, ulysses, evenkeel`,
		"zigzag":   `unknown strategy "zigzag"; the strategies are ring, ulysses, evenkeel`,
	} {
		if got := Unknown(name, names).Error(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// full is an error of memory.
type full struct{ error }

func (full) Over() float64 { return 2 }

// Why a strategy has no plan is told apart: it has none of the kind, it exceeds the memory,
// the time was up.
func TestCompareTellsWhyThereIsNoPlan(t *testing.T) {
	c, err := Compare([]Attempt{
		{Strategy: "a", Err: errors.New("no such devices")},
		{Strategy: "b", Err: fmt.Errorf("wrapped: %w", full{errors.New("2 of 1 GiB")})},
		{Strategy: "c", Err: context.DeadlineExceeded},
		{Strategy: "d", Plan: &Plan{Strategy: "d", Time: 2}},
	}, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	var got []Verdict
	table := Table{Strategy: "d", Time: 2, Bound: 1}
	for i := range c.Candidates {
		got = append(got, c.Candidates[i].Verdict)
		table.Candidates = append(table.Candidates, &c.Candidates[i])
	}
	if want := []Verdict{NotLegal, Infeasible, Late, Chosen}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if err := table.Validate(); err != nil {
		t.Error(err)
	}
}

// named is a strategy of which only the name counts.
type named string

func (n named) Name() string { return string(n) }

func (named) Claims() Claims { return Claims{} }

func TestANameIsOneOfTheStrategies(t *testing.T) {
	strategies := []named{"ring", "evenkeel"}
	for _, name := range []string{"", "ring", "evenkeel"} {
		if err := Known(name, strategies); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	const want = `unknown strategy "evenkeil" (did you mean "evenkeel"?); the strategies are ring, evenkeel`
	if err := Known("evenkeil", strategies); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// over is an error of memory by a factor.
type over float64

func (o over) Error() string { return fmt.Sprintf("%v times the memory", float64(o)) }

func (o over) Over() float64 { return float64(o) }

// Of plans that all exceed the memory the nearest is told, of equally near ones the first; what
// failed for another reason says nothing of memory.
func TestNoRoomIsToldByTheNearestPlan(t *testing.T) {
	other := errors.New("no such devices")
	for _, c := range []struct {
		errs []error
		want string
	}{
		{nil, ""},
		{[]error{nil, other, context.DeadlineExceeded}, ""},
		{[]error{over(3)}, "no plan fits: 3 times the memory"},
		{[]error{other, over(3), nil, over(2), over(4)}, "no plan fits: 2 times the memory"},
		{[]error{full{errors.New("first")}, over(2)}, "no plan fits: first"},
		{[]error{over(2), full{errors.New("first")}}, "no plan fits: 2 times the memory"},
		{[]error{over(2), fmt.Errorf("wrapped: %w", over(1.5))}, "no plan fits: 1.5 times the memory"},
	} {
		var attempts []Attempt
		for _, err := range c.errs {
			attempts = append(attempts, Attempt{Err: err})
		}
		err := NoRoom(attempts)
		if c.want == "" {
			if err != nil {
				t.Errorf("%v: %v", c.errs, err)
			}
			continue
		}
		var why *InfeasibleError
		if !errors.As(err, &why) || err.Error() != c.want || !errors.As(err, new(overfull)) {
			t.Errorf("%v: %v, want %s", c.errs, err, c.want)
		}
	}
}

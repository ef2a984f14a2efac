package solver

import (
	"context"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Default is the strategy that Solve runs when none is named.
const Default = "evenkeel"

// Solve runs every baseline, the published strategies and the named ones
// (Default if there are none) and returns the plan to recommend: the fastest that
// fits and surely gains over the strongest baseline, or that baseline if no gain is more
// than the cost model can be wrong by.
// When ctx ends the strategies return their best so far. report may be nil.
//
// Errors: an unknown strategy, *InfeasibleError if nothing fits, that of ctx if
// it ends before anything that fits is found, *costmodel.MissingLawError.
func Solve(ctx context.Context, p *Problem, names []string, report func(Progress)) (*Plan, error) {
	if p.Take != "" {
		names = append(slices.Clone(names), p.Take)
	}
	todo, err := chooseStrategies(names)
	if err != nil {
		return nil, err
	}
	if no := p.proveInfeasible(); no != nil {
		return nil, no
	}
	bounded, ctx := p.boundMeanwhile(ctx)
	found, skipped, err := p.solveEach(ctx, todo, report)
	b := bounded()
	if b.err != nil {
		return nil, b.err
	}
	if err != nil {
		return nil, err
	}
	// Where it has no plan, that is nothing to tell unless somebody asks for it.
	if sure := (evenSure{}).Name(); !slices.Contains(names, sure) {
		found = slices.DeleteFunc(found, func(a attempt) bool { return a.strategy.Name() == sure && a.illegal != "" })
	}
	plan, err := p.pick(found, b.seconds)
	if plan != nil {
		plan.Warnings = append(skipped, plan.Warnings...)
	}
	return plan, err
}

// bound is what LowerBound says.
type bound struct {
	seconds units.Seconds
	err     error
}

// boundMeanwhile finds the lower bound beside other work, which a missing law ends, and
// returns how to wait for it. Neither needs anything of the other, and it is a quarter of
// all planning.
func (p *Problem) boundMeanwhile(ctx context.Context) (wait func() bound, work context.Context) {
	work, stop := context.WithCancel(ctx)
	done := make(chan bound, 1)
	go func() {
		var b bound
		if b.seconds, b.err = LowerBound(p); b.err != nil {
			stop()
		}
		done <- b
	}()
	return func() bound {
		defer stop()
		return <-done
	}, work
}

func chooseStrategies(names []string) ([]Strategy, error) {
	if len(names) == 0 {
		names = []string{Default}
	}
	for _, n := range names {
		if _, err := Lookup(n); err != nil {
			return nil, err
		}
	}
	// One does not go without the other.
	ours := []string{Default, evenSure{}.Name()}
	if slices.ContainsFunc(names, func(n string) bool { return slices.Contains(ours, n) }) {
		names = append(slices.Clone(names), ours...)
	}
	var todo []Strategy
	for _, s := range named() {
		if s.Claims().Baseline || s.Claims().Published || slices.Contains(names, s.Name()) {
			todo = append(todo, s)
		}
	}
	return todo, nil
}

// attempt is a strategy's result, which may not fit or not exist.
type attempt struct {
	Result
	strategy  Strategy
	misfit    *MemoryError
	illegal   string // why it has no layout at all; Step is nil then
	gainError units.Seconds
	doubt     string // the law that adds most to it
}

func (a *attempt) time() units.Seconds { return a.Step.Time.Mid }

// fits says that the attempt has a layout that can be run.
func (a *attempt) fits() bool { return a.Step != nil && a.misfit == nil }

// fastest is the fastest attempt that fits and is wanted, or nil; ties go to
// the first.
func fastest(found []attempt, wanted func(*attempt) bool) *attempt {
	var best *attempt
	for i := range found {
		a := &found[i]
		if a.fits() && wanted(a) && (best == nil || a.time() < best.time()) {
			best = a
		}
	}
	return best
}

// lastOfEquals is the last attempt as fast as the chosen one, if that is no
// baseline: a later strategy starts from the plans of those before, and where it
// finds none better the plan is its own as well.
func lastOfEquals(found []attempt, chosen *attempt) *attempt {
	if chosen.strategy.Claims().Baseline {
		return chosen
	}
	for i := range found {
		a := &found[i]
		if a.fits() && !a.strategy.Claims().Baseline && equal(a.time(), chosen.time()) && a.gainError <= chosen.gainError {
			chosen = a
		}
	}
	return chosen
}

// equal says that two times differ by rounding at most.
func equal(a, b units.Seconds) bool { return near(float64(a), float64(b)) }

// pick chooses among attempts and writes the plan.
func (p *Problem) pick(found []attempt, bound units.Seconds) (*Plan, error) {
	chosen := fastest(found, func(*attempt) bool { return true })
	if chosen == nil {
		return nil, p.noneFits(found)
	}
	base := fastest(found, func(a *attempt) bool { return a.strategy.Claims().Baseline })
	if base != nil {
		for i := range found {
			weigh(&found[i], base)
		}
		// One that gains more can be the less sure of it.
		chosen = fastest(found, func(a *attempt) bool { return !tied(a, base) })
	}
	chosen = lastOfEquals(found, chosen)
	recommended := chosen
	if p.Take != "" {
		named := func(a *attempt) bool { return a.strategy.Name() == p.Take }
		if chosen = fastest(found, named); chosen == nil {
			at := slices.IndexFunc(found, func(a attempt) bool { return named(&a) })
			if at < 0 {
				return nil, fmt.Errorf("the plan of %s was asked for, and the time was up before it was found: give it more", p.Take)
			}
			return nil, notToBeHad(found[at])
		}
	}
	plan := &Plan{
		Simulated: p.Profile.Simulated, Job: p.Job, Strategy: chosen.strategy.Name(), Taken: chosen != recommended,
		Ranks: p.planRanks(chosen.Layout), Groups: chosen.Layout.Groups, OwnLast: chosen.Layout.OwnLast, KeepTail: chosen.Layout.KeepTail, HeadChunks: chosen.Layout.HeadChunks, TwoBatch: chosen.Layout.TwoBatch, Step: *chosen.Step,
		Bound: bound, Gap: gapOf(chosen.time(), bound), Warnings: warnings(found), Notes: notModelled(),
	}
	for i := range found {
		plan.Compared = append(plan.Compared, candidate(&found[i], chosen, base, bound))
	}
	return plan, plan.Validate()
}

// notToBeHad says why the plan of a named strategy cannot be taken.
func notToBeHad(a attempt) *InfeasibleError {
	why := "it found no plan"
	switch {
	case a.illegal != "":
		why = a.illegal
	case a.misfit != nil:
		why = a.misfit.Error()
	}
	return &InfeasibleError{Reason: fmt.Sprintf("the plan of %s was asked for: %s", a.strategy.Name(), why), WayOut: "take another strategy, or leave the choice to solve"}
}

// noneFits reports the layout that came nearest.
func (p *Problem) noneFits(found []attempt) *InfeasibleError {
	var nearest *MemoryError
	for _, a := range found {
		if a.misfit != nil && (nearest == nil || fill(a.misfit.Memory) < fill(nearest.Memory)) {
			nearest = a.misfit
		}
	}
	return &InfeasibleError{Reason: nearest.Error(), WayOut: p.wayOut()}
}

func fill(m costmodel.Memory) float64 { return float64(m.Peak()) / float64(m.Capacity) }

// weigh finds the error of what an attempt gains over the baseline.
func weigh(a, base *attempt) {
	if a != base && a.fits() {
		a.gainError, a.doubt = costmodel.GainError(base.Step, a.Step)
	}
}

// tied says that an attempt gains no more than the model can tell.
func tied(a, base *attempt) bool {
	return a != base && a.fits() && base.time()-a.time() <= a.gainError
}

func gapOf(t, bound units.Seconds) float64 { return float64(t/bound) - 1 }

func warnings(found []attempt) []string {
	var out []string
	for _, a := range found {
		if a.Stopped {
			out = append(out, fmt.Sprintf("strategy %s was stopped after %d layouts; this is its best until then", a.strategy.Name(), a.Evaluated))
		}
	}
	return out
}

func (p *Problem) planRanks(l costmodel.Layout) []PlanRank {
	ranks := make([]PlanRank, len(p.ranks))
	for r, k := range p.ranks {
		s := l.Shards[r]
		ranks[r] = PlanRank{Rank: r, Device: k.Device, Node: k.NodeName, Tokens: s.Tokens(), Segments: s.Segments}
		ranks[r].Group = -1
	}
	for g, group := range l.Groups {
		first := 0
		for _, m := range group {
			r := &ranks[m.Rank]
			r.Group, r.FirstQ, r.QHeads, r.KVHeads = g, first, m.QHeads, p.Job.Model.KVHeadsOf(first, m.QHeads)
			first += m.QHeads
		}
	}
	return ranks
}

func candidate(a, chosen, base *attempt, bound units.Seconds) Candidate {
	c := Candidate{Strategy: a.strategy.Name(), Baseline: a.strategy.Claims().Baseline, Why: a.Why, GainError: a.gainError, Verdict: verdict(a, chosen, base)}
	if c.Verdict == NotLegal {
		c.Why = a.illegal
		return c
	}
	c.Time, c.Gap, c.Peak = a.Step.Time, gapOf(a.time(), bound), peak(a.Step)
	for _, r := range a.Step.Ranks {
		c.Busy, c.Exposed, c.Idle = c.Busy+r.Busy, c.Exposed+r.Exposed, c.Idle+r.Idle
	}
	n := units.Seconds(len(a.Step.Ranks))
	c.Busy, c.Exposed, c.Idle = c.Busy/n, c.Exposed/n, c.Idle/n
	if base != nil && a.fits() {
		c.Speedup = float64(base.time() / a.time())
	}
	if a != chosen {
		c.Layout = &a.Layout
	}
	switch c.Verdict {
	case Infeasible:
		c.Why = a.misfit.Error()
	case Tie:
		c.Why += fmt.Sprintf("; gains %v +- %v over %s, which the cost model cannot tell from nothing", base.time()-a.time(), a.gainError, base.strategy.Name())
		if a.doubt != "" {
			c.Why += fmt.Sprintf("; most of the doubt is %s: measure that, or take the plan all the same: --take %s", a.doubt, a.strategy.Name())
		}
	}
	return c
}

func verdict(a, chosen, base *attempt) Verdict {
	switch {
	case a.Step == nil:
		return NotLegal
	case a.misfit != nil:
		return Infeasible
	case a == chosen:
		return Chosen
	case equal(a.time(), chosen.time()):
		return Equal
	case base != nil && !a.strategy.Claims().Baseline && tied(a, base) && a.time() <= base.time():
		return Tie
	}
	return Slower
}

// peak is the memory of the rank that is fullest in proportion.
func peak(s *costmodel.Step) units.Bytes {
	best := costmodel.Memory{Capacity: 1}
	for _, r := range s.Ranks {
		if fill(r.Memory) > fill(best) {
			best = r.Memory
		}
	}
	return best.Peak()
}

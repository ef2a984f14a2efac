package solver

import (
	"context"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Default is the strategy that Solve runs when none is named.
const Default = "evenkeel"

// Solve runs all baselines, the published strategies and the named ones (Default if names
// is empty), and returns the plan to recommend: the fastest one that fits and whose gain
// over the strongest baseline exceeds the cost model's error, or that baseline if there
// is none. When ctx ends the strategies return their best so far. report may be nil.
//
// Errors: an unknown strategy, *InfeasibleError if nothing fits, ctx's error if it ends
// before a layout that fits is found, *costmodel.MissingLawError.
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
	if !slices.Contains(names, sureName) {
		found = slices.DeleteFunc(found, func(a attempt) bool { return a.strategy.Name() == sureName && a.illegal != "" })
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
	ours := []string{Default, sureName}
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
	strategy Strategy
	memErr   *MemoryError
	illegal  string // why it has no layout at all; Step is nil then
}

func (a *attempt) time() units.Seconds { return a.Step.Time.Mid }

// plan is what choosing knows of the attempt; nil where it has no layout that can be run.
func (a *attempt) plan() *recommend.Plan {
	if a.Step == nil || a.memErr != nil {
		return nil
	}
	return &recommend.Plan{Strategy: a.strategy.Name(), Baseline: a.strategy.Claims().Baseline, Time: a.time(), Step: a.Step}
}

// pick chooses among attempts and writes the plan.
func (p *Problem) pick(found []attempt, bound units.Seconds) (*Plan, error) {
	w := weighed{found: found, bound: bound}
	for i := range found {
		w.plans = append(w.plans, found[i].plan())
	}
	recommended, base := recommend.Best(w.plans)
	if recommended < 0 {
		return nil, p.noneFits(found)
	}
	at := recommended
	if p.Take != "" {
		var err error
		if at, err = p.taken(found); err != nil {
			return nil, err
		}
	}
	chosen := &found[at]
	w.chosen = w.plans[at]
	if base >= 0 {
		w.base = w.plans[base]
	}
	plan := &Plan{
		Simulated: p.Profile.Simulated, Job: p.Job, Strategy: chosen.strategy.Name(), Taken: at != recommended,
		Ranks: p.planRanks(chosen.Layout), Groups: chosen.Layout.Groups, OwnLast: chosen.Layout.OwnLast, KeepTail: chosen.Layout.KeepTail, HeadChunks: chosen.Layout.HeadChunks, TwoBatch: chosen.Layout.TwoBatch, Step: *chosen.Step,
		Bound: bound, Gap: gapOf(chosen.time(), bound), Warnings: warnings(found), Notes: notModelled(),
	}
	for i := range found {
		plan.Compared = append(plan.Compared, w.candidate(i))
	}
	return plan, plan.Validate()
}

// taken is the place of the attempt that was asked for by name.
func (p *Problem) taken(found []attempt) (int, error) {
	at := slices.IndexFunc(found, func(a attempt) bool { return a.strategy.Name() == p.Take })
	if at < 0 {
		return 0, fmt.Errorf("the plan of %s was asked for, and the time was up before it was found: give it more", p.Take)
	}
	if found[at].plan() == nil {
		return 0, notToBeHad(found[at])
	}
	return at, nil
}

// notToBeHad says why the plan of a named strategy cannot be taken.
func notToBeHad(a attempt) *InfeasibleError {
	why := "it found no plan"
	switch {
	case a.illegal != "":
		why = a.illegal
	case a.memErr != nil:
		why = a.memErr.Error()
	}
	return &InfeasibleError{Reason: fmt.Sprintf("the plan of %s was asked for: %s", a.strategy.Name(), why), WayOut: "take another strategy, or leave the choice to solve"}
}

// noneFits reports the layout that came nearest.
func (p *Problem) noneFits(found []attempt) *InfeasibleError {
	var nearest *MemoryError
	for _, a := range found {
		if a.memErr != nil && (nearest == nil || fill(a.memErr.Memory) < fill(nearest.Memory)) {
			nearest = a.memErr
		}
	}
	return &InfeasibleError{Reason: nearest.Error(), WayOut: p.wayOut()}
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

// weighed are attempts after one of them was chosen.
type weighed struct {
	found        []attempt
	plans        []*recommend.Plan // of these, nil where there is none that can be run
	chosen, base *recommend.Plan   // base may be nil
	bound        units.Seconds
}

// candidate is what the document says of an attempt.
func (w *weighed) candidate(i int) Candidate {
	a, plan := &w.found[i], w.plans[i]
	c := Candidate{Strategy: a.strategy.Name(), Baseline: a.strategy.Claims().Baseline, Why: a.Why, Verdict: Infeasible}
	if a.Step == nil {
		c.Verdict, c.Why = NotLegal, a.illegal
		return c
	}
	c.Time, c.Gap, c.Peak = a.Step.Time, gapOf(a.time(), w.bound), peak(a.Step)
	for _, r := range a.Step.Ranks {
		c.Busy, c.Exposed, c.Idle = c.Busy+r.Busy, c.Exposed+r.Exposed, c.Idle+r.Idle
	}
	n := units.Seconds(len(a.Step.Ranks))
	c.Busy, c.Exposed, c.Idle = c.Busy/n, c.Exposed/n, c.Idle/n
	if plan == nil || plan != w.chosen {
		c.Layout = &a.Layout
	}
	if plan == nil {
		c.Why = a.memErr.Error()
		return c
	}
	c.GainError, c.Verdict = plan.GainError, plan.Verdict(w.chosen, w.base)
	if w.base != nil {
		c.Speedup = float64(w.base.Time / a.time())
	}
	if c.Verdict == Tie {
		c.Why += "; " + plan.InDoubt(w.base)
	}
	return c
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

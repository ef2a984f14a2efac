package solver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/evenkeel"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Default is the strategy that Solve runs when none is named.
const Default = evenkeel.Name

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
	if no := p.room().proveInfeasible(); no != nil {
		return nil, no
	}
	in, err := p.inOrder()
	if err != nil {
		return nil, err
	}
	bounded, work := p.boundMeanwhile(ctx)
	found, skipped, err := p.solveEach(work, in, todo, report)
	b := bounded()
	if b.err != nil {
		return nil, b.err
	}
	lendSure(found)
	late := errors.Is(ctx.Err(), context.DeadlineExceeded) && errors.Is(err, context.Cause(ctx))
	if err == nil || late {
		var lent bool
		if found, skipped, lent = p.lendRing(ctx, in, todo, found, skipped); lent {
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	in.listAll(found)
	// Where it has no plan, that is nothing to tell unless somebody asks for it.
	if !slices.Contains(names, evenkeel.SureName) {
		found = slices.DeleteFunc(found, func(a strategy.Attempt) bool { return a.Strategy.Name() == evenkeel.SureName && a.Illegal != "" })
	}
	return p.pick(found, skipped, b.seconds)
}

// lendSure gives evenkeel the layout of evenkeel-sure where that is faster: it starts from what
// evenkeel found, and now and then comes by what that had not seen.
func lendSure(found []strategy.Attempt) {
	of := func(name string) *strategy.Attempt {
		at := slices.IndexFunc(found, func(a strategy.Attempt) bool {
			return a.Strategy.Name() == name && a.Illegal == "" && a.MemErr == nil
		})
		if at < 0 {
			return nil
		}
		return &found[at]
	}
	if ours, sure := of(evenkeel.Name), of(evenkeel.SureName); ours != nil && sure != nil && sure.Time() < ours.Time() {
		ours.Layout, ours.Step, ours.Why = sure.Layout, sure.Step, sure.Why
	}
}

// lendRing gives evenkeel the ring whose shares are what the devices have room for, where that
// fits and nothing that was found does. Searches move whole blocks of tokens and end a hair
// above the memory, or have no time left, which of evenkeel is then nothing to tell; ways out
// count on the ring (see room.wayOut).
func (p *Problem) lendRing(ctx context.Context, in ordered, todo []strategy.Strategy, found []strategy.Attempt, skipped []string) (all []strategy.Attempt, told []string, lent bool) {
	ours := slices.IndexFunc(todo, func(s strategy.Strategy) bool { return s.Name() == evenkeel.Name })
	if ours < 0 || slices.ContainsFunc(found, func(a strategy.Attempt) bool { return planOf(&a) != nil }) {
		return found, skipped, false
	}
	l, fits := p.roomOf(in.Problem).ring()
	if !fits {
		return found, skipped, false
	}
	step, err := in.Simulate(ctx, l)
	if err != nil {
		return found, skipped, false // as if nothing fitted
	}
	at := slices.IndexFunc(found, func(a strategy.Attempt) bool { return a.Strategy.Name() == evenkeel.Name })
	if at < 0 { // the time was up before it had a layout at all
		at, found = len(found), append(found, strategy.Attempt{Strategy: todo[ours]})
	}
	why := "ring, shares by what each rank has room for: nothing else was found that fits"
	found[at] = strategy.Attempt{
		Strategy: found[at].Strategy,
		Result:   strategy.Result{Layout: l, Step: step, Evaluated: found[at].Evaluated + 1, Stopped: found[at].Stopped, Why: why},
	}
	told = slices.DeleteFunc(skipped, func(s string) bool { return strings.HasPrefix(s, "strategy "+evenkeel.Name+": ") })
	return found, told, true
}

// floor is what LowerBound says.
type floor struct {
	seconds units.Seconds
	err     error
}

// boundMeanwhile finds the lower bound beside other work, which a missing law ends, and
// returns how to wait for it. Neither needs anything of the other, and it is a quarter of
// all planning.
func (p *Problem) boundMeanwhile(ctx context.Context) (wait func() floor, work context.Context) {
	work, stop := context.WithCancel(ctx)
	done := make(chan floor, 1)
	go func() {
		var b floor
		if b.seconds, b.err = LowerBound(p); b.err != nil {
			stop()
		}
		done <- b
	}()
	return func() floor {
		defer stop()
		return <-done
	}, work
}

func chooseStrategies(names []string) ([]strategy.Strategy, error) {
	if len(names) == 0 {
		names = []string{Default}
	}
	for _, n := range names {
		if _, err := Lookup(n); err != nil {
			return nil, err
		}
	}
	// One does not go without the other.
	ours := []string{Default, evenkeel.SureName}
	if slices.ContainsFunc(names, func(n string) bool { return slices.Contains(ours, n) }) {
		names = append(slices.Clone(names), ours...)
	}
	var todo []strategy.Strategy
	for _, s := range strategies() {
		if s.Claims().Baseline || s.Claims().Published || slices.Contains(names, s.Name()) {
			todo = append(todo, s)
		}
	}
	return todo, nil
}

// planOf is what choosing knows of the attempt; nil where it has no layout that can be run.
func planOf(a *strategy.Attempt) *recommend.Plan {
	if a.Step == nil || a.MemErr != nil {
		return nil
	}
	return &recommend.Plan{Strategy: a.Strategy.Name(), Baseline: a.Strategy.Claims().Baseline, Time: a.Time(), Step: a.Step}
}

// pick chooses among attempts and writes the plan, which says what was skipped.
func (p *Problem) pick(found []strategy.Attempt, skipped []string, bound units.Seconds) (*Plan, error) {
	w := weighed{found: found, bound: bound}
	for i := range found {
		w.plans = append(w.plans, planOf(&found[i]))
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
	l := chosen.Layout
	w.chosen = w.plans[at]
	if base >= 0 {
		w.base = w.plans[base]
	}
	plan := &Plan{
		Simulated: p.Profile.Simulated, Job: p.Job, Strategy: chosen.Strategy.Name(), Taken: w.asked(at, recommended, base),
		Ranks: p.planRanks(l), Groups: l.Groups, Schedule: l.Schedule, Step: *chosen.Step, Bound: bound,
		Gap: gapOf(chosen.Time(), bound), Warnings: slices.Concat(skipped, warnings(found), p.tightMemory(chosen.Step), p.acrossMakers(l)), Notes: notModelled(),
	}
	for i := range found {
		plan.Compared = append(plan.Compared, w.candidate(i))
	}
	return plan, plan.Validate()
}

// asked says that only a wish explains the choice of a plan in the place of the recommended one:
// not where it takes as long and gains as surely.
func (w *weighed) asked(at, recommended, base int) bool {
	x := w.plans[at]
	return at != recommended && !(recommend.Same(x.Time, w.plans[recommended].Time) && (base < 0 || !x.Tied(w.plans[base])))
}

// taken is the place of the attempt that was asked for by name.
func (p *Problem) taken(found []strategy.Attempt) (int, error) {
	at := slices.IndexFunc(found, func(a strategy.Attempt) bool { return a.Strategy.Name() == p.Take })
	if at < 0 {
		return 0, fmt.Errorf("the plan of %s was asked for, and the time was up before it was found: give it more", p.Take)
	}
	if planOf(&found[at]) == nil {
		return 0, notToBeHad(found[at])
	}
	return at, nil
}

// notToBeHad says why the plan of a named strategy cannot be taken.
func notToBeHad(a strategy.Attempt) *InfeasibleError {
	why := "it found no plan"
	switch {
	case a.Illegal != "":
		why = a.Illegal
	case a.MemErr != nil:
		why = a.MemErr.Error()
	}
	out := "take another strategy, or leave the choice to solve"
	if a.Strategy.Name() == (fixed{}).Name() {
		out = "other shares, or leave the choice to solve"
	}
	return &InfeasibleError{Asked: a.Strategy.Name(), Reason: why, WayOut: out}
}

// noneFits reports the layout that came nearest.
func (p *Problem) noneFits(found []strategy.Attempt) *InfeasibleError {
	var nearest *strategy.MemoryError
	for _, a := range found {
		if a.MemErr != nil && (nearest == nil || strategy.Fill(a.MemErr.Memory) < strategy.Fill(nearest.Memory)) {
			nearest = a.MemErr
		}
	}
	return &InfeasibleError{Reason: nearest.Error(), WayOut: p.room().wayOut()}
}

func gapOf(t, bound units.Seconds) float64 { return float64(t/bound) - 1 }

func warnings(found []strategy.Attempt) []string {
	var out []string
	for _, a := range found {
		if a.Stopped {
			out = append(out, fmt.Sprintf("strategy %s was stopped after %s; this is its best until then", a.Strategy.Name(), units.Count(a.Evaluated, "layout")))
		}
	}
	return out
}

// UsualReserve is what fragmentation takes of a device as a rule, where the allocator can
// grow its segments; assumed, until a device's own is measured.
const UsualReserve = 0.06

// tightMemory warns of a plan that leaves less than that on a device of which nobody measured
// what a program has for its tensors.
func (p *Problem) tightMemory(s *costmodel.Step) []string {
	if p.Job.MemoryReserve > 0 {
		return nil
	}
	at, most := -1, (1-UsualReserve)*costmodel.Usable
	for r, k := range s.Ranks {
		if fill := strategy.Fill(k.Memory); fill > most && !p.Predictor.MemoryMeasured(k.Device) {
			at, most = r, fill
		}
	}
	if at < 0 {
		return nil
	}
	m := s.Ranks[at].Memory
	return []string{fmt.Sprintf("%s is planned to %v of its %v, and nobody measured what the context, communicators and fragmentation take of that: --memory-reserve %.0f%% leaves them as much as fragmentation takes as a rule, and evenkeel calibrate on the device measures the context",
		p.posed.Place(at), m.Peak(), m.Capacity, 100*UsualReserve)}
}

// acrossMakers warns of a plan on GPUs of several makers.
func (p *Problem) acrossMakers(l costmodel.Layout) []string {
	var devices []string
	for r, k := range p.posed.Ranks {
		if l.Shards[r].Tokens() > 0 {
			devices = append(devices, k.Device)
		}
	}
	return p.Predictor.AcrossMakers(devices)
}

func (p *Problem) planRanks(l costmodel.Layout) []PlanRank {
	ranks := make([]PlanRank, len(p.posed.Ranks))
	for r, k := range p.posed.Ranks {
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
	found        []strategy.Attempt
	plans        []*recommend.Plan // of these, nil where there is none that can be run
	chosen, base *recommend.Plan   // base may be nil
	bound        units.Seconds
}

// candidate is what the document says of an attempt.
func (w *weighed) candidate(i int) Candidate {
	a, plan := &w.found[i], w.plans[i]
	c := Candidate{Strategy: a.Strategy.Name(), Baseline: a.Strategy.Claims().Baseline, Why: a.Why, Verdict: Infeasible}
	if a.Step == nil {
		c.Verdict, c.Why = NotLegal, a.Illegal
		return c
	}
	c.Time, c.Gap, c.Peak = a.Step.Time, gapOf(a.Time(), w.bound), peak(a.Step)
	for _, r := range a.Step.Ranks {
		c.Busy, c.Exposed, c.Idle = c.Busy+r.Busy, c.Exposed+r.Exposed, c.Idle+r.Idle
	}
	n := units.Seconds(len(a.Step.Ranks))
	c.Busy, c.Exposed, c.Idle = c.Busy/n, c.Exposed/n, c.Idle/n
	if plan == nil || plan != w.chosen {
		c.Layout = &a.Layout
	}
	if plan == nil {
		c.Why = a.MemErr.Error()
		return c
	}
	c.GainError, c.Verdict = plan.GainError, plan.Verdict(w.chosen, w.base)
	if w.base != nil {
		c.Speedup = float64(w.base.Time / a.Time())
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
		if strategy.Fill(r.Memory) > strategy.Fill(best) {
			best = r.Memory
		}
	}
	return best.Peak()
}

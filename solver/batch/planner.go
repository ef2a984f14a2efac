package batch

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Planner plans batches one after another and reuses its memory between them. It is not
// safe for concurrent use.
//
// A few sequences on a few devices are planned exactly (few). For others there is a search.
//
// A micro-batch's roof is a limit on the times of its groups. Given the roofs of all
// micro-batches, a plan is constructed greedily; the search is for the roofs. It has four
// steps:
//
//  1. Initial roofs (starter). The sequences are sorted by length and cut into as many
//     chunks as there are micro-batches, by dynamic programming over a relaxation in which
//     groups and sequences may be divided. This is done for several numbers of
//     micro-batches, of which the best are kept.
//  2. Construction and hill climbing (filler, climber). The filler assigns the sequences,
//     longest first, each to the micro-batch and class where it takes the least share of
//     the step. The climber changes a few roofs and the weights of classes at random, by
//     less and less, and keeps what gives a shorter plan.
//  3. Local search (polisher). Sequences move or are swapped between the slowest groups
//     and others, and groups change class.
//  4. Large neighbourhood search (refiller). Two or three micro-batches are emptied and
//     constructed anew under other roofs.
//
// Work is counted and random numbers have fixed seeds, so that the same problem gives the
// same plan on every machine. A search ends early when its plan is near the lower bound
// (quickBound). Far from it the climber starts again (tryAnew).
//
// Further starting points are plans of other strategies (tryOthers), of groups of one
// class (tryPacked), of each pool by itself (tryApart), under roofs that fall by a fixed
// ratio (tryTilted), and those that searches at perturbed prices find (tryNoisy). So a plan
// is no longer than those, unless ctx ends.
type Planner struct {
	options Options
	t       table // the problem at hand
	start   starter
	climb   climber
	refill  refiller
	polish  polisher
	pack    packer
	apart   *apart
	noisy   *Planner
	bound   float64 // quickBound of the problem, or what few knows, seconds
	best    state   // the best plan so far
	glanced state   // the plan of a first, quick search that was not enough
	found   state   // the plan at hand
	leads   []*lead // states of the climber, one for each number of micro-batches tried
	roofs   []float64
}

// NewPlanner makes a planner; nothing is computed before the first plan.
func NewPlanner(o Options) *Planner { return &Planner{options: o} }

// Plan returns the best plan found, with ranks (Place) and times (Evaluate).
//
// Errors: *TooLongError, ctx's error if it ends before there is a plan, or that there is
// no plan because groups fit in no node (which Validate refuses) or prices are infinite.
func (pl *Planner) Plan(ctx context.Context, p *Problem) (*Plan, error) {
	if err := p.Feasible(); err != nil {
		return nil, err
	}
	if err := pl.find(ctx, p); err != nil {
		return nil, err
	}
	pl.further(ctx)
	return pl.placed()
}

// placed is the best state as a plan with its ranks and times.
func (pl *Planner) placed() (*Plan, error) {
	plan := pl.best.plan(&pl.t)
	for i := range plan.Micro {
		if err := Place(pl.t.p, plan.Micro[i].Groups); err != nil {
			return nil, err
		}
	}
	Evaluate(pl.t.p, plan)
	return plan, nil
}

// further tries what a search does not, where its plan may not be the best.
func (pl *Planner) further(ctx context.Context) {
	if pl.best.total <= pl.bound*exactly {
		return
	}
	if !pl.tryAlike(ctx) {
		pl.tryTilted(ctx)
		pl.tryNoisy(ctx)
	}
	if len(pl.t.size) > 1 {
		pl.tryOthers(ctx)
	}
}

// The ratios of a plan's time to quickBound at which the search changes what it does.
const (
	// closeEnough ends the search, except of small batches and thorough searches; exactly
	// ends those.
	closeEnough = 1.002
	exactly     = 1 + 2*rounding
	// near is how far above the bound a glance may leave a plan. With 1.01, 11 of 40
	// bursts of 512 sequences took three times as long for plans 0.1 % shorter, and 150
	// Wikipedia-like batches were planned 0.05 % shorter on average, 0.4 % at most.
	near = 1.015
	// farOff is how far above the bound a plan makes another number of micro-batches
	// worth following: of 160 published batches it shortened single ones by 4 %.
	farOff = 1.08
	// hopeless is a beginning from which a glance does not come near.
	hopeless = 1.06
)

// effort is how much work each part of a search does.
type effort struct {
	numbers  int     // how many numbers of micro-batches are tried
	first    int     // plans constructed for each number that is nearly as good as the best
	leads    int     // of these numbers, how many are searched further
	spare    int     // and how many more while the plan is far from the bound
	climb    int     // plans constructed for each lead
	refill   int     // parts of a plan constructed anew
	patience int     // of these, how many in a row may bring nothing
	polish   int     // steps of local search
	enough   float64 // over quickBound: the search ends
	settle   float64 // over quickBound: no further number is tried; 0: all are
	giveUp   float64 // over quickBound: above it no further number is tried; 0: all are
	grain    grain   // of the starting points
}

func (o Options) effort() effort {
	if o.Effort == Quick {
		return effort{numbers: 2, first: 3, leads: 1, climb: 5, refill: 20, patience: 20, polish: polishSteps / 40, enough: closeEnough, settle: near, grain: coarse()}
	}
	e := effort{numbers: 3, first: 25, leads: 1, spare: 1, climb: 60, refill: 200, patience: 200, polish: polishSteps / 4, enough: closeEnough, grain: fine()}
	if o.Effort == Thorough {
		e.enough = exactly
	}
	return e
}

// effort is the effort for the problem at hand.
func (pl *Planner) effort() effort { return pl.options.effortFor(pl.t.items(), len(pl.t.size)) }

// effortFor is the effort for a batch of n sequences on so many pools.
func (o Options) effortFor(n, pools int) effort {
	e := o.effort()
	if o.Effort == Online && n > smallBatch && pools == 1 {
		// A training loop waits: less than half the work, for plans that are 0.1 % longer on
		// average (800 of the published batches).
		e.numbers, e.climb, e.refill, e.patience, e.polish = 2, 20, 300, 50, polishSteps/8
	}
	return e.forItems(n).forPools(pools)
}

// forItems does more for small batches, where every filling is quick and the best
// plan is a matter of single sequences.
func (e effort) forItems(n int) effort {
	if n > smallBatch {
		return e
	}
	times := min(mostTimes, (smallBatch*smallBatch)/(n*n))
	return effort{numbers: e.numbers + 3, first: e.first * times, leads: e.leads + 2, climb: e.climb * times, refill: e.refill * times, patience: e.refill * times, polish: e.polish, enough: exactly, grain: e.grain}
}

// forPools does more for several pools, whose groups are harder to level: with less,
// types planned apart that never have to meet were up to 1.7 % faster.
func (e effort) forPools(n int) effort {
	if n > 1 {
		e.leads++
		e.refill *= 1 + 5*e.spare
		e.patience = e.refill
		e.polish = polishSteps
		e.spare *= 3
	}
	return e
}

const (
	smallBatch = 48
	mostTimes  = 20
)

// find searches for a plan at the prices of a problem.
func (pl *Planner) find(ctx context.Context, p *Problem) error {
	pl.read(p)
	if pl.tryFew(ctx) {
		return nil
	}
	return pl.search(ctx)
}

// read begins with a problem.
func (pl *Planner) read(p *Problem) {
	pl.t.load(p)
	pl.bound = pl.t.quickBound()
	pl.anew()
}

// search finds a plan where there are too many sequences for tryFew, or no room on nodes.
func (pl *Planner) search(ctx context.Context) error {
	t, e := &pl.t, pl.effort()
	if pl.glance(ctx) {
		pl.tryOthers(ctx)
		return nil
	}
	enough := pl.bound * e.enough
	pl.best, pl.glanced = pl.glanced, pl.best
	pl.anew()
	pl.begin(ctx, e, enough)
	if len(t.size) > 1 {
		// Where memory is short, devices are worth what they hold and not what they do.
		t.setAlike()
		t.setWork()
		pl.begin(ctx, e, enough)
	}
	if math.IsInf(pl.best.total, 1) {
		if err := pl.force(ctx); err != nil {
			return err
		}
	}
	slices.SortStableFunc(pl.leads, func(a, b *lead) int { return cmp.Compare(a.best.total, b.best.total) })
	for i, l := range pl.leads {
		if i >= e.leads && (i >= e.leads+e.spare || !pl.another(l)) {
			break
		}
		pl.follow(ctx, l, e, enough)
	}
	pl.tryAnew(ctx, e, enough)
	pl.keep(&pl.glanced)
	if pl.best.total > pl.bound*e.settle {
		pl.tryPacked(ctx, e, enough)
		pl.tryApart(ctx, e, enough)
	}
	if len(t.size) == 1 {
		pl.tryOthers(ctx)
	}
	return nil
}

// another says whether a further lead is worth following: the plan is far off the
// bound, and the lead began nearly as well as the best did. Of several pools all are.
func (pl *Planner) another(l *lead) bool {
	began := l.best.total <= pl.leads[0].best.total*nearlyAsGood || len(pl.t.size) > 1
	return began && pl.best.total > pl.bound*farOff
}

// tryOthers takes the plan of another strategy where that is the better one: powers
// of two, or groups as full as they get, are at times nearer the bound than a plan
// that is close enough, or than what is found for dozens of micro-batches without
// room in memory. So ours is never worse than theirs unless its context ends first; flexsp,
// which takes minutes, is for Overtake. Of several pools it is done once, when all else has
// been: hardly ever is one of theirs better there.
func (pl *Planner) tryOthers(ctx context.Context) {
	t := &pl.t
	atLeast := t.leastOf
	if len(t.size) > 1 {
		atLeast = nil // groups of a layout are of several classes then
	}
	work := make([]units.Seconds, len(t.work))
	for k, w := range t.work {
		work[t.order[k]] = units.Seconds(w)
	}
	for _, solve := range []func(context.Context, *Problem) (*Plan, error){
		MegatronDynamicCP{}.Solve,
		func(ctx context.Context, p *Problem) (*Plan, error) {
			return Adaptive{}.shorter(ctx, p, units.Seconds(pl.best.total), atLeast)
		},
		func(ctx context.Context, p *Problem) (*Plan, error) {
			return FCP{}.shorter(ctx, p, units.Seconds(pl.best.total), work)
		},
	} {
		if pl.best.total <= pl.bound*exactly || ctx.Err() != nil {
			return
		}
		if plan, err := solve(ctx, t.p); err == nil && plan != nil && float64(plan.Time) < pl.best.total {
			t.take(plan, &pl.found)
			if t.anywhere {
				pl.keepOpen(&pl.found)
				pl.polish.run(t, &pl.found, polishSteps/40)
			} else if !pl.found.placed(t) {
				continue
			}
			pl.keep(&pl.found)
		}
	}
}

// placed says whether all groups find nodes.
func (s *state) placed(t *table) bool {
	for _, m := range s.plan(t).Micro {
		if Place(t.p, m.Groups) != nil {
			return false
		}
	}
	return true
}

// glance is what a plan that is needed at once gets, and says whether it is near
// enough to the bound for one that may take longer: many alike sequences pack so
// well that all further work is for nothing.
func (pl *Planner) glance(ctx context.Context) bool {
	if pl.options.Effort != Online || pl.t.items() <= smallBatch || len(pl.t.size) > 1 {
		return false
	}
	e := Options{Effort: Quick}.effort()
	e.giveUp = hopeless
	enough := pl.bound * e.enough
	pl.begin(ctx, e, enough)
	if pl.best.total > pl.bound*hopeless {
		return false
	}
	slices.SortStableFunc(pl.leads, func(a, b *lead) int { return cmp.Compare(a.best.total, b.best.total) })
	pl.follow(ctx, pl.leads[0], e, enough)
	return pl.best.total <= pl.bound*near
}

// anew forgets what was found.
func (pl *Planner) anew() {
	pl.best.total = math.Inf(1)
	pl.leads = pl.leads[:0]
}

// tryPacked goes on from groups of one class, where these are nearly as good.
func (pl *Planner) tryPacked(ctx context.Context, e effort, enough float64) {
	pl.pack.run(&pl.t)
	if pl.pack.best.total < pl.best.total*nearlyAsGood {
		pl.improve(ctx, &pl.pack.best, e, enough)
		pl.keep(&pl.pack.best)
	}
}

// follow goes on from a lead with all means, as long as it keeps up.
func (pl *Planner) follow(ctx context.Context, l *lead, e effort, enough float64) {
	t := &pl.t
	copy(t.worth, l.worth)
	t.setValues()
	t.setWork()
	pl.climb.resume(t, l)
	pl.climb.run(ctx, e.climb, enough)
	pl.finish(ctx, e, enough)
}

// finish improves what the climber found, where that is nearly as good as the best.
func (pl *Planner) finish(ctx context.Context, e effort, enough float64) {
	if pl.climb.best.total < pl.best.total*nearlyAsGood {
		pl.found.copyFrom(&pl.climb.best)
		pl.improve(ctx, &pl.found, e, enough)
		pl.keep(&pl.found)
	}
}

// tryAnew climbs again from the beginnings, with other changes, where the plan is far
// off the bound, and again where it is farther: of 80 batches of the stand-in one was 2 %
// longer without.
func (pl *Planner) tryAnew(ctx context.Context, e effort, enough float64) {
	if e.spare == 0 || len(pl.leads) == 0 || len(pl.t.size) > 1 {
		return
	}
	for i := range anewMost {
		if pl.best.total <= pl.bound*(farOff+farther*float64(i)) {
			return
		}
		pl.roofs = pl.start.roofs(pl.leads[i%len(pl.leads)].micro, pl.roofs)
		pl.climb.begin(&pl.t, pl.roofs, anotherStream+uint64(i))
		pl.climb.run(ctx, e.first+e.climb/2, enough)
		pl.finish(ctx, e, enough)
	}
}

// anewMost is how often, and farther what is added to farOff each time.
const (
	anewMost = 3
	farther  = 0.015
)

// anotherStream is none that a lead goes on with.
const anotherStream = 1 << 32

// improve changes a plan in parts.
func (pl *Planner) improve(ctx context.Context, s *state, e effort, enough float64) {
	pl.keepOpen(s)
	pl.polish.run(&pl.t, s, e.polish)
	pl.refill.run(ctx, &pl.t, s, &pl.polish, e.refill, e.patience, enough)
	pl.keepOpen(s)
	pl.polish.run(&pl.t, s, e.polish)
}

// begin climbs a little from the best numbers of micro-batches, and remembers where
// they stand. After a third of the way those far behind stay there.
func (pl *Planner) begin(ctx context.Context, e effort, enough float64) {
	t := &pl.t
	least := t.leastMicro()
	most := min(t.items(), least+max(4, least/2))
	pl.start.load(t, most, e.grain)
	from, look := len(pl.leads), min(e.first, max(firstLook, e.first/3))
	for _, m := range pl.start.numbers(least, most, e.numbers) {
		pl.roofs = pl.start.roofs(m, pl.roofs)
		pl.climb.begin(t, pl.roofs, 0)
		pl.climb.run(ctx, look, enough)
		pl.keep(&pl.climb.best)
		if !math.IsInf(pl.climb.best.total, 1) {
			pl.remember()
		}
		if pl.best.total <= pl.bound*e.settle || (e.giveUp > 0 && pl.best.total > pl.bound*e.giveUp) {
			return
		}
	}
	for _, l := range pl.leads[from:] {
		if look < e.first && l.best.total <= pl.best.total*keepsUp {
			pl.climb.resume(t, l)
			pl.climb.run(ctx, e.first-look, enough)
			pl.keep(&pl.climb.best)
			l.copyFrom(&pl.climb)
		}
	}
}

// Fillings before numbers of micro-batches are compared, and how near the best one
// must be then to go on. All three numbers going on took a tenth longer for plans no
// shorter.
const (
	firstLook = 8
	keepsUp   = 1.04
)

// keep makes a state the best where it is.
func (pl *Planner) keep(s *state) {
	if s.total < pl.best.total {
		pl.best.copyFrom(s)
	}
}

// keepOpen is keep of a state before it is polished, where that may make its step longer: what
// makes the sum of micro-batches shorter may leave more of the exchange open.
func (pl *Planner) keepOpen(s *state) {
	if pl.t.behind > 0 {
		pl.keep(s)
	}
}

// remember keeps where the climber stands.
func (pl *Planner) remember() {
	n := len(pl.leads)
	if n < cap(pl.leads) && pl.leads[:n+1][n] != nil {
		pl.leads = pl.leads[:n+1]
	} else {
		pl.leads = append(pl.leads, &lead{})
	}
	pl.leads[n].copyFrom(&pl.climb)
}

// force finds some plan where memory is so tight that none of the usual numbers of
// micro-batches gave one: with a micro-batch for every sequence there always is, unless
// groups find no node or take for ever.
func (pl *Planner) force(ctx context.Context) error {
	pl.start.load(&pl.t, 1, fine()) // for the classes
	for m := pl.t.leastMicro(); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		m = min(m+m/4+1, pl.t.items())
		pl.roofs = pl.roofs[:0]
		for range m {
			pl.roofs = append(pl.roofs, pl.t.leastRoof())
		}
		pl.climb.begin(&pl.t, pl.roofs, 0)
		pl.climb.run(ctx, 1, 0)
		if !math.IsInf(pl.climb.best.total, 1) {
			pl.best.copyFrom(&pl.climb.best)
			pl.polish.run(&pl.t, &pl.climb.best, polishSteps)
			pl.keep(&pl.climb.best)
			return nil
		}
		if m == pl.t.items() {
			return fmt.Errorf("a micro-batch for each of the %d sequences is no plan: the groups that hold some of them find no node, or take for ever", m)
		}
	}
}

// plan writes a state as a plan, the longest micro-batch and the largest group
// first.
func (s *state) plan(t *table) *Plan {
	order := make([]int, 0, len(s.roofs))
	for m, r := range s.roofs {
		if r > 0 {
			order = append(order, m)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.roofs[b], s.roofs[a]) })
	plan := &Plan{Micro: make([]MicroBatch, len(order))}
	at := make([]int, len(s.roofs))
	for i, m := range order {
		at[m] = i
	}
	for i := range s.bins {
		b := &s.bins[i]
		if len(b.items) == 0 {
			continue
		}
		g := Group{Class: b.class}
		for _, k := range b.items {
			g.Sequences = append(g.Sequences, int(t.order[k]))
		}
		slices.Sort(g.Sequences)
		micro := &plan.Micro[at[b.micro]]
		micro.Groups = append(micro.Groups, g)
	}
	for i := range plan.Micro {
		slices.SortStableFunc(plan.Micro[i].Groups, func(a, b Group) int {
			return cmp.Or(cmp.Compare(t.p.Classes[b.Class].Degree(), t.p.Classes[a.Class].Degree()), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Sequences[0], b.Sequences[0]))
		})
	}
	return plan
}

package evenkeel

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// search is one run of the strategy.
type search struct {
	*strategy.Contest
	p    *strategy.Problem
	est  *estimator
	seen map[string]float64 // seconds by layout, +Inf if it does not fit
	// work counts what simulations cost, up to budget. It is a count and not a
	// time, so that results repeat.
	work, budget float64
	limited      bool                  // some of the last look's budgets were used up
	shapes       map[units.Tokens]bool // lengths of groups' shards that are priced
	leastGain    float64
	starts       []point  // seeds
	options      []option // candidates of micro-batches one by one
	pools        []pool   // that they are of
	runners      *runners // for evenkeel-sure
	asker        *asker   // prices layouts instead if there is one
}

// point is a draft and its simulated seconds.
type point struct {
	d *draft
	t float64
}

func newSearch(ctx context.Context, p *strategy.Problem, name string, report func(strategy.Progress)) *search {
	return &search{
		Contest: strategy.NewContest(ctx, p, name, report), p: p, seen: map[string]float64{}, shapes: map[units.Tokens]bool{},
		budget: budgetOf(len(p.Ranks)), leastGain: minGain,
	}
}

// budgetOf grows with the ranks: a unit of work takes some 20 to 40 ns on one
// core, so that all of planning takes 0.26 s at 16 ranks, 0.6 s at 128, 0.9 s at
// 1,024 and 7 s at 8,192 (BenchmarkSolveOnReferences). The aim at 16 was 0.2 s. Half the
// work takes 0.19 to 0.21 s there, and of 120 problems with up to 16 ranks of
// results/evidence/hexiseq plans were 0.2 % longer with it in the mean, and 8 % at most.
func budgetOf(ranks int) float64 {
	few := workPerFew * float64(min(max(ranks, leastRanks), fullRanks))
	some := workPerSome * float64(min(ranks, someRanks))
	return max(few, some, workPerRank*float64(ranks))
}

// Up to fullRanks get more work each: many spend more of theirs (see redescents) and
// have a second for all of planning. So it is up to someRanks, for which a second is
// plenty.
const (
	workPerFew  = 120_000
	workPerSome = 85_000
	workPerRank = 65_000
	leastRanks  = 12
	fullRanks   = 32
	someRanks   = 64
)

// minGain is the least relative gain for which a layout is given up: below it
// two layouts differ by less than anything the laws know, and equal devices
// would get unequal shares for the sake of rounding.
const minGain = 1e-5

// dropGain is the least relative gain for which ranks that are all alike are
// treated unequally, or micro-batches go in twos: an even plan is worth a little, and so
// is the memory.
const dropGain = 1e-3

// seed starts from what the strategies before this one found.
func (s *search) seed() error {
	var err error
	if s.est, err = newEstimator(s.p); err != nil {
		return err
	}
	s.runners = newRunners(s.p, s.est.m)
	for i := range s.p.Seeds {
		s.start(&s.p.Seeds[i])
	}
	return s.Err()
}

// start takes a seed as it is; its draft is a start of the local search.
func (s *search) start(r *strategy.Result) {
	if len(r.Layout.Groups) == 0 || s.p.Overfull(r.Layout) != nil {
		return
	}
	t := float64(r.Step.Time.Mid) // SolveEach gives every seed its account
	s.seen[layoutKey(r.Layout)] = t
	s.Take(strategy.Result{Layout: r.Layout, Why: r.Why, Step: r.Step}, r.Step.Time.Mid)
	from := point{draftOf(r.Layout, s.est.class, s.p.Block, false), t}
	s.starts = append(s.starts, s.inChunks(from))
}

func (s *search) over() bool {
	s.limited = s.limited || s.work >= s.budget
	return s.Done() || s.work >= s.budget
}

// judge is the simulated seconds of a layout, or what an asker makes of them, +Inf if it
// does not fit or the search is over. It keeps the best.
func (s *search) judge(l costmodel.Layout) float64 {
	key := layoutKey(l)
	if t, ok := s.seen[key]; ok {
		return t
	}
	if s.over() || len(l.Groups) == 0 {
		return math.Inf(1)
	}
	if !s.Admit(l, "") {
		s.work += float64(20 * len(l.Shards))
		s.seen[key] = math.Inf(1)
		return math.Inf(1)
	}
	t, err := s.price(l)
	if err != nil {
		s.Fail(err)
		return math.Inf(1)
	}
	s.seen[key] = float64(t)
	return float64(t)
}

// price simulates a layout that fits.
func (s *search) price(l costmodel.Layout) (units.Seconds, error) {
	if s.asker != nil {
		s.work += askedWork(l)
		worth, _, err := s.asker.ask(l)
		return worth, err
	}
	s.charge(l)
	t, err := s.Simulate(l)
	if err == nil {
		s.keep(l, t)
	}
	return t, err
}

// keep takes a layout that fits, whose time is known, for the best if it is.
func (s *search) keep(l costmodel.Layout, t units.Seconds) {
	s.runners.see(l, t)
	least := s.leastGain
	if l.TwoBatch && !s.Best().Layout.TwoBatch {
		least = max(least, dropGain) // they take more memory
	}
	if best := s.Time(); best == 0 || t < best*units.Seconds(1-least) {
		s.Take(strategy.Result{Layout: l}, t)
	}
}

// fastest is the seconds of the best so far, or of the baseline where layouts are asked how
// surely they gain over it; 0 while nothing fits.
func (s *search) fastest() float64 {
	if s.asker != nil {
		return float64(s.p.Base.Step.Time.Mid)
	}
	return float64(s.Time())
}

// unequal says whether there are several classes of ranks.
func (s *search) unequal() bool { return len(s.est.dev) > 1 }

// charge adds a simulation's work: every seat at every step of the ring, a
// part for each seat, and for lengths not met before the laws of their blocks.
func (s *search) charge(l costmodel.Layout) {
	s.work += layoutWork(l)
	for g := range l.Groups {
		n := units.Tokens(0)
		for _, h := range l.Groups[g] {
			n += l.Shards[h.Rank].Tokens()
		}
		if !s.shapes[n] {
			s.shapes[n] = true
			s.work += 1000
		}
	}
}

// layoutWork is what a layout's simulation costs, in units of search.work.
func layoutWork(l costmodel.Layout) float64 {
	seats := 0
	for _, g := range l.Groups {
		seats += len(g)
	}
	layer := float64(seats*len(l.Groups) + 50*len(l.Shards) + 200)
	if l.TwoBatch {
		return 2 * layer
	}
	return layer
}

// judgeDraft is a draft's time, with chunks of heads or rings in turn where it gains by
// them. Equal devices keep the layout that is known.
func (s *search) judgeDraft(d *draft) point {
	return s.inTurns(s.inChunks(point{d, s.judge(s.layout(d))}))
}

// layout is that of a draft.
func (s *search) layout(d *draft) costmodel.Layout {
	x := *d
	x.TwoBatch = s.est.twoBatch
	return x.layout(len(s.p.Ranks), s.p.Block)
}

// run is the search: rounds of simulating candidates and improving the best of
// them, while there are more and some of the budget is left. It returns what it came to.
func (s *search) run() []point {
	line := newBestFirst(s.candidates())
	starts := s.starts
	var ends []point
	rounds := mostRounds
	if len(s.p.Ranks) > fewRanks {
		rounds = 1
	}
	for ; rounds > 0 && !s.over() && s.budget-s.work >= s.budget/leastPart; rounds-- {
		points := append(s.simulateBest(line), starts...)
		starts = nil
		sortPoints(points)
		points = slices.DeleteFunc(points, func(x point) bool { return math.IsInf(x.t, 1) })
		if len(points) == 0 {
			break
		}
		ends = append(ends, s.improve(points)...)
	}
	return s.polish(ends)
}

// polish tries what points can have besides groups and shares: own blocks last, kinds
// late in the sequence, groups lined up along it, the last one with a lead. It returns these, too.
func (s *search) polish(ends []point) []point {
	ends = append(ends, s.ownLast(ends)...)
	s.moveLate(slices.Clone(ends))
	chains := s.chains(ends)
	s.moveLate(slices.Clone(chains))
	return append(ends, append(chains, s.leads(chains)...)...)
}

// mostRounds bounds the rounds of few ranks, and a round is worth its while with
// this part of the budget.
const (
	mostRounds = 4
	leastPart  = 8
)

// improve searches around points, which rise in time, and returns what has become
// of those that looked best, with alike groups alike.
func (s *search) improve(points []point) []point {
	points = append(points, s.leaner(points)...)
	sortPoints(points)
	points = assorted(points)
	fastest := s.fastest()
	points = slices.DeleteFunc(points, func(x point) bool { return x.t > fastest*(1+hopelessGap) })
	left := s.budget - s.work
	s.descendEach(points, left/2)
	if len(s.p.Ranks) > fewRanks {
		s.descendEach(points[:min(len(points), redescents)], left/redescentPart)
	}
	s.refine(slices.Clone(points))
	return points
}

// assorted is the points to improve: the fastest, and then the fastest of each
// other number of groups, for drafts of one kind come in crowds.
func assorted(points []point) []point {
	var some []point
	seen := map[int]bool{}
	for i, x := range points {
		n := groupsAbout(len(x.d.ring))
		if i < descents || !seen[n] && len(some) < descents+descentsMore {
			some = append(some, x)
		}
		seen[n] = true
	}
	return some
}

func sortPoints(points []point) {
	slices.SortStableFunc(points, func(a, b point) int { return cmp.Compare(a.t, b.t) })
}

// descents is how many layouts are improved by local search, descentsMore how
// many of other numbers of groups, and hopelessGap how much slower than the best
// one may be to be among them.
const (
	descents     = 10
	descentsMore = 4
	hopelessGap  = 0.3
)

// simulateBest simulates candidates, those that promise most first (see bestFirst),
// within a third of the budget. Those that do not fit are given shares that do; and
// where hardly any can be, moved bit by bit towards fitting.
func (s *search) simulateBest(line *bestFirst) []point {
	var points []point
	var tight []option
	least := math.Inf(1)
	stop := s.work + (s.budget-s.work)/3
	for c, promise := line.next(); c != nil && !s.over() && s.work <= stop; c, promise = line.next() {
		if min(c.t, promise) > least*(1+hopelessGap) && len(points) >= descents {
			continue
		}
		if cost := layoutWork(s.layout(c.d)); s.work+cost > stop && s.Evaluated() > 0 {
			continue
		}
		x := s.judgeDraft(c.d)
		if math.IsInf(x.t, 1) {
			if c.t > least*(1+tightGap) && len(points) >= descents/2 {
				continue // with less memory it takes longer still
			}
			x = s.withinMemory(c.d)
		}
		if math.IsInf(x.t, 1) {
			tight = append(tight, option{d: x.d, t: c.t, rank: c.rank})
			line.learn(c, misfitTax*c.rank)
			continue
		}
		line.learn(c, x.t)
		least = min(least, x.t)
		points = append(points, x)
	}
	return s.fitTight(points, tight, least, stop)
}

// fitTight adds to the simulated layouts the overfull ones that can be moved towards
// fitting: all while there are few layouts, then those that promise to beat the least time.
func (s *search) fitTight(points []point, tight []option, least, stop float64) []point {
	for _, c := range tight {
		if s.over() || s.work > stop {
			break
		}
		if len(points) >= descents/2 && c.rank > least {
			continue
		}
		if x := s.fitIn(c.d); !math.IsInf(x.t, 1) {
			least = min(least, x.t)
			points = append(points, x)
		}
	}
	return points
}

// tightGap is how much slower than the best an overfull draft may be estimated to be
// to be given shares that fit.
const tightGap = 0.15

// withinMemory gives a draft shares that fit, its heads as they are or traded for
// tokens (see tradeoff), whichever is estimated to be done first.
func (s *search) withinMemory(d *draft) point {
	best, least := s.est.fitTokens(d)
	if best == nil {
		best, least = s.est.fitBoth(d)
	}
	if best != nil {
		for range 2 {
			x := best.clone()
			s.est.fitHeads(x)
			y, t := s.est.fitTokens(x)
			if y == nil || t >= least {
				break
			}
			best, least = y, t
		}
	}
	s.work += 1000 + s.est.spent()
	if best == nil {
		return point{d, math.Inf(1)}
	}
	return s.judgeDraft(best)
}

// result is the best layout with its account, or what the contest says.
func (s *search) result() (strategy.Result, error) {
	r, err := s.Contest.Result()
	if err != nil || s.Time() == 0 {
		return r, err
	}
	r.Why = s.why(r)
	return r, nil
}

// why says what the layout is.
func (s *search) why(r strategy.Result) string {
	text := describe(r.Layout, s.p.Job.SeqLen, "they cost more time than they save or hold nothing")
	if n := s.Evaluated(); n > 0 {
		text += "; the best of " + units.Count(n, "simulated layout")
	} else {
		text += "; no layout was simulated beyond those of the strategies before"
	}
	if s.limited {
		text += " (the limit of the search" + s.moreEffort() + ")"
	}
	return text
}

package evenkeel

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/ended"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Sure is evenkeel for those who do not bet. Its fastest plan often uses what the
// baseline does without: device types whose laws are borrowed, kernels that nobody
// measured, a network known by its datasheet. Then the gain, however large, is less than
// what these laws may be off by, and a plan that gains a little less, but by the kernels
// and links of the baseline, is worth more. So it asks how sure the gain is of layouts that
// evenkeel simulated on its way, and of what others run with what it hides communication
// by, searches around those that come nearest, and takes the fastest whose gain is beyond
// doubt.
type Sure struct{ after *Evenkeel }

// Name implements strategy.Strategy.
func (*Sure) Name() string { return SureName }

// Claims implements strategy.Strategy.
func (*Sure) Claims() strategy.Claims {
	return strategy.Claims{Doc: "of the layouts that evenkeel simulated, and around them, the fastest that surely gains over the strongest baseline, where no faster plan does"}
}

// Solve implements strategy.Strategy. It comes after evenkeel and has no layout where a plan that
// gains as surely is as fast, or none of them gains surely.
func (x *Sure) Solve(ctx context.Context, p *strategy.Problem, report func(strategy.Progress)) (strategy.Result, error) {
	none := func(why string, args ...any) (strategy.Result, error) {
		return strategy.Result{}, strategy.Illegal(x.Name(), fmt.Sprintf(why, args...))
	}
	if p.Base == nil {
		return none("no baseline fits, so that there is nothing to gain over")
	}
	sure := units.Seconds(math.Inf(1)) // the time of the fastest so far
	for i := range p.Seeds {
		if at := p.Seeds[i].Step; at.Time.Mid < sure && surelyFaster(at, p.Base.Step) {
			sure = at.Time.Mid
		}
	}
	q := newAsker(p)
	// What the usual work found comes first, as if there were no more: faster layouts, of which
	// more effort finds many, may all be as doubtful and leave nothing for those that are not.
	for _, f := range x.after.found {
		starts, err := q.starts(ctx, f, sure)
		if err != nil {
			return strategy.Result{}, err
		}
		if err := q.improve(newSearch(ctx, p, x.Name(), report), starts, f.effort); err != nil {
			return strategy.Result{}, err
		}
	}
	switch {
	case q.best.time > 0 && q.best.time < sure*(1-minGain):
		why := describe(q.best.layout, p.Job.SeqLen, "they cost more time than they surely save")
		why += fmt.Sprintf("; of the layouts asked (%d) the fastest whose gain is more than the cost model can be wrong by", q.asked)
		return strategy.Result{Layout: q.best.layout, Evaluated: q.asked, Why: why, Stopped: ctx.Err() != nil}, nil
	case ctx.Err() != nil && math.IsInf(float64(sure), 1): // who looks longer may find one
		return strategy.Result{}, fmt.Errorf("was stopped before a gain beyond doubt was found: %w", ended.Why(ctx))
	case !math.IsInf(float64(sure), 1):
		return none("no layout of evenkeel's is faster than a plan that surely gains already")
	case q.asked == 0:
		return none("no layout that evenkeel simulated is faster than the strongest baseline")
	}
	return none("of the layouts that were asked (%d) none gains more over the strongest baseline than the cost model can be wrong by", q.asked)
}

// asker judges layouts by how fast they are and how sure that is.
type asker struct {
	p     *strategy.Problem
	base  *costmodel.Contender // the strongest baseline
	known map[string]float64   // what layouts are worth, by key, once asked for or found not to fit
	asked int
	best  runner // the fastest whose gain is beyond doubt
}

func newAsker(p *strategy.Problem) *asker {
	return &asker{p: p, base: costmodel.NewContender(p.Base.Step), known: map[string]float64{}}
}

// ask simulates a layout and returns what it is worth, in seconds: the time of its step, and
// on top what its gain over the baseline lacks to be beyond doubt, if it does. It also
// returns the error of that gain.
func (q *asker) ask(l costmodel.Layout) (worth, half units.Seconds, err error) {
	step, err := q.p.Sim.Brief(l)
	if err != nil {
		return 0, 0, err
	}
	q.asked++
	base := q.p.Base.Step
	half, _ = q.base.GainError(step)
	worth = step.Time.Mid
	if gain := base.Time.Mid - step.Time.Mid; gain <= half {
		worth += half - gain
	} else if q.best.time == 0 || worth < q.best.time {
		q.best = runner{layout: l, time: worth}
	}
	q.known[layoutKey(l)] = float64(worth)
	return worth, half, nil
}

// askedWork is what asking costs, in units of search.work.
func askedWork(l costmodel.Layout) float64 { return briefWork * layoutWork(l) }

// start is where to search for sure gains, and what it is worth, in seconds.
type start struct {
	runner
	worth units.Seconds
}

// starts asks layouts that were found, from the fastest on, until none can be faster than one
// that surely gains. It returns the best of each kind, the best of all first.
func (q *asker) starts(ctx context.Context, f found, sure units.Seconds) ([]start, error) {
	base, left := q.p.Base.Step.Time.Mid, budgetOf(len(q.p.Ranks))*askPart*f.effort
	doubts, best := map[string]units.Seconds{}, map[string]start{} // the least of a kind's layouts, the best of them
	for _, k := range f.runners {
		if k.time >= sure*(1-minGain) || q.best.time > 0 && k.time >= q.best.time {
			break
		}
		if base-k.time < hopeful*doubts[k.kind] {
			continue
		}
		if left -= askedWork(k.layout); left < 0 || ctx.Err() != nil {
			break
		}
		worth, half, err := q.ask(k.layout)
		if err != nil {
			return nil, err
		}
		if least, known := doubts[k.kind]; !known || half < least {
			doubts[k.kind] = half
		}
		if was, known := best[k.kind]; !known || worth < was.worth {
			best[k.kind] = start{k, worth}
		}
	}
	return slices.SortedFunc(maps.Values(best), func(a, b start) int { return cmp.Or(cmp.Compare(a.worth, b.worth), cmp.Compare(a.kind, b.kind)) }), nil
}

// improve searches around the best few that were asked, with so many times the usual work.
func (q *asker) improve(s *search, starts []start, effort float64) (err error) {
	if starts = starts[:min(len(starts), mostSure)]; len(starts) == 0 {
		return nil
	}
	if s.est, err = newEstimator(q.p); err != nil {
		return err
	}
	s.asker, s.seen, s.budget = q, q.known, budgetOf(len(q.p.Ranks))*surePart*effort
	for i, k := range starts {
		s.est.twoBatch = k.layout.TwoBatch
		from := point{draftOf(k.layout, s.est.class, q.p.Block, false), float64(k.worth)}
		s.descend(from, s.work+(s.budget-s.work)/float64(len(starts)-i))
	}
	return s.Err()
}

// hide keeps layouts of other strategies with what evenkeel hides communication by: own
// blocks last, heads in chunks, micro-batches in twos. All but that is as it was there, so
// that the gain is hardly in doubt. Of equal devices the search has had these in twos, and
// they keep the layout that is known else.
func (s *search) hide() {
	if !s.unequal() {
		return
	}
	left := budgetOf(len(s.p.Ranks)) * hidePart
	for i := range s.p.Seeds {
		for _, l := range hiding(s.p, s.p.Seeds[i].Layout) {
			work := layoutWork(l)
			if s.Done() || work > left || s.p.Overfull(l) != nil {
				continue
			}
			left -= work
			t, err := s.p.Sim.Time(l)
			if err != nil {
				s.Fail(err)
				return
			}
			s.keep(l, t)
		}
	}
}

// hiding lists a layout with the schedules that hide communication and that it does not have.
func hiding(p *strategy.Problem, l costmodel.Layout) []costmodel.Layout {
	plain, ring := costmodel.Schedule{KeepTail: l.KeepTail}, len(l.Groups) > 1
	ways := []costmodel.Schedule{plain}
	if ring {
		x := plain
		x.OwnLast = true
		ways = append(ways, x)
	}
	if p.Job.Accumulate >= 2 {
		for _, x := range slices.Clone(ways) {
			x.TwoBatch = true
			ways = append(ways, x)
			if ring {
				x.WeaveForward, x.WeaveBackward = true, true
				ways = append(ways, x)
			}
		}
	}
	for k := 2; len(l.Groups) == 1 && k <= costmodel.MaxHeadChunks; k++ {
		x := plain
		x.HeadChunks = k
		ways = append(ways, x)
	}
	var all []costmodel.Layout
	for _, x := range ways {
		if x != l.Schedule {
			all = append(all, costmodel.Layout{Shards: l.Shards, Groups: l.Groups, Schedule: x})
		}
	}
	return all
}

// surelyFaster says that a step gains more over another than the model can be wrong by.
func surelyFaster(a, base *costmodel.Step) bool {
	half, _ := costmodel.GainError(base, a)
	return base.Time.Mid-a.Time.Mid > half
}

// askPart is how much of a search's budget may be spent on asking how sure gains are, where
// asking costs briefWork simulations, and surePart how much on improving mostSure of those
// that were asked. A layout is not asked that gains less than the part `hopeful` of what the
// surest of its kind would have had to: layouts of a kind rest on much the same laws. Of 102
// problems of results/evidence/hexiseq 46 had no need of all that, and 33 more were given a
// plan by it, 30 without improving any, then 1 % slower on average. What hides communication
// of others' layouts may cost hidePart of the budget: their rings of thousands of ranks are
// not tried.
const (
	askPart   = 0.35
	surePart  = 0.25
	mostSure  = 3
	briefWork = 5
	hopeful   = 0.7
	hidePart  = 1.0 / 16
)

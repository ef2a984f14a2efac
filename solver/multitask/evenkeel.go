package multitask

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Evenkeel is our planner. It knows no waves and no levels: a module begins when devices
// are free and what it needs is there. Groups of devices may be of several types, with
// shares of the batch that let all end together. It begins with splits of every module over
// two choices, as the lower bound suggests them, and the best plan of the others, and improves
// the best of these by changing one module at a time (simulated annealing). It is never slower
// than any other strategy, for their plans, without waves where that is faster, are its own where
// nothing is better.
type Evenkeel struct{}

// Name implements Strategy.
func (Evenkeel) Name() string { return "evenkeel" }

// Claims implements Strategy.
func (Evenkeel) Claims() Claims {
	return Claims{Doc: "no waves, groups of unequal devices with unequal shares, searched from splits that the lower bound suggests"}
}

// Solve implements Strategy.
func (Evenkeel) Solve(ctx context.Context, p *Problem) (*multitask.Plan, error) {
	others := append(Published(), Strategy(longest{}))
	best, why := bestOf(ctx, p, others)
	c := p.canon()
	c.Effort = p.Effort
	from, _ := bestOf(ctx, c.Problem, others)
	found, err := newSearch(ctx, c.Problem).solve(ctx, from)
	if found != nil {
		found = c.back(found)
		rounded := *found // sums of other orders differ in their last digits
		if rounded.Time *= 1 - roundingOff; best == nil || !p.better(best, &rounded) {
			best = found
		}
	}
	if best == nil {
		return nil, cmp.Or(err, why, ctx.Err())
	}
	return best, nil
}

// longest is Spindle with the module first that has most left to do.
type longest struct{ Spindle }

// Solve implements Strategy.
func (longest) Solve(_ context.Context, p *Problem) (*multitask.Plan, error) {
	return p.fastestWay(func(p *Problem) (*multitask.Plan, error) { return p.waves(longestFirst) })
}

// bestOf is the best plan of several strategies; those without a plan are passed over, and
// the first of their errors is of interest where none has one.
func bestOf(ctx context.Context, p *Problem, of []Strategy) (best *multitask.Plan, why error) {
	for _, s := range of {
		plan, err := s.Solve(ctx, p)
		if err != nil {
			why = cmp.Or(why, err)
			continue
		}
		for _, waves := range []bool{plan.Waves, false} {
			now := plan.Clone()
			now.Waves = waves
			if !waves {
				for i := range now.Runs {
					now.Runs[i].Wave = 0
				}
			}
			if err := p.Simulate(now); err == nil && (best == nil || p.better(now, best)) {
				best = now
			}
		}
	}
	return best, why
}

// better says that one plan fits and the other does not or, where both or neither do, is
// faster.
func (p *Problem) better(a, b *multitask.Plan) bool {
	if fits := p.Fits(a) == nil; fits != (p.Fits(b) == nil) {
		return fits
	}
	return a.Time < b.Time
}

// search improves drafts.
type search struct {
	p     *Problem
	s     *scheduler
	tail  []float64 // by module: seconds of the longest chain that begins with it
	bound float64
	rand  *rand.Rand
}

// newSearch prices what every module may run on; nil if ctx ends before.
func newSearch(ctx context.Context, p *Problem) *search {
	b, y, bound := p.bounded()
	choices := make([][]choice, len(p.Tasks.Modules))
	for m := range choices {
		if choices[m] = p.choicesOf(m, y); ctx.Err() != nil {
			return nil
		}
	}
	x := &search{p: p, s: newScheduler(p, choices), bound: bound, rand: rand.New(rand.NewPCG(1, 2))}
	x.tail = make([]float64, len(choices))
	for _, m := range slices.Backward(p.Tasks.Order()) {
		x.tail[m] += b.slack[m]
		for _, need := range p.Needs[m] {
			x.tail[need] = max(x.tail[need], x.tail[m])
		}
	}
	return x
}

// begins are the drafts to begin with: modules take as long as the lower bound, or somewhat
// longer, leaves them; or as little, or as cheaply, as can be.
func (x *search) begins() []draft {
	var all []draft
	for _, looser := range []float64{1, 1.03, 1.07, 1.12, 1.2, 1.35, 1.6, 2} {
		for _, split := range []bool{true, false} {
			d := draft{}
			for m := range x.s.choices {
				d.phases = append(d.phases, x.within(m, looser*x.bound, split))
			}
			all = append(all, d)
		}
	}
	fastest, cheapest := draft{}, draft{}
	for m, choices := range x.s.choices { // which are first and last
		layers := x.p.Tasks.Modules[m].Layers
		fastest.phases = append(fastest.phases, []phase{{0, layers}})
		cheapest.phases = append(cheapest.phases, []phase{{len(choices) - 1, layers}})
	}
	all = append(all, fastest, cheapest)
	for i := range all {
		all[i].order = x.urgent(&all[i])
	}
	return all
}

// within splits a module over two choices so that its chain of modules ends within so many
// seconds, at the least cost; or takes the one that does.
func (x *search) within(m int, time float64, split bool) []phase {
	layers := x.p.Tasks.Modules[m].Layers
	chain := x.tail[m]
	share := float64(layers) * float64(x.s.choices[m][0].time) / chain // of the chain's time that is its own
	each := units.Seconds(time * share / float64(layers))
	all := x.s.choices[m]
	lo := -1 // the cheapest that is as fast
	for i, c := range all {
		if c.time <= each && (lo < 0 || c.cost < all[lo].cost) {
			lo = i
		}
	}
	if lo < 0 {
		return []phase{{0, layers}}
	}
	hi := -1 // slower, and cheapest by what it takes longer
	for i, c := range all {
		if c.time > each && c.cost < all[lo].cost && (hi < 0 || steeper(all[lo], c, all[hi])) {
			hi = i
		}
	}
	if hi < 0 || !split {
		return []phase{{lo, layers}}
	}
	slow := int(math.Round(float64(layers) * float64((each-all[lo].time)/(all[hi].time-all[lo].time))))
	if slow = min(max(slow, 0), layers); slow == 0 {
		return []phase{{lo, layers}}
	}
	if slow == layers {
		return []phase{{hi, layers}}
	}
	return []phase{{lo, layers - slow}, {hi, slow}}
}

// steeper says that cost falls faster with time from one choice to b than to c.
func steeper(from, b, c choice) bool {
	return (from.cost-b.cost)*float64(c.time-from.time) > (from.cost-c.cost)*float64(b.time-from.time)
}

// urgent orders modules by how long the chain of modules takes that begins with each.
func (x *search) urgent(d *draft) []int {
	length := make([]float64, len(d.phases))
	for _, m := range slices.Backward(x.p.Tasks.Order()) {
		for _, ph := range d.phases[m] {
			length[m] += float64(ph.layers) * float64(x.s.choices[m][ph.choice].time)
		}
		for _, a := range x.s.after[m] {
			length[m] = max(length[m], float64(x.total(d, m))+length[a])
		}
	}
	order := make([]int, len(d.phases))
	for m := range order {
		order[m] = m
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case length[a] > length[b]:
			return -1
		case length[a] < length[b]:
			return 1
		}
		return 0
	})
	return order
}

// total is the seconds of a module's phases.
func (x *search) total(d *draft, m int) (sum units.Seconds) {
	for _, ph := range d.phases[m] {
		sum += units.Seconds(ph.layers) * x.s.choices[m][ph.choice].time
	}
	return sum
}

// score is what is improved: the time of a draft and, a little, when modules end. A draft that
// does not fit is worse than any that does, the more the less it fits.
func (x *search) score(d *draft) float64 {
	const little, much = 0.01, 1e3
	time := float64(x.s.run(d))
	ends := 0.0
	for _, e := range x.s.ends {
		ends += float64(e)
	}
	score := time + little*ends/float64(len(x.s.ends))
	if over := slices.Max(x.s.held) - 1; over > 0 {
		score *= 1 + much*over
	}
	return score
}

// searches is how many searches make a round, each from another draft, and how many changes
// each tries. Few modules are best searched from many drafts, many modules for long: of 40 on
// 64 and 256 devices twelve short searches end up to 3 % later than three long ones. Scheduling
// takes the longer the more modules there are.
func (x *search) searches() (n, steps int) {
	const most, least, modules, all, work = 12, 3, 20, 48000, 6e8
	m := float64(len(x.s.choices))
	n = int(max(least, min(most, most*modules*modules/(m*m))))
	return n, int(max(1, min(all, work/(m*m))/float64(n)))
}

// heat is that of a search of a round: by what share of a module's part of the time a change
// may be worse to be kept every third time at the beginning. Many drafts and little heat are
// best: on encoders in ImageBind's sizes on two types of GPUs, of as many changes in all, twelve
// searches with 0.02 end 5.1 % above the bound, six 6.1 %, and three with 0.02, 0.06 and 0.6
// 10.0 %.
func (x *search) heat(i int) float64 {
	const usual, hot, few = 0.02, 0.6, 6
	if len(x.s.choices) <= few && i%2 == 1 { // where any change is a large one
		return hot
	}
	return usual
}

// solve returns the best plan that is found, which the best of others, where there is one, is
// too; nil if ctx ends before. A round of searches follows another, so that more effort adds to
// what less finds, and is never slower.
func (x *search) solve(ctx context.Context, others *multitask.Plan) (best *multitask.Plan, err error) {
	if x == nil {
		return nil, nil
	}
	begins, scores := x.sorted(others)
	best = others
	var now draft
	least := math.Inf(1)
	n, steps := x.searches()
	for round := range int(max(1, x.p.Effort)) {
		for i := range n {
			from := (round*n + i) % len(begins)
			if d, score := x.anneal(ctx, &begins[from], scores[from], x.heat(i), steps); score < least {
				now.copyFrom(d)
				least = score
			}
		}
		x.s.run(&now)
		plan, why := x.s.plan()
		if err = cmp.Or(err, why); why == nil && (best == nil || x.p.better(plan, best)) {
			best = plan
		}
		if ctx.Err() != nil {
			break
		}
	}
	return best, err
}

// sorted are the drafts to begin with, that of the others' best plan among them, the best first,
// and what they score.
func (x *search) sorted(others *multitask.Plan) (all []draft, scores []float64) {
	begins := x.begins()
	if others != nil {
		begins = append(begins, x.draftOf(others))
	}
	order := make([]int, len(begins))
	by := make([]float64, len(begins))
	for i := range begins {
		by[i], order[i] = x.score(&begins[i]), i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(by[a], by[b]) })
	for _, i := range order {
		all, scores = append(all, begins[i]), append(scores, by[i])
	}
	return all, scores
}

// draftOf is a plan as a draft: its runs on the choices that are most like them, the module
// first that begins first.
func (x *search) draftOf(plan *multitask.Plan) draft {
	d := draft{phases: make([][]phase, len(x.s.choices))}
	for _, r := range plan.Runs {
		uses := make([]int, len(x.p.Pools))
		for _, rank := range r.Ranks {
			uses[x.p.PoolOf(rank)]++
		}
		if len(d.phases[r.Module]) == 0 {
			d.order = append(d.order, r.Module)
		}
		d.phases[r.Module] = append(d.phases[r.Module], phase{like(x.s.choices[r.Module], uses), r.Layers})
	}
	return d
}

// like is the choice whose numbers of devices differ least from others.
func like(choices []choice, uses []int) int {
	differ := func(c choice) (n int) {
		for p, u := range c.uses {
			n += max(u-uses[p], uses[p]-u)
		}
		return n
	}
	at := 0
	for i, c := range choices {
		if differ(c) < differ(choices[at]) {
			at = i
		}
	}
	return at
}

// anneal improves a draft by changes that are kept where they are no worse or, the seldomer
// the later and the worse, where they are (simulated annealing), and returns the best.
func (x *search) anneal(ctx context.Context, from *draft, score, heat float64, steps int) (*draft, float64) {
	var now, try, best draft
	now.copyFrom(from)
	best.copyFrom(from)
	least := score
	heat *= score / float64(len(x.s.choices))
	for i := range steps {
		if i%64 == 0 && ctx.Err() != nil {
			break
		}
		try.copyFrom(&now)
		x.change(&try)
		s := x.score(&try)
		if now := heat * (1 - float64(i)/float64(steps)); s > score && x.rand.Float64() >= math.Exp((score-s)/now) {
			continue
		}
		now, try = try, now
		if score = s; s < least {
			best.copyFrom(&now)
			least = s
		}
	}
	return &best, least
}

// change changes one module of a draft, or the order of two.
func (x *search) change(d *draft) {
	n := len(d.order)
	if n > 1 && x.rand.IntN(3) == 0 { // a module comes sooner or later
		from, to := x.rand.IntN(n), x.rand.IntN(n)
		m := d.order[from]
		d.order = slices.Insert(slices.Delete(d.order, from, from+1), to, m)
		return
	}
	m := x.rand.IntN(n)
	if x.rand.IntN(2) == 0 { // one that ends late
		for range 3 {
			if other := x.rand.IntN(n); x.s.ends[other] > x.s.ends[m] {
				m = other
			}
		}
	}
	phases := d.phases[m]
	i := x.rand.IntN(len(phases))
	switch kind := x.rand.IntN(4); {
	case kind == 0 && len(phases) < 3 && phases[i].layers > 1: // split
		k := 1 + x.rand.IntN(phases[i].layers-1)
		other := phase{x.near(m, phases[i].choice), phases[i].layers - k}
		phases[i].layers = k
		d.phases[m] = slices.Insert(phases, i+1, other)
	case kind == 1 && len(phases) > 1: // layers go to another phase
		j := x.rand.IntN(len(phases) - 1)
		if j >= i {
			j++
		}
		k := 1 + x.rand.IntN(phases[i].layers)
		phases[i].layers, phases[j].layers = phases[i].layers-k, phases[j].layers+k
		if phases[i].layers == 0 {
			d.phases[m] = slices.Delete(phases, i, i+1)
		}
	default:
		phases[i].choice = x.near(m, phases[i].choice)
	}
}

// near is another choice of a module, most often one about as fast.
func (x *search) near(m, at int) int {
	n := len(x.s.choices[m])
	reach := 3
	if x.rand.IntN(4) == 0 {
		reach = n
	}
	return min(max(at+x.rand.IntN(2*reach+1)-reach, 0), n-1)
}

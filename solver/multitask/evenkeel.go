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
// two choices, as the lower bound suggests them, and improves the best of these by changing
// one module at a time (simulated annealing). It is never slower than any other strategy,
// for their plans, without waves where that is faster, are its own where nothing is better.
type Evenkeel struct{}

// Name implements Strategy.
func (Evenkeel) Name() string { return "evenkeel" }

// Claims implements Strategy.
func (Evenkeel) Claims() Claims {
	return Claims{Doc: "no waves, groups of unequal devices with unequal shares, searched from splits that the lower bound suggests"}
}

// Solve implements Strategy.
func (Evenkeel) Solve(ctx context.Context, p *Problem) (*multitask.Plan, error) {
	best, why := bestOf(ctx, p, append(Published(), Strategy(longest{})))
	found, err := newSearch(ctx, p).solve(ctx)
	if found != nil && (best == nil || p.better(found, best)) {
		best = found
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
	return waves(p, longestFirst)
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

// steps is how many changes are tried at an effort of 1: more of more modules, as far as
// scheduling them, which takes the longer the more there are, lets it.
func (x *search) steps() int {
	const each, most, work = 500, 15000, 2e8
	n := len(x.s.choices)
	return int(max(1, x.p.Effort) * float64(min(each*(2+n), most, max(1, work/(n*n)))))
}

// heats are those of the searches, each from another draft: by what share of a module's part
// of the time a change may be worse to be kept every third time at the beginning. On
// made-up sets of 20 and 40 modules on 16 to 256 devices the first is best; few modules on few
// devices, where any change is a large one, need the last.
var heats = [...]float64{0.02, 0.06, 0.6}

// solve returns the best plan that is found; nil if ctx ends before.
func (x *search) solve(ctx context.Context) (*multitask.Plan, error) {
	if x == nil {
		return nil, nil
	}
	begins := x.begins()
	scores := make([]float64, len(begins))
	order := make([]int, len(begins))
	for i := range begins {
		scores[i], order[i] = x.score(&begins[i]), i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[a], scores[b]) })
	var best draft
	least := math.Inf(1)
	for i, heat := range heats {
		from := order[min(i, len(order)-1)]
		if d, score := x.anneal(ctx, &begins[from], scores[from], heat); score < least {
			best.copyFrom(d)
			least = score
		}
	}
	x.s.run(&best)
	return x.s.plan()
}

// anneal improves a draft by changes that are kept where they are no worse or, the seldomer
// the later and the worse, where they are (simulated annealing), and returns the best.
func (x *search) anneal(ctx context.Context, from *draft, score, heat float64) (*draft, float64) {
	var now, try, best draft
	now.copyFrom(from)
	best.copyFrom(from)
	least, steps := score, x.steps()
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

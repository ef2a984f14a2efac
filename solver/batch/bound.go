package batch

import (
	"context"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// LowerBound is a lower bound, in seconds, of the time of every plan of the problem: of
// all numbers of micro-batches, all groups and all assignments. Of a few sequences on a few
// devices it is the least time but for the nodes' room (few); else it is the dual of a linear
// relaxation in which groups and sequences may be divided.
//
// Let every sequence k have a price p_k and let P(T) be no less than the prices
// that one micro-batch with the roof T (the time of its slowest group) can
// collect. If P(T) <= cost(T) + b for every T (see Problem.cost), then the prices of all
// sequences, Σ p_k, are at most Σ_m (cost(T_m) + b), so that
// a plan of M micro-batches takes at least Fixed + Σ p_k - b M. With b <= 0 that is least for
// the fewest micro-batches the memory allows. What the exchange behind the last micro-batch adds
// is in withOpen.
//
// P(T) is found from weights w of the devices of each pool, Σ count·w = 1, and of
// time against memory, θ_c between 0 and 1. A group of class c under the roof T
// has Σ t_k <= T - base_c and Σ s_k <= cap_c, hence
//
//	Σ_k f_kc <= 1,  f_kc = θ_c t_kc/(T - base_c) + (1 - θ_c) s_k/cap_c,
//
// and the groups of a micro-batch have Σ_g v_c(g) <= 1 with v_c = Σ_pools uses·w.
// With h_k(T) = min v_c f_kc over the classes that can train k under T, the
// sequences of a micro-batch have Σ h_k <= 1, and each is in it at most once: so
// for any n >= 0 their prices are at most n + Σ_k max(0, p_k - n h_k), where the
// sum is over all sequences.
//
// Between two roofs T' < T, P is at most P(T) and the micro-batch takes more than
// T': so finitely many roofs are enough. The prices come from a linear program
// over micro-batches whose groups and sequences may be divided, solved by column
// generation. Any prices give a bound, so rounding in that program cannot make it wrong.
//
// When ctx ends, the bound proved so far is returned.
//
// Errors: *TooLongError.
func LowerBound(ctx context.Context, p *Problem) (units.Seconds, error) {
	return lowerBound(ctx, p, 0)
}

// FastBound is LowerBound with a limit on the work. For large problems the bound is
// lower, for others it is the same. Work is counted, not timed, so that the bound does not
// depend on the machine.
//
// Errors: those of LowerBound.
func FastBound(ctx context.Context, p *Problem) (units.Seconds, error) {
	return lowerBound(ctx, p, fastWork)
}

// fastWork is how many prices of a length in a class FastBound looks at: half a second's,
// and what 512 sequences on 64 GPUs take.
const fastWork = 1e8

func lowerBound(ctx context.Context, p *Problem, work float64) (units.Seconds, error) {
	if err := p.Feasible(); err != nil {
		return 0, err
	}
	b := bounder{most: work}
	b.t.load(p)
	if f := newFew(ctx, &b.t, fewThorough); f != nil {
		step, _ := f.least()
		return units.Seconds(step * (1 - rounding)), nil
	}
	return b.relaxed(ctx), nil
}

// relaxed is the bound of the linear relaxation, and by the longest sequence.
func (b *bounder) relaxed(ctx context.Context) units.Seconds {
	return units.Seconds(b.t.withOpen(max(b.bound(ctx), float64(b.t.p.longestAlone()))))
}

// withOpen is a bound of a step's time, made of a bound of that time without what is open of the
// exchange behind its last micro-batch (Problem.open).
//
// Let S be the step's time without that, and T what the slowest group of its last micro-batch
// takes. What it takes beside T is no less than U: Fixed, MicroBase, and the rest, which are
// its other micro-batches. So T <= S - U, and with the share β of T that hides of it, it takes
//
//	S + max(0, Behind - β T) >= max(S, (1 - β) S + Behind + β U)
//
// which rises with S, since β < 1. So a bound of S may stand for S.
func withOpen(sum, beside, behind, hides float64) float64 {
	if behind == 0 {
		return sum
	}
	return max(sum, ((1-hides)*sum+behind+hides*beside)*(1-1e-12)) // sums of a plan may be rounded the other way
}

// withOpen is withOpen of the problem at hand, once quickSum has worked out the rest.
func (t *table) withOpen(sum float64) float64 {
	return withOpen(sum, t.fixed+t.micro+t.rest, t.behind, t.hides)
}

// longestAlone is a lower bound of the step, without what is open of its exchange, by its
// longest sequence alone: some micro-batch takes at least what a group of the class that is
// fastest for that sequence takes with nothing else to train.
func (p *Problem) longestAlone() units.Seconds {
	var most units.Seconds
	for _, s := range p.Lengths {
		least := units.Seconds(-1)
		for c, class := range p.Classes {
			if t := class.Base + p.Costs.Time(c, s); class.Cap >= s && (least < 0 || t < least) {
				least = t
			}
		}
		most = max(most, least)
	}
	return (p.Fixed + p.cost(most)) * (1 - 1e-12) // sums of a plan may be rounded the other way
}

// bounder is the work of LowerBound, with arrays that are used again.
type bounder struct {
	t     table
	start starter

	kinds  []kind    // sequences of one length
	shape  []float64 // by kind, prices to begin with
	rows   []int     // by kind
	need   []float64 // by row, and the number of micro-batches
	fleets []fleet
	roofs  []roofDual
	master cover
	least  int       // micro-batches of any plan
	price  []float64 // by kind, those being tried
	center []float64 // by kind, the best so far
	best   float64   // of the center
	quick  float64   // what is known without a search, without Fixed
	column []float64
	leaves []leaf
	parts  []*roofDual // for roofs in between, by depth

	looked, most float64 // prices of a kind in a class, and how many may be looked at; 0: any number
}

// kind is the sequences of one length.
type kind struct {
	item item
	n    float64
}

// roofDual is the weights at one roof and one way to set groups apart, and what
// they give for the prices tried.
type roofDual struct {
	fleet            *fleet
	roof             float64
	odds             []float64 // by class, log of θ/(1-θ)
	worth            []float64 // by resource, w
	calls            float64   // how often valued
	margin           float64   // of the profit below the cost, as a part of it
	n                float64
	least            []float64 // by kind, h
	class            []int32   // by kind, where h is least
	taken            []float64 // by kind, how many are worth their price
	cover            []float64 // by kind, the running mean of taken
	time             []float64 // by class, the running mean of the groups that time takes
	hold             []float64 // by class, of those that memory takes
	nowTime, nowHold []float64
	profit           float64   // P
	used             []float64 // by resource
}

// bound is of the step without what is open of its exchange.
func (b *bounder) bound(ctx context.Context) float64 {
	b.quick = b.t.quickSum()*(1-rounding) - b.t.fixed
	if ctx.Err() != nil {
		return b.t.fixed + b.quick
	}
	b.prepare()
	b.begin()
	b.search(ctx, firstRounds)
	proved := b.prove(ctx, false)
	if !b.over(ctx) {
		b.addRoofs()
		copy(b.price, b.center)
		b.search(ctx, secondRounds)
		proved = max(proved, b.prove(ctx, true))
	}
	return b.t.fixed + max(proved, b.quick)
}

func (b *bounder) prepare() {
	t := &b.t
	b.start.load(t, 1, fine())
	b.kinds, b.parts = b.kinds[:0], nil
	for i, s := range t.tokens {
		if i > 0 && s == t.tokens[i-1] {
			b.kinds[len(b.kinds)-1].n++
		} else {
			b.kinds = append(b.kinds, kind{item(i), 1})
		}
	}
	b.least = t.leastMicro()
	b.setShape()
	b.setRows()
	b.fleets = fleetsOf(&b.t)
	b.setRoofs()
}

// setShape prices every kind as if it had to pay for its share of the best roof.
func (b *bounder) setShape() {
	s := &b.start
	b.shape = b.shape[:0]
	for _, k := range b.kinds {
		least := math.Inf(1)
		for i, roof := range s.levels {
			share := s.sums[i][k.item+1] - s.sums[i][k.item]
			least = min(least, b.t.cost(roof)*share)
		}
		b.shape = append(b.shape, least)
	}
}

// setRows joins kinds of similar length: their prices keep the proportions of
// the shape.
func (b *bounder) setRows() {
	b.rows = resize(b.rows, len(b.kinds))
	b.need = b.need[:0]
	for i := 0; i < len(b.kinds); {
		n := max(1, i/10)
		row := 0.0
		for end := min(len(b.kinds), i+n); i < end; i++ {
			b.rows[i] = len(b.need)
			row += b.kinds[i].n * b.shape[i]
		}
		b.need = append(b.need, row)
	}
	b.need = append(b.need, float64(b.least))
}

// Roofs to look at while searching rise above the least base by roofRatio, up to
// four times what the longest sequence takes, and faster from there on.
const (
	roofRatio = 1.04
	farRatio  = 1.15
)

func (b *bounder) setRoofs() {
	t := &b.t
	alone, total := 0.0, 0.0
	for i, k := range b.kinds {
		least := math.Inf(1)
		for c := range t.base {
			least = min(least, t.base[c]+t.time[c][k.item])
		}
		alone = max(alone, least)
		total += k.n * b.shape[i]
	}
	b.roofs = b.roofs[:0]
	base := slices.Min(t.base)
	for x := t.leastRoof() - base; ; {
		for i := range b.fleets {
			b.roofs = append(b.roofs, b.newRoof(&b.fleets[i], base+x))
		}
		if base+x > alone && base+x > 2*total {
			return
		}
		if base+x < 4*alone {
			x = max(x*roofRatio, alone/50)
		} else {
			x *= farRatio
		}
	}
}

func (b *bounder) newRoof(f *fleet, roof float64) roofDual {
	n := len(b.kinds)
	return roofDual{
		fleet: f, roof: roof, n: roof, odds: make([]float64, len(b.t.base)), worth: append([]float64(nil), f.worth...),
		least: make([]float64, n), class: make([]int32, n), cover: make([]float64, n), taken: make([]float64, n), time: make([]float64, len(b.t.base)), hold: make([]float64, len(b.t.base)), nowTime: make([]float64, len(b.t.base)), nowHold: make([]float64, len(b.t.base)), used: make([]float64, len(f.amount)),
	}
}

// leastRoof is the least time of any micro-batch, without MicroBase.
func (t *table) leastRoof() float64 {
	least := math.Inf(1)
	for c, base := range t.base {
		least = min(least, base+t.time[c][len(t.tokens)-1])
	}
	return least
}

// value finds P and the sequences that a micro-batch would take, and learns
// weights for the next time.
func (b *bounder) value(r *roofDual) {
	b.setLeast(r)
	low, high := b.bracket(r)
	for range 12 {
		mid := (low + high) / 2
		if b.taken(r, mid) > 1 {
			low = mid
		} else {
			high = mid
		}
	}
	r.n = high
	b.take(r, low)
	r.learn(b)
}

// bracket is two values of n around the one where the taken fill the fleet.
func (b *bounder) bracket(r *roofDual) (low, high float64) {
	low, high = r.n*0.98, r.n*1.02
	for b.taken(r, high) > 1 {
		low, high = high, high*1.5
	}
	for low > 1e-9 && b.taken(r, low) <= 1 {
		low, high = low/1.5, low
	}
	return low, high
}

// taken is the share of the fleet that those take who are worth n or more for it.
func (b *bounder) taken(r *roofDual, n float64) float64 {
	sum := 0.0
	for i, h := range r.least {
		if b.price[i] > n*h {
			sum += h * b.kinds[i].n
		}
	}
	return sum
}

// take sets what is taken at r.n, with a part of those between it and low to fill
// the fleet, and P.
func (b *bounder) take(r *roofDual, low float64) {
	r.profit = r.n
	room, between := 1.0, 0.0
	for i, h := range r.least {
		n := b.kinds[i].n
		switch rent := b.price[i] - r.n*h; {
		case rent > 0:
			r.profit += n * rent
			room -= n * h
		case b.price[i] > low*h:
			between += n * h
		}
	}
	part := 0.0
	if between > 0 {
		part = max(0, min(1, room/between))
	}
	for i, h := range r.least {
		switch n := b.kinds[i].n; {
		case b.price[i] > r.n*h:
			r.taken[i] = n
		case b.price[i] > low*h:
			r.taken[i] = part * n
		default:
			r.taken[i] = 0
		}
	}
}

// over says that the search is to end: by its context, or because enough was looked at.
func (b *bounder) over(ctx context.Context) bool {
	return ctx.Err() != nil || b.most > 0 && b.looked > b.most
}

// setLeast works out h from the weights.
func (b *bounder) setLeast(r *roofDual) {
	t := &b.t
	b.looked += float64(len(t.base) * len(b.kinds))
	for i := range r.least {
		r.least[i] = math.Inf(1)
	}
	for c, base := range t.base {
		room := r.roof - base
		if room <= 0 || r.fleet.uses[c] == nil {
			continue
		}
		value := 0.0
		for i, u := range r.fleet.uses[c] {
			value += u * r.worth[i]
		}
		theta := 1 / (1 + math.Exp(-r.odds[c]))
		perTime, perToken := value*theta/room, value*(1-theta)/float64(t.cap[c])
		room *= 1 + 1e-9
		times := t.time[c]
		for i := range b.kinds {
			k := b.kinds[i].item
			time := times[k]
			if time > room || t.tokens[k] > t.cap[c] {
				continue
			}
			if h := perTime*time + perToken*float64(t.tokens[k]); h < r.least[i] {
				r.least[i], r.class[i] = h, int32(c)
			}
		}
	}
}

// learn moves the weights towards what is short: of each class time or memory, of
// the resources the most used. A small change of weights moves all of a kind from
// one class to another, so that what is taken swings about the best mixture: its
// running mean is near that, and becomes the cover, scaled down to what has room.
func (r *roofDual) learn(b *bounder) {
	t := &b.t
	r.calls++
	rate := 1 / (1 + r.calls/5)
	for c := range r.time {
		r.time[c] *= 1 - newShare
		r.hold[c] *= 1 - newShare
	}
	clear(r.nowTime)
	clear(r.nowHold)
	for i, x := range r.taken {
		r.cover[i] += newShare * (x - r.cover[i])
		if x > 0 {
			c, k := r.class[i], b.kinds[i].item
			r.nowTime[c] += x * t.time[c][k] / (r.roof - t.base[c])
			r.nowHold[c] += x * float64(t.tokens[k]) / float64(t.cap[c])
		}
	}
	clear(r.used)
	for c, time := range r.nowTime {
		hold := r.nowHold[c]
		r.time[c] += newShare * time
		r.hold[c] += newShare * hold
		for i, u := range r.fleet.uses[c] {
			if u > 0 {
				r.used[i] += u * max(time, hold) / r.fleet.amount[i]
			}
		}
		if sum := time + hold; sum > 0 {
			r.odds[c] = max(-mostOdds, min(mostOdds, r.odds[c]+4*rate*(time-hold)/sum))
		}
	}
	total := 0.0
	for i, x := range r.used {
		r.worth[i] *= math.Exp(rate * max(-1, min(1, x-1)))
		total += r.worth[i] * r.fleet.amount[i]
	}
	for i := range r.worth {
		r.worth[i] /= total
	}
}

// mostOdds limits the weights: e^8 : 1.
const mostOdds = 8

// newShare is the weight of what is taken now in its running mean.
const newShare = 0.25

// room is the part of the cover that has room in time, memory and devices.
func (r *roofDual) room() float64 {
	clear(r.used)
	full := 1.0
	for c := range r.time {
		for i, u := range r.fleet.uses[c] {
			if u > 0 {
				r.used[i] += u * max(r.time[c], r.hold[c]) / r.fleet.amount[i]
				full = max(full, r.used[i])
			}
		}
	}
	return 1 / full
}

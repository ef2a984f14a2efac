package multitask

import (
	"math"
	"slices"
	"sort"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Bound is a time in seconds that no plan of the problem beats, of any shares, waves or
// not. With a price y for a second of each type's devices, so that a second of all devices
// costs one, a plan of time C costs C at most. A module's layers run one after another, so
// that what they take and cost together is a mixture of what all its layers would on one set
// of devices each; in no more than the time C, less what must come before and after the
// module, it costs no less than the lower convex envelope of these points says. The least C
// at which all modules together cost no more than C is a bound at any prices, and the best
// prices are sought. Of equal devices it is the bound A of a level in the reference to
// Spindle, without the levels.
func Bound(p *Problem) units.Seconds {
	_, _, bound := p.canon().bounded()
	return units.Seconds(bound)
}

// bounded is the bound with its prices, found once.
func (p *Problem) bounded() (b *bounder, y []float64, bound float64) {
	if p.bound == nil {
		p.bound = newBounder(p)
		p.prices, p.least = p.bound.best()
	}
	return p.bound, p.prices, p.least
}

// best is the highest bound that is found, with its prices.
func (b *bounder) best() (y []float64, best float64) {
	y = b.even()
	best = b.at(y)
	for step := 0.5; len(y) > 1 && step > 0.01; {
		better := false
		for i := range y {
			for _, factor := range []float64{1 + step, 1 / (1 + step)} {
				try := slices.Clone(y)
				try[i] *= factor
				b.normalise(try)
				if c := b.at(try); c > best {
					y, best, better = try, c, true
				}
			}
		}
		if !better {
			step /= 2
		}
	}
	return y, best
}

// bounder evaluates Bound at prices.
type bounder struct {
	p       *Problem
	columns [][]column // by module
	devices []int      // by pool
	chain   []float64  // by module: seconds of what must come before and after it
	slack   []float64  // by module: seconds of all its layers where they take least
	hulls   [][]point
}

// column is a way to run a module: a layer takes no less than time where devices of the
// pools hold no more than so many samples each.
type column struct {
	time    float64
	samples []int // by pool
}

// point is the time and the cost of all layers of a module.
type point struct{ time, cost float64 }

func newBounder(p *Problem) *bounder {
	b := &bounder{p: p, hulls: make([][]point, len(p.Tasks.Modules))}
	for _, pool := range p.Pools {
		b.devices = append(b.devices, pool.Count())
	}
	for m, module := range p.Tasks.Modules {
		columns := b.columnsOf(m)
		b.columns = append(b.columns, columns)
		least := math.Inf(1)
		for _, c := range columns {
			if b.fits(c, module.Batch) {
				least = min(least, c.time)
			}
		}
		b.slack = append(b.slack, least*float64(module.Layers))
	}
	b.chains()
	return b
}

// chains finds the longest chain of other modules that each is part of.
func (b *bounder) chains() {
	n := len(b.slack)
	before, after := make([]float64, n), make([]float64, n)
	order := b.p.Tasks.Order()
	for _, m := range order {
		for _, need := range b.p.Needs[m] {
			before[m] = max(before[m], before[need]+b.slack[need])
		}
	}
	for _, m := range slices.Backward(order) {
		for _, need := range b.p.Needs[m] {
			after[need] = max(after[need], after[m]+b.slack[m])
		}
	}
	b.chain = make([]float64, n)
	for m := range b.chain {
		b.chain[m] = before[m] + after[m]
	}
}

// mostSteps is how many shares of a batch are told apart; between them devices hold as much
// as with the larger and take as long as with the smaller.
const (
	mostSteps   = 512
	exactShares = 512
)

// columnsOf lists the ways to run a module, by rising time.
func (b *bounder) columnsOf(m int) []column {
	steps := shareSteps(b.p.Tasks.Modules[m].Batch)
	floors := make([][]float64, len(b.devices))
	var times []float64
	for p := range b.devices {
		floors[p] = b.floors(m, p, steps)
		times = append(times, floors[p]...)
	}
	slices.Sort(times)
	times = thin(slices.Compact(times))
	var all []column
	for i, t := range times {
		below := math.Inf(1) // the next time: up to it devices hold no more
		if i+1 < len(times) {
			below = times[i+1]
		}
		c := column{time: t, samples: make([]int, len(floors))}
		for p, f := range floors {
			if k := sort.Search(len(f), func(k int) bool { return f[k] >= below }); k > 0 {
				c.samples[p] = steps[k-1]
			}
		}
		all = append(all, c)
	}
	return all
}

// floors are the least that a layer takes of a run in which a device of a pool has more
// samples than the step before, by step. Where all devices are of one type, samples tell how
// many there are at least, and with them what the exchange of gradients takes.
func (b *bounder) floors(m, pool int, steps []int) []float64 {
	f := make([]float64, len(steps))
	least := math.Inf(1)
	exchange := b.exchanges(m, steps[len(steps)-1])
	for i, most := range slices.Backward(steps) {
		fewest := 1
		if i > 0 {
			fewest = steps[i-1] + 1
		}
		forward, backward := b.p.Passes(m, pool, fewest)
		least = min(least, float64(forward+max(backward, exchange(most))))
		f[i] = least
	}
	return f
}

// shareSteps are rising numbers of samples up to a batch: all of them up to exactShares, and
// then each a 64th more than the one before. Of a batch of tens of thousands every number
// would take seconds to price; between two steps a device is taken to need no less than with
// the fewest samples between them, as laws have it, which rise with samples.
func shareSteps(batch int) []int {
	var steps []int
	for k := 1; k < batch; {
		if steps = append(steps, k); k < exactShares {
			k++
		} else {
			k = k * 65 / 64
		}
	}
	return append(steps, batch)
}

// exchanges is the least that the exchange of gradients takes in a run whose devices have
// no more than so many samples each.
func (b *bounder) exchanges(m, batch int) func(samples int) units.Seconds {
	if len(b.devices) > 1 {
		return func(int) units.Seconds { return 0 }
	}
	// By devices: the least of so many or more that there may be. A run has no more devices
	// than samples.
	most := min(b.devices[0], batch)
	least := make([]units.Seconds, most+2)
	least[most+1] = forever
	for n := most; n >= 2; n-- {
		least[n] = least[n+1]
		for _, ranks := range nearAndFar(b.p.Costs, n) {
			least[n] = min(least[n], b.p.Exchange(m, ranks))
		}
	}
	return func(samples int) units.Seconds {
		n := needed(batch, samples)
		if n < 2 || n > most {
			return 0
		}
		return least[n]
	}
}

// thin leaves mostSteps of rising times at most, the first among them.
func thin(times []float64) []float64 {
	if len(times) <= mostSteps {
		return times
	}
	var out []float64
	for i := range mostSteps {
		out = append(out, times[i*len(times)/mostSteps])
	}
	return out
}

// nearAndFar are the sets of n devices of the only pool whose exchange may differ: in every
// node that holds them, and across nodes.
func nearAndFar(c *multitask.Costs, n int) [][]int {
	var sets [][]int
	nodes := c.Pools[0].Ranks
	for _, node := range nodes {
		if len(node) >= n {
			sets = append(sets, node[:n])
		}
	}
	if len(nodes) > 1 {
		all := slices.Concat(nodes...)
		far := append(slices.Clone(all[:n-1]), all[len(all)-1])
		sets = append(sets, far)
	}
	return sets
}

// needed is how many devices a batch needs that hold so many samples each.
func needed(batch, samples int) int { return (batch + samples - 1) / samples }

// fits says whether all devices together hold a batch.
func (b *bounder) fits(c column, batch int) bool {
	held := 0
	for p, n := range b.devices {
		held += n * c.samples[p]
	}
	return held >= batch
}

// even are prices at which a second of every device costs as much as the work that it does.
func (b *bounder) even() []float64 {
	y := make([]float64, len(b.devices))
	for p := range y {
		for m, module := range b.p.Tasks.Modules {
			y[p] += float64(module.Layers) / float64(b.p.Alone(m, p, module.Batch))
		}
	}
	b.normalise(y)
	return y
}

// normalise scales prices so that a second of all devices costs one.
func (b *bounder) normalise(y []float64) {
	sum := 0.0
	for p, n := range b.devices {
		sum += y[p] * float64(n)
	}
	for p := range y {
		y[p] /= sum
	}
}

// at is the bound at prices.
func (b *bounder) at(y []float64) float64 {
	lo, total := 0.0, 0.0
	for m := range b.hulls {
		b.hulls[m] = b.hull(m, y)
		lo = max(lo, b.hulls[m][0].time+b.chain[m])
		total += b.hulls[m][len(b.hulls[m])-1].cost
	}
	lo = max(lo, total)
	hi := lo
	for b.cost(hi) > hi {
		hi *= 2
	}
	for range 60 {
		if mid := (lo + hi) / 2; b.cost(mid) > mid {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// cost is what all modules cost at least in a plan of so many seconds.
func (b *bounder) cost(time float64) float64 {
	sum := 0.0
	for m, h := range b.hulls {
		sum += under(h, time-b.chain[m])
	}
	return sum
}

// hull is the lower convex envelope of a module's points, as far as cost falls with time.
func (b *bounder) hull(m int, y []float64) []point {
	module := b.p.Tasks.Modules[m]
	var h []point
	for _, c := range b.columns[m] {
		devices := b.cheapest(c, module.Batch, y)
		if math.IsInf(devices, 1) {
			continue
		}
		t := c.time * float64(module.Layers)
		now := point{t, devices * t} // times rise from column to column
		if len(h) > 0 && now.cost >= h[len(h)-1].cost {
			continue
		}
		for len(h) > 1 && slope(h[len(h)-2], h[len(h)-1]) >= slope(h[len(h)-1], now) {
			h = h[:len(h)-1]
		}
		h = append(h, now)
	}
	return h
}

func slope(a, b point) float64 { return (b.cost - a.cost) / (b.time - a.time) }

// under is the cost that an envelope has at a time: at no more than it.
func under(h []point, time float64) float64 {
	at := sort.Search(len(h), func(i int) bool { return h[i].time > time })
	switch {
	case at == 0:
		return math.Inf(1)
	case at == len(h):
		return h[at-1].cost
	}
	return h[at-1].cost + slope(h[at-1], h[at])*(time-h[at-1].time)
}

// cheapest is the least that a second of devices costs that hold a batch, where those of
// several types need not be whole; infinite where all of them do not.
func (b *bounder) cheapest(c column, batch int, y []float64) float64 {
	if len(y) == 1 {
		if n := needed(batch, max(1, c.samples[0])); c.samples[0] > 0 && n <= b.devices[0] {
			return y[0] * float64(n)
		}
		return math.Inf(1)
	}
	var order [multitask.MostPools]int
	for p := range y {
		order[p] = p
	}
	slices.SortStableFunc(order[:len(y)], func(i, j int) int {
		if a, b := y[i]*float64(c.samples[j]), y[j]*float64(c.samples[i]); a < b {
			return -1
		} else if a > b {
			return 1
		}
		return 0
	})
	left, sum := float64(batch), 0.0
	for _, p := range order[:len(y)] {
		if c.samples[p] == 0 {
			continue
		}
		n := min(float64(b.devices[p]), left/float64(c.samples[p]))
		sum += n * y[p]
		if left -= n * float64(c.samples[p]); left <= 1e-9*float64(batch) {
			return sum
		}
	}
	return math.Inf(1)
}

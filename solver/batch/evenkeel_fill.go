package batch

import "math"

// filler constructs a plan under given roofs, one for each micro-batch. It assigns the
// sequences one by one, longest first, each to the micro-batch and class where it takes the
// smallest share of the step.
//
// A group of class c is the share value[c] of the fleet, and a micro-batch with the roof T
// takes T seconds of the step. A sequence of s tokens that takes t seconds uses the
// fractions t/(T - base) of the group's time and s/cap of its memory. The larger of both
// counts, so that its place costs about
//
//	T value[c] max(t/(T - base), s/cap)
//
// seconds of the step. For long sequences low roofs are expensive, since they need large
// groups. For short sequences high roofs are, since groups run out of memory before they
// run out of time.
type filler struct {
	t      *table
	s      *state
	n      int    // classes
	pairs  []pair // by micro-batch and class
	alive  []int  // pairs that may still take something
	tops   []float64
	sum    float64 // time of the plan so far
	cutoff float64 // a plan that takes as long is of no use
	floor  float64 // no plan that goes on from here takes less
	ones   []int
	one    [1]item
}

// pair is what one micro-batch offers in one class.
type pair struct {
	class    int
	prices   []float64 // by item
	cap      int64
	room     float64 // time under the roof, without base
	perTime  float64
	perToken float64
	opens    bool // devices are left for one more group
	bins     []int32
	times    []float64 // room left of each bin
	holds    []int64   // tokens left of each bin
	mostTime float64   // no bin has more left
	mostHold int64
	takeTime float64 // the pair takes nothing longer, be it in a bin or in a new one
	takeHold int64
}

// surely is above one by more than sums of thousands of times are off.
const surely = 1 + 1e-9

// fill makes a plan of the items in s, under the roofs, with a factor on the price
// of each class; false: some sequence found no memory, or the plan takes no less than the
// cutoff, whatever is open.
func (f *filler) fill(t *table, items []item, roofs, prefer []float64, s *state, cutoff float64) bool {
	f.t, f.s, f.n, f.cutoff = t, s, len(t.useful), cutoff
	f.reset(roofs, prefer)
	for _, k := range items {
		f.floor += t.work[k]
	}
	for k := 0; k < len(items); {
		end := k + 1
		for first := t.tokens[items[k]]; end < len(items) && aboutAsLong(first, t.tokens[items[end]]); end++ {
		}
		if !f.placeRun(items[k:end]) {
			return false
		}
		k = end
	}
	s.settle(t)
	return s.total-s.open < cutoff
}

func (f *filler) reset(roofs, prefer []float64) {
	t, s := f.t, f.s
	s.bins = s.bins[:0]
	s.free = resize(s.free, len(roofs))
	f.sum, f.floor = t.fixed, t.fixed
	f.tops = resize(f.tops, len(roofs))
	clear(f.tops)
	f.pairs = resize(f.pairs, len(roofs)*f.n)
	f.alive = f.alive[:0]
	for m, roof := range roofs {
		s.free[m] = append(s.free[m][:0], t.size...)
		for i, c := range t.useful {
			base := t.base[c]
			p := &f.pairs[m*f.n+i]
			*p = pair{
				class: c, prices: t.time[c], cap: t.cap[c], room: (roof - base) * (1 + 1e-12), opens: true,
				bins: p.bins[:0], times: p.times[:0], holds: p.holds[:0],
			}
			cost := t.value[c] * t.cost(roof) * prefer[c]
			p.perTime, p.perToken = cost/p.room, cost/float64(t.cap[c])
			p.takeTime, p.takeHold = p.room, p.cap
			f.alive = append(f.alive, m*f.n+i)
		}
	}
}

// placeRun places the items of a run, which are about as long as its first, as
// many at a time as a group takes.
func (f *filler) placeRun(run []item) bool {
	for len(run) > 0 {
		k := run[0]
		at, seat := f.choose(k)
		if at < 0 {
			if !f.squeeze(k) {
				return false
			}
			run = run[1:]
			continue
		}
		if seat < 0 {
			seat = f.open(at)
		}
		p := &f.pairs[at]
		n := 1
		if len(run) > 1 {
			n = max(1, int(min(float64(len(run)), p.times[seat]/p.prices[k], float64(p.holds[seat]/f.t.tokens[k]))))
		}
		if !f.put(at, seat, run[:n]) {
			return false
		}
		run = run[n:]
	}
	return true
}

// choose is the cheapest pair for an item and the seat in it, -1 for a new group.
func (f *filler) choose(k item) (at, seat int) {
	s := f.t.tokens[k]
	best := math.Inf(1)
	at = -1
	for _, i := range f.alive {
		p := &f.pairs[i]
		time := p.prices[k]
		if ordinal(p.takeTime-time)|(p.takeHold-s) < 0 {
			continue
		}
		price := p.perTime * time
		if price >= best {
			continue
		}
		if memory := p.perToken * float64(s); memory > price {
			if price = memory; price >= best {
				continue
			}
		}
		if b := p.find(time, s); b >= 0 {
			best, at, seat = price, i, b
		} else if p.opens && f.mayHouse(i/f.n, p.class) {
			best, at, seat = price, i, -1
		}
	}
	return at, seat
}

// find is the bin with the least room that holds it; -1 where none does.
func (p *pair) find(time float64, s int64) int {
	if time > p.mostTime || s > p.mostHold {
		return -1
	}
	best, least := -1, math.Inf(1)
	mostTime, mostHold := int64(0), int64(0)
	holds := p.holds[:len(p.times)]
	for i, left := range p.times {
		hold := holds[i]
		mostTime, mostHold = max(mostTime, ordinal(left)), max(mostHold, hold)
		left -= time
		hold -= s
		if ordinal(left)|hold < 0 {
			continue
		}
		if score := left * float64(hold); score < least {
			best, least = i, score
		}
	}
	if best < 0 {
		p.setMost(math.Float64frombits(uint64(mostTime)), mostHold)
	}
	return best
}

// ordinal is below zero where x is, and otherwise in the order of x. What is next is
// hard to guess here, and to compare whole numbers takes no branch.
func ordinal(x float64) int64 { return int64(math.Float64bits(x)) }

// look works out what the bins have left at most.
func (p *pair) look() {
	mostTime, mostHold := int64(0), int64(0)
	for i, left := range p.times {
		mostTime, mostHold = max(mostTime, ordinal(left)), max(mostHold, p.holds[i])
	}
	p.setMost(math.Float64frombits(uint64(mostTime)), mostHold)
}

func (p *pair) setMost(time float64, hold int64) {
	p.mostTime, p.mostHold = time, hold
	if !p.opens {
		p.takeTime, p.takeHold = time, hold
	}
}

// mayHouse says whether a node can be found for one more group.
func (f *filler) mayHouse(m, c int) bool {
	class := &f.t.p.Classes[c]
	if !class.One || f.t.anywhere {
		return true
	}
	return f.s.housed(f.t, m, c, &f.ones)
}

// open makes an empty group and gives its seat in the pair.
func (f *filler) open(at int) int {
	m := at / f.n
	p := &f.pairs[at]
	b := f.s.add(f.t, m, p.class)
	p.bins = append(p.bins, int32(b))
	p.times = append(p.times, p.room)
	p.holds = append(p.holds, p.cap)
	p.mostTime, p.mostHold = p.room, p.cap
	ended := false
	for c := range f.n {
		if q := &f.pairs[m*f.n+c]; q.opens && !f.s.spare(f.t, m, q.class) {
			q.opens = false
			q.look()
			ended = ended || len(q.bins) == 0
		}
	}
	if ended {
		kept := f.alive[:0]
		for _, i := range f.alive {
			if f.pairs[i].opens || len(f.pairs[i].bins) > 0 {
				kept = append(kept, i)
			}
		}
		f.alive = kept
	}
	return len(p.bins) - 1
}

// put gives a group items; false: the plan now takes too long.
func (f *filler) put(at, seat int, items []item) bool {
	t, p := f.t, &f.pairs[at]
	x := &f.s.bins[p.bins[seat]]
	if len(x.items) == 0 {
		f.floor += t.value[p.class] * t.base[p.class]
	}
	time, tokens, least := 0.0, int64(0), 0.0
	x.items = append(x.items, items...)
	for _, i := range items {
		time += p.prices[i]
		tokens += t.tokens[i]
		least += t.work[i]
	}
	f.floor += t.value[p.class]*time - least
	x.time += time
	x.tokens += tokens
	p.times[seat] -= time
	p.holds[seat] -= tokens
	if x.time > f.tops[x.micro] {
		if f.tops[x.micro] == 0 {
			f.sum += t.cost(0)
			f.floor += t.micro
		}
		f.sum += t.cost(x.time) - t.cost(f.tops[x.micro])
		f.tops[x.micro] = x.time
	}
	return f.sum < f.cutoff && f.floor < f.cutoff*surely
}

// squeeze places a sequence that fits under no roof where it breaks through one
// by the least.
func (f *filler) squeeze(k item) bool {
	s := f.t.tokens[k]
	least, at, seat := math.Inf(1), -1, -1
	for i := range f.pairs {
		p := &f.pairs[i]
		if s > p.cap {
			continue
		}
		time := p.prices[k]
		if s <= p.mostHold && time-p.mostTime < least {
			for b, left := range p.times {
				if over := time - left; over < least && p.holds[b] >= s {
					least, at, seat = over, i, b
				}
			}
		}
		if over := time - p.room; over < least && p.opens && f.mayHouse(i/f.n, p.class) {
			least, at, seat = over, i, -1
		}
	}
	if at < 0 {
		return false
	}
	if seat < 0 {
		seat = f.open(at)
	}
	f.one[0] = k
	ok := f.put(at, seat, f.one[:])
	if over := -f.pairs[at].times[seat]; over > 0 {
		f.raise(at/f.n, over)
	}
	return ok
}

// raise gives all groups of a micro-batch more room: its roof is broken.
func (f *filler) raise(m int, by float64) {
	for c := range f.n {
		p := &f.pairs[m*f.n+c]
		p.room += by
		for i := range p.times {
			p.times[i] += by
		}
		p.mostTime += by
		p.takeTime += by
	}
}

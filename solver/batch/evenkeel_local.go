package batch

// polisher is a local search that shortens micro-batches by changes at their slowest
// groups: a sequence moves to another group of the same or another micro-batch, two
// sequences of different groups are swapped, or a group changes its class and takes free
// devices.
//
// A micro-batch becomes shorter only when all of its slowest groups have. So a change that
// shortens one of several slowest groups and lengthens no micro-batch is accepted too.
//
// What a change does to the part of the exchange that is open (table.open) is left out: with
// it 180 plans, of batches of 1 to 500 sequences, were 0.002 % shorter on average.
type polisher struct {
	t     *table
	s     *state
	left  int   // steps that may be taken, in looks at a place
	micro []int // bins in order of micro-batch
	first []int // of each micro-batch, in micro
	stuck []bool
	ones  []int
}

// change is one move (with < 0), swap or change of class (k < 0).
type change struct {
	gain  float64 // of the step's time
	lower float64 // of the group's time
	k     int     // place in the slowest group
	to    int     // the other group
	with  int     // place in it
	class int
}

// Times that differ by no more than noise are the same; a gain below leastGain is
// none.
const (
	noise     = 1e-12
	leastGain = 1e-9
)

// polishSteps is enough for most plans of 64 devices.
const polishSteps = 2_000_000

// run improves the plan until nothing helps or so many steps are used up.
func (p *polisher) run(t *table, s *state, steps int) {
	p.t, p.s, p.left = t, s, steps
	p.index()
	p.stuck = resize(p.stuck, len(s.roofs))
	clear(p.stuck)
	for p.left > 0 {
		m := p.next()
		if m < 0 {
			break
		}
		g, second := p.slowest(m, -1)
		if c := p.search(g, second); c.class >= 0 || c.k >= 0 {
			p.apply(g, c)
			clear(p.stuck)
		} else {
			p.stuck[m] = true
		}
	}
	s.settle(t)
}

// index sorts the groups by micro-batch.
func (p *polisher) index() {
	n := len(p.s.roofs)
	p.first = resize(p.first, n+1)
	clear(p.first)
	for i := range p.s.bins {
		p.first[p.s.bins[i].micro+1]++
	}
	for m := range n {
		p.first[m+1] += p.first[m]
	}
	p.micro = resize(p.micro, len(p.s.bins))
	at := append([]int(nil), p.first...)
	for i := range p.s.bins {
		m := p.s.bins[i].micro
		p.micro[at[m]] = i
		at[m]++
	}
}

// next is the micro-batch with the highest roof that may still be lowered.
func (p *polisher) next() int {
	best := -1
	for m, r := range p.s.roofs {
		if !p.stuck[m] && r > 0 && (best < 0 || r > p.s.roofs[best]) {
			best = m
		}
	}
	return best
}

func (p *polisher) groups(m int) []int { return p.micro[p.first[m]:p.first[m+1]] }

// slowest is the slowest group of a micro-batch but one, and the time of the
// next slowest.
func (p *polisher) slowest(m, but int) (at int, second float64) {
	at = -1
	top := 0.0
	for _, i := range p.groups(m) {
		b := &p.s.bins[i]
		if i == but || len(b.items) == 0 {
			continue
		}
		if b.time > top {
			at, second, top = i, top, b.time
		} else {
			second = max(second, b.time)
		}
	}
	return at, second
}

// search is the best change at a group.
func (p *polisher) search(g int, second float64) change {
	best := change{gain: -noise, lower: leastGain, k: -1, class: -1}
	b := &p.s.bins[g]
	p.regroup(g, second, &best)
	for j := range p.s.bins {
		if j == g {
			continue
		}
		h := &p.s.bins[j]
		others := second
		if h.micro == b.micro && h.time >= second-noise {
			others = p.third(g, j)
		}
		for k, it := range b.items {
			if k > 0 && p.t.tokens[it] == p.t.tokens[b.items[k-1]] {
				continue
			}
			p.left -= 1 + len(h.items)
			p.move(b, h, k, j, others, &best)
			p.swaps(b, h, k, j, others, &best)
		}
	}
	return best
}

// third is the slowest of a micro-batch but two groups.
func (p *polisher) third(g, j int) float64 {
	top := 0.0
	for _, i := range p.groups(p.s.bins[g].micro) {
		if b := &p.s.bins[i]; i != g && i != j && len(b.items) > 0 {
			top = max(top, b.time)
		}
	}
	return top
}

func (p *polisher) move(b, h *bin, k, j int, others float64, best *change) {
	it := b.items[k]
	if h.tokens+p.t.tokens[it] > p.t.cap[h.class] {
		return
	}
	from := b.time - p.t.time[b.class][it]
	if len(b.items) == 1 {
		from = 0
	}
	p.consider(b, h, from, h.time+p.t.time[h.class][it], others, change{k: k, to: j, with: -1, class: -1}, best)
}

// swaps considers the shorter sequences of a group for one of the slowest, the
// longest first: the shorter they are, the longer their group takes then, until
// that alone is more than the change can gain.
func (p *polisher) swaps(b, h *bin, k, j int, others float64, best *change) {
	t := p.t
	it := b.items[k]
	mine, theirs := t.time[b.class], t.time[h.class]
	most := b.time // that the other group may take
	if h.micro != b.micro {
		most = t.cost(p.s.roofs[h.micro]) - t.micro + b.time - others
	}
	for w, other := range h.items {
		d := t.tokens[it] - t.tokens[other]
		if d <= 0 || w > 0 && t.tokens[other] == t.tokens[h.items[w-1]] {
			continue
		}
		to := h.time + theirs[it] - theirs[other]
		if to > most || h.tokens+d > t.cap[h.class] {
			return
		}
		if from := b.time - mine[it] + mine[other]; from < b.time-best.lower {
			p.consider(b, h, from, to, others, change{k: k, to: j, with: w, class: -1}, best)
		}
	}
}

// consider keeps a change that gains more than the best, or as much and lowers
// the group more.
func (p *polisher) consider(b, h *bin, from, to, others float64, c change, best *change) {
	roof := max(from, others)
	raised := 0.0
	if h.micro == b.micro {
		roof = max(roof, to)
		c.lower = b.time - max(from, to)
	} else {
		raised = p.t.cost(max(to, p.s.roofs[h.micro])) - p.t.cost(p.s.roofs[h.micro])
		c.lower = b.time - from
	}
	c.gain = p.t.cost(b.time) - p.t.cost(roof) - raised
	if c.gain < leastGain && (c.lower < leastGain || h.micro != b.micro && to > p.s.roofs[h.micro]-leastGain) {
		return // gains nothing, and could be undone for as much
	}
	if c.gain > best.gain+noise || c.gain > best.gain-noise && c.lower > best.lower {
		*best = c
	}
}

// regroup considers another class of the group, with devices that are free.
func (p *polisher) regroup(g int, second float64, best *change) {
	b := &p.s.bins[g]
	t := p.t
	for c := range t.base {
		if c == b.class || b.tokens > t.cap[c] || !p.mayTurn(b, c) {
			continue
		}
		time := t.base[c]
		for _, it := range b.items {
			time += t.time[c][it]
		}
		p.left -= len(b.items)
		p.consider(b, b, time, time, second, change{k: -1, class: c}, best)
	}
}

// mayTurn says whether there are devices to turn a group into another class.
func (p *polisher) mayTurn(b *bin, c int) bool {
	free := p.s.free[b.micro]
	for i, u := range p.t.uses[c] {
		if u > free[i]+p.t.uses[b.class][i] {
			return false
		}
	}
	if p.t.anywhere {
		return true
	}
	m := b.micro
	b.micro = -1 // it gives up its own place
	ok := p.s.housed(p.t, m, c, &p.ones)
	b.micro = m
	return ok
}

func (p *polisher) apply(g int, c change) {
	b := &p.s.bins[g]
	t := p.t
	if c.class >= 0 {
		p.turn(b, c.class)
		p.mend(b.micro)
		return
	}
	h := &p.s.bins[c.to]
	it := b.items[c.k]
	b.items = append(b.items[:c.k], b.items[c.k+1:]...)
	if c.with >= 0 {
		other := h.items[c.with]
		h.items = append(h.items[:c.with], h.items[c.with+1:]...)
		b.items = insert(b.items, other)
	}
	h.items = insert(h.items, it)
	t.weigh(b)
	t.weigh(h)
	p.mend(b.micro)
	p.mend(h.micro)
}

// turn makes a group one of another class.
func (p *polisher) turn(b *bin, c int) {
	for i := range p.s.free[b.micro] {
		p.s.free[b.micro][i] += p.t.uses[b.class][i] - p.t.uses[c][i]
	}
	b.class = c
	p.t.weigh(b)
}

// mend works out a roof anew.
func (p *polisher) mend(m int) {
	at, _ := p.slowest(m, -1)
	p.s.roofs[m] = 0
	if at >= 0 {
		p.s.roofs[m] = p.s.bins[at].time
	}
}

// weigh adds up a group's time and tokens.
func (t *table) weigh(b *bin) {
	b.time, b.tokens = t.base[b.class], 0
	for _, it := range b.items {
		b.time += t.time[b.class][it]
		b.tokens += t.tokens[it]
	}
}

// insert keeps items in order.
func insert(items []item, it item) []item {
	items = append(items, it)
	for i := len(items) - 1; i > 0 && items[i-1] > items[i]; i-- {
		items[i-1], items[i] = items[i], items[i-1]
	}
	return items
}

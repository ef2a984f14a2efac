package batch

// bin is a group of a plan under construction.
type bin struct {
	class, micro int     // its class and its micro-batch
	time         float64 // seconds, the class's base included
	tokens       int64   // of its items
	items        []item
}

// state is a plan under construction. Times are in seconds.
type state struct {
	bins  []bin
	free  [][]int   // devices that no group uses, by micro-batch and pool
	roofs []float64 // time of the slowest group of each micro-batch
	total float64   // of the step, with what is open
	open  float64   // see table.open
}

// add makes an empty group of a class in a micro-batch.
func (s *state) add(t *table, m, c int) int {
	s.bins = resize(s.bins, len(s.bins)+1)
	b := &s.bins[len(s.bins)-1]
	b.class, b.micro, b.time, b.tokens, b.items = c, m, t.base[c], 0, b.items[:0]
	for i, u := range t.uses[c] {
		s.free[m][i] -= u
	}
	return len(s.bins) - 1
}

// spare says whether the devices of one more group are left.
func (s *state) spare(t *table, m, c int) bool {
	for i, u := range t.uses[c] {
		if u > s.free[m][i] {
			return false
		}
	}
	return true
}

// housed says whether the groups of a micro-batch that must each be within one node, and
// one more of a class, fit into the nodes; scratch is reused memory for their degrees.
func (s *state) housed(t *table, m, c int, scratch *[]int) bool {
	for i, u := range t.uses[c] {
		if u < 2 || t.nodes[i].chain {
			continue
		}
		ones := append((*scratch)[:0], u)
		for b := range s.bins {
			x := &s.bins[b]
			if x.micro == m && t.p.Classes[x.class].One && t.uses[x.class][i] > 0 {
				ones = append(ones, t.uses[x.class][i])
			}
		}
		*scratch = ones
		if !t.nodes[i].fits(ones) {
			return false
		}
	}
	return true
}

// settle computes the roofs and the step's time from the bins.
func (s *state) settle(t *table) {
	s.roofs = resize(s.roofs, len(s.free))
	clear(s.roofs)
	for i := range s.bins {
		b := &s.bins[i]
		if len(b.items) > 0 {
			s.roofs[b.micro] = max(s.roofs[b.micro], b.time)
		}
	}
	s.total = t.fixed
	top := 0.0
	for _, r := range s.roofs {
		if r > 0 {
			s.total += t.cost(r)
			top = max(top, r)
		}
	}
	s.open = t.open(top)
	s.total += s.open
}

// reprice works out what groups take at the prices of a table, of the same batch.
func (s *state) reprice(t *table) {
	for i := range s.bins {
		t.weigh(&s.bins[i])
	}
	s.settle(t)
}

// copyFrom makes s the same plan as o.
func (s *state) copyFrom(o *state) {
	s.bins = resize(s.bins, len(o.bins))
	for i := range o.bins {
		items := append(s.bins[i].items[:0], o.bins[i].items...)
		s.bins[i] = o.bins[i]
		s.bins[i].items = items
	}
	s.free = resize(s.free, len(o.free))
	for m := range o.free {
		s.free[m] = append(s.free[m][:0], o.free[m]...)
	}
	s.roofs = append(s.roofs[:0], o.roofs...)
	s.total, s.open = o.total, o.open
}

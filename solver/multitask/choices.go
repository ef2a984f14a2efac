package multitask

import (
	"cmp"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// choice is numbers of devices by pool that a module may run on, with balanced shares.
type choice struct {
	uses    []int
	samples []int // by pool: the most that a device has
	// Of a layer, on the devices of as few nodes as there may be.
	time  units.Seconds
	alone units.Seconds // without the exchange of gradients
	// forward is the longest forward pass, after which gradients are exchanged.
	forward units.Seconds
	cost    float64 // by the prices of the bound
	// held is, by pool, the share of a device's memory that a layer takes; 0 where nobody
	// knows how much there is.
	held []float64
}

// Limits of what is tried: how many types a group may have, how many numbers of each type's
// devices are combined with those of others, of few types and of many, and how many choices
// of a module are left.
const (
	mostTypes   = 3
	mixesOfFew  = 12
	mixesOfMany = 4
	mostChoices = 160
)

// choicesOf lists what a module may run on, by rising time: every number of devices of
// one type with which a layer takes less than with fewer, and mixes of types. Those that
// cost more than others as fast, by prices of a second of each type's devices, are left
// out.
func (p *Problem) choicesOf(module int, y []float64) []choice {
	var all []choice
	f, uses := newFree(p), make([]int, len(p.Pools))
	try := func() {
		if c, ok := p.choice(f, module, slices.Clone(uses), y); ok {
			all = append(all, c)
		}
	}
	for pool := range p.Pools {
		for _, n := range p.numbers(module, pool) {
			uses[pool] = n
			try()
		}
		uses[pool] = 0
	}
	most := mixesOfFew
	if len(p.Pools) > mostTypes {
		most = mixesOfMany
	}
	var mix func(from, types int)
	mix = func(from, types int) {
		for pool := from; pool < len(p.Pools) && types < mostTypes; pool++ {
			for _, n := range few(p.numbers(module, pool), most) {
				uses[pool] = n
				if types > 0 {
					try()
				}
				mix(pool+1, types+1)
			}
			uses[pool] = 0
		}
	}
	mix(0, 0)
	return slices.DeleteFunc(prune(all), func(c choice) bool { return p.idles(f, module, c) })
}

// numbers lists the numbers of a pool's devices of which one less would have a larger share
// of a module's batch.
func (p *Problem) numbers(module, pool int) []int {
	batch, most := p.Tasks.Modules[module].Batch, p.Pools[pool].Count()
	var all []int
	for n := 1; n <= min(most, batch); {
		all = append(all, n)
		share := needed(batch, n)
		if share == 1 {
			break
		}
		n = needed(batch, share-1)
	}
	return all
}

// few are so many of rising numbers at most, the first and the last among them.
func few(all []int, most int) []int {
	if len(all) <= most {
		return all
	}
	out := make([]int, most)
	for i := range out {
		out[i] = all[i*(len(all)-1)/(most-1)]
	}
	return slices.Compact(out)
}

// choice prices numbers of devices, on the nodes where they are fewest. It is false where
// some device would have nothing to do, or the group has no price.
func (p *Problem) choice(f *free, module int, uses []int, y []float64) (choice, bool) {
	samples, time := p.Balance(module, uses)
	if !(time < forever) {
		return choice{}, false
	}
	for q, n := range uses {
		if n > 0 && samples[q] == 0 {
			return choice{}, false
		}
	}
	f.reset()
	ranks := f.take(nil, uses, nil)
	c := choice{uses: uses, samples: samples, alone: time}
	for q, n := range uses {
		if n > 0 {
			forward, _ := p.Passes(module, q, samples[q])
			c.forward = max(c.forward, forward)
		}
	}
	c.time = c.on(p.Exchange(module, ranks))
	c.held = make([]float64, len(uses))
	for q, n := range uses {
		if room := p.Room(q); n > 0 && room > 0 {
			c.held[q] = float64(p.Held(module, len(ranks), samples[q])) / float64(room)
		}
	}
	for q, n := range uses {
		c.cost += y[q] * float64(n) * float64(c.time)
	}
	return c, c.time < forever
}

// idles says that some device of a choice would have no sample.
func (p *Problem) idles(f *free, module int, c choice) bool {
	f.reset()
	return slices.Contains(p.Shares(module, f.take(nil, c.uses, nil)), 0)
}

// on is what a layer takes where the exchange of its gradients takes so long.
func (c *choice) on(exchange units.Seconds) units.Seconds {
	return max(c.alone, c.forward+exchange)
}

// prune leaves those of all choices that cost less than every faster one, or little more, by
// rising time.
func prune(all []choice) []choice {
	const little = 1.1
	slices.SortStableFunc(all, func(a, b choice) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.cost, b.cost))
	})
	var out []choice
	least := 0.0
	for i, c := range all {
		if i > 0 && slices.Equal(c.uses, all[i-1].uses) {
			continue
		}
		if len(out) == 0 || c.cost < little*least {
			out = append(out, c)
		}
		if len(out) == 1 || c.cost < least {
			least = c.cost
		}
	}
	if len(out) <= mostChoices {
		return out
	}
	thinned := make([]choice, mostChoices)
	for i := range thinned {
		thinned[i] = out[i*(len(out)-1)/(mostChoices-1)]
	}
	return thinned
}

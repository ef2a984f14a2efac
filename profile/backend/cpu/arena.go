package cpu

import "math/rand/v2"

// arena hands out the inputs and outputs of a point from one slab that is used
// again for the next, so that measuring neither waits for the garbage
// collector nor pays for fresh pages.
type arena struct {
	slab   []float32
	used   int
	random []float32 // normal deviates, copied from instead of drawn
	next   int
}

// poolSize is a prime, so that two tensors of round sizes start at unrelated
// places of the pool.
const poolSize = 1<<20 + 7

func newArena() *arena {
	r := rand.New(rand.NewPCG(1, 0))
	a := &arena{random: make([]float32, poolSize)}
	for i := range a.random {
		a.random[i] = float32(r.NormFloat64())
	}
	return a
}

// reset makes room for n elements and forgets what was handed out.
func (a *arena) reset(n int, seed uint64) {
	if len(a.slab) < n {
		a.slab = make([]float32, n)
	}
	a.used, a.next = 0, int(seed%poolSize)
}

// take hands out n elements with whatever they hold.
func (a *arena) take(n int) []float32 {
	t := a.slab[a.used : a.used+n : a.used+n]
	a.used += n
	return t
}

// normal hands out n normal deviates: zeros or constants would run faster than
// real data.
func (a *arena) normal(n int) []float32 {
	t := a.take(n)
	for filled := 0; filled < n; {
		c := copy(t[filled:], a.random[a.next:])
		filled += c
		a.next = (a.next + c) % poolSize
	}
	return t
}

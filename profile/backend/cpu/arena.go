package cpu

import (
	"math/rand/v2"
	"unsafe"
)

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

// alignment of tensors in elements: 512 bytes, as frameworks allocate. Without
// it the kernel's copies of one message ran at 6 or at 10 GB/s, by the place
// that the buffers of a size happened to fall on.
const alignment = 128

// reset makes room for `tensors` tensors of n elements in all, and forgets what
// was handed out.
func (a *arena) reset(n, tensors int, seed uint64) {
	n += (tensors + 1) * alignment
	if len(a.slab) < n {
		a.slab = make([]float32, n)
	}
	offset := uintptr(unsafe.Pointer(unsafe.SliceData(a.slab))) / 4 % alignment
	a.used, a.next = int(-offset)&(alignment-1), int(seed%poolSize)
}

// take hands out n elements with whatever they hold.
func (a *arena) take(n int) []float32 {
	t := a.slab[a.used : a.used+n : a.used+n]
	a.used += (n + alignment - 1) / alignment * alignment
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

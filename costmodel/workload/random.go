package workload

import "math/bits"

// pcg64 is the generator PCG XSL-RR 128/64 (O'Neill, "PCG: A Family of Simple
// Fast Space-Efficient Statistically Good Algorithms for Random Number
// Generation", 2014), seeded as NumPy's default_rng seeds it: published
// workloads are defined by its seeds, and only the same bits give the same
// batches.
type pcg64 struct {
	high, low       uint64 // state
	incHigh, incLow uint64 // of the stream, odd
}

// The multiplier of the 128-bit linear congruential generator.
const (
	pcgMultiplierHigh = 0x2360ed051fc65da4
	pcgMultiplierLow  = 0x4385df649fccf645
)

// newPCG64 seeds a generator: the first two words of the seed sequence are the
// state, the next two the stream, high word first.
func newPCG64(seed uint64) *pcg64 {
	w := seedWords(seed)
	g := &pcg64{incHigh: w[2]<<1 | w[3]>>63, incLow: w[3]<<1 | 1}
	g.step()
	var carry uint64
	g.low, carry = bits.Add64(g.low, w[1], 0)
	g.high, _ = bits.Add64(g.high, w[0], carry)
	g.step()
	return g
}

// step advances the state: state = state * multiplier + increment, modulo 2^128.
func (g *pcg64) step() {
	high, low := bits.Mul64(g.low, pcgMultiplierLow)
	high += g.high*pcgMultiplierLow + g.low*pcgMultiplierHigh
	var carry uint64
	g.low, carry = bits.Add64(low, g.incLow, 0)
	g.high, _ = bits.Add64(high, g.incHigh, carry)
}

// uint64 returns the next word: the halves of the state combined by exclusive
// or, turned right by its six highest bits.
func (g *pcg64) uint64() uint64 {
	g.step()
	return bits.RotateLeft64(g.high^g.low, -int(g.high>>58))
}

// float64 returns the next number in [0, 1): the 53 highest bits of a word.
func (g *pcg64) float64() float64 {
	return float64(g.uint64()>>11) / (1 << 53)
}

// between returns a whole number from lo to hi, both included.
func (g *pcg64) between(lo, hi int64) int64 {
	return min(hi, lo+int64(g.float64()*float64(hi-lo+1)))
}

// The constants of the seed sequence (O'Neill, "Developing a seed_seq
// Alternative", 2015).
const (
	poolWords = 4
	initA     = 0x43b0d7e5
	multA     = 0x931e8875
	initB     = 0x8b51f9dd
	multB     = 0x58f38ded
	mixLeft   = 0xca01f9dd
	mixRight  = 0x4973f715
)

// seedWords spreads a seed over four words, so that seeds which differ in one
// bit give streams that have nothing in common.
func seedWords(seed uint64) [4]uint64 {
	pool := seedPool(uint32(seed), uint32(seed>>32))
	var words [4]uint64
	constant := uint32(initB)
	for i := range 2 * len(words) {
		v := pool[i%poolWords] ^ constant
		constant *= multB
		v *= constant
		v ^= v >> 16
		words[i/2] |= uint64(v) << (32 * (i % 2))
	}
	return words
}

// seedPool hashes the two halves of a seed into the pool and mixes every word of
// it into every other. A half of zero counts as one that is missing: both hash
// a zero.
func seedPool(entropy ...uint32) [poolWords]uint32 {
	constant := uint32(initA)
	hash := func(v uint32) uint32 {
		v ^= constant
		constant *= multA
		v *= constant
		return v ^ v>>16
	}
	var pool [poolWords]uint32
	for i := range pool {
		var v uint32
		if i < len(entropy) {
			v = entropy[i]
		}
		pool[i] = hash(v)
	}
	for from := range pool {
		for to := range pool {
			if from != to {
				v := pool[to]*mixLeft - hash(pool[from])*mixRight
				pool[to] = v ^ v>>16
			}
		}
	}
	return pool
}

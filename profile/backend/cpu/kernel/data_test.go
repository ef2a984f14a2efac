package kernel

import (
	"math"
	"math/rand/v2"
)

// normal returns n standard normal values of a seeded stream.
func normal(rng *rand.Rand, n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = float32(rng.NormFloat64())
	}
	return s
}

// poison returns n NaNs: an output element that a kernel forgets stays one, and RelErr turns that into +Inf.
func poison(n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = float32(math.NaN())
	}
	return s
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x6b65726e)) }

// attentionData makes random inputs and poisoned outputs for s.
func attentionData(s AttentionShape, seed uint64) (Attention, AttentionGrad) {
	rng := seeded(seed)
	a := Attention{
		Q: normal(rng, s.QSize()), K: normal(rng, s.KVSize()), V: normal(rng, s.KVSize()),
		O: poison(s.QSize()), LSE: poison(s.LSESize()),
	}
	g := AttentionGrad{
		DO: normal(rng, s.QSize()),
		DQ: poison(s.QSize()), DK: poison(s.KVSize()), DV: poison(s.KVSize()),
	}
	return a, g
}

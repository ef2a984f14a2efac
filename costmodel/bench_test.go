package costmodel

import (
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

func benchmarkRing(b *testing.B, ranks string, each units.Tokens) {
	p := usual(b)
	c := cluster(b, ranks, p, "bus", "net")
	tokens := make([]units.Tokens, len(c.Ranks()))
	for i := range tokens {
		tokens[i] = each + units.Tokens(2*i)
	}
	j, l, q := testJob(c, tokens), ZigZag(tokens), NewPredictor(p)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Simulate(q, j, l); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSimulate16(b *testing.B)  { benchmarkRing(b, "1x8 fast + 1x8 slow", 4096) }
func BenchmarkSimulate128(b *testing.B) { benchmarkRing(b, "8x8 fast + 8x8 slow", 4096) }

// BenchmarkRing16 is the events of one layer's backward pass alone.
func BenchmarkRing16(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 10))
	r := &ring{n: 16, buffers: 2, back: true, pre: make([]units.Seconds, 16), post: make([]units.Seconds, 16)}
	for range 16 * 16 {
		r.work = append(r.work, units.Seconds(3*rng.Float64()))
		r.kv = append(r.kv, units.Seconds(rng.Float64()))
		r.grad = append(r.grad, units.Seconds(rng.Float64()))
	}
	b.ReportAllocs()
	for b.Loop() {
		r.run()
	}
}

package kernel

import (
	"fmt"
	"testing"
)

// reportGFLOPS shows the useful rate: FLOPs under the mask over wall time.
func reportGFLOPS(b *testing.B, flops float64) {
	b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOPS")
}

func BenchmarkAttention(b *testing.B) {
	for _, s := range []AttentionShape{
		{Mask: Full, QLen: 2048, KVLen: 2048, QHeads: 1, KVHeads: 1, HeadDim: 64},
		{Mask: Diag, QLen: 2048, KVLen: 2048, QHeads: 1, KVHeads: 1, HeadDim: 64},
		{Mask: Full, QLen: 1024, KVLen: 1024, QHeads: 4, KVHeads: 1, HeadDim: 128},
	} {
		a, g := attentionData(s, 1)
		for _, threads := range []int{1, 2} {
			name := fmt.Sprintf("%v/%dx%d/h%d:%d/d%d/t%d", s.Mask, s.QLen, s.KVLen, s.QHeads, s.KVHeads, s.HeadDim, threads)
			b.Run("fwd/"+name, func(b *testing.B) {
				for b.Loop() {
					AttentionForward(s, a, crew(threads))
				}
				reportGFLOPS(b, s.ForwardFLOPs())
			})
			b.Run("bwd/"+name, func(b *testing.B) {
				for b.Loop() {
					AttentionBackward(s, a, g, crew(threads))
				}
				reportGFLOPS(b, 2.5*s.ForwardFLOPs()) // five products a pair where forward has two
			})
		}
	}
}

func BenchmarkGEMM(b *testing.B) {
	s := GEMMShape{M: 512, N: 1024, K: 512}
	rng := seeded(1)
	x, w, y := normal(rng, s.M*s.K), normal(rng, s.K*s.N), normal(rng, s.M*s.N)
	for _, pass := range []struct {
		name string
		run  func()
	}{
		{"fwd", func() { GEMMForward(s, y, x, w, crew(2)) }},
		{"dgrad", func() { GEMMDGrad(s, x, y, w, crew(2)) }},
		{"wgrad", func() { GEMMWGrad(s, w, x, y, crew(2)) }},
	} {
		b.Run(pass.name, func(b *testing.B) {
			for b.Loop() {
				pass.run()
			}
			reportGFLOPS(b, s.FLOPs())
		})
	}
}

func BenchmarkRowOps(b *testing.B) {
	s := Rows{Tokens: 1024, Width: 4096}
	rng := seeded(1)
	x, y, z, w := normal(rng, s.Size()), normal(rng, s.Size()), poison(s.Size()), normal(rng, s.Width)
	targets, losses := make([]int32, s.Tokens), make([]float32, s.Tokens)
	for _, op := range []struct {
		name  string
		moves int64 // tensors read plus written
		run   func()
	}{
		{"norm", 2, func() { Norm(s, z, x, w, 1e-5, crew(1)) }},
		{"swiglu", 3, func() { SwiGLU(s, z, x, y, crew(1)) }},
		{"gelu", 2, func() { GELU(s, z, x, crew(1)) }},
		{"ce_chunk", 2, func() { CEChunk(s, z, targets, losses, 1, crew(1)) }},
		{"merge", 3, func() {
			LSEMerge(MergeShape{s.Tokens * 32, 1, 128}, Partial{z, z[:s.Tokens*32]}, Partial{x, x[:s.Tokens*32]}, Partial{y, y[:s.Tokens*32]}, crew(1))
		}},
	} {
		b.Run(op.name, func(b *testing.B) {
			b.SetBytes(op.moves * 4 * int64(s.Size()))
			for b.Loop() {
				op.run()
			}
		})
	}
}

package solver

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results/profiles"
)

// gpuProblem is a job on real GPUs' laws: cores, corrections, laws made between
// measured groups, and assumed links.
func gpuProblem(t testing.TB, cluster string, seq units.Tokens) *Problem {
	profile, job := gpuJob(t, cluster, seq)
	return problemOf(t, profile, job)
}

func gpuJob(t testing.TB, cluster string, seq units.Tokens) (*costmodel.Profile, costmodel.Job) {
	t.Helper()
	profile := profiles.Merge(profiles.All())
	c, err := costmodel.ParseCluster(cluster)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.Named(profile); err != nil {
		t.Fatal(err)
	}
	if c, err = fit.AssumeLinks(profile, c); err != nil {
		t.Fatal(err)
	}
	return profile, costmodel.Job{
		Model:   costmodel.Model{Name: "llama", Layers: 8, Hidden: 4096, FFN: 14336, QHeads: 32, KVHeads: 8, HeadDim: 128, Vocab: 32000, GatedMLP: true},
		Cluster: c, SeqLen: seq, DType: op.BF16, Recompute: costmodel.RecomputeNone, RingBuffers: 2, LossChunk: 1024,
	}
}

// The bound holds on GPUs' laws for any layout, short sequences (where launches
// rule) and long ones, and leaves less than a quarter of an even cluster's step.
func TestBoundHoldsOnReferences(t *testing.T) {
	sequential(t)
	r := rand.New(rand.NewPCG(7, 1))
	for _, cluster := range []string{"1x8 h100_sxm", "1x6 a100_sxm", "1x3 rtx_pro_6000_server", "1x4 h100_sxm + 1x4 a100_sxm", "2x4 gb200", "1x(2 b60 + 1 rtx_pro_6000_server)"} {
		for _, seq := range []units.Tokens{600, 7000, 1 << 17} {
			p := gpuProblem(t, cluster, seq)
			bound, err := LowerBound(p)
			if err != nil {
				t.Fatal(err)
			}
			layouts := []costmodel.Layout{p.equalRing()}
			for range 5 {
				layouts = append(layouts, randomGrouped(r, p))
			}
			for i, l := range layouts {
				step, err := p.simulate(context.Background(), l)
				if err != nil {
					t.Fatal(err)
				}
				if bound > step.Time.Mid*(1+1e-9) {
					t.Errorf("%s, %d tokens: bound %v above %v of %+v", cluster, seq, bound, step.Time.Mid, l)
				}
				if i == 0 && cluster == "1x8 h100_sxm" && seq > 1<<16 && bound < 0.75*step.Time.Mid {
					t.Errorf("%s, %d tokens: bound %v, an equal split takes %v", cluster, seq, bound, step.Time.Mid)
				}
			}
		}
	}
}

package world

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results/profiles"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// GPUs is a job on real GPUs' laws: cores, corrections, laws made between
// measured groups, and assumed links.
func GPUs(t testing.TB, cluster string, seq units.Tokens) *strategy.Problem {
	profile, job := GPUJob(t, cluster, seq)
	return ProblemOf(t, profile, job)
}

// GPUJob is the profile and the job of GPUs.
func GPUJob(t testing.TB, cluster string, seq units.Tokens) (*costmodel.Profile, costmodel.Job) {
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

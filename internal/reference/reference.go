// Package reference makes jobs on real GPUs, by the laws of the profiles that come with
// evenkeel, for the tests of whatever plans or prices them.
package reference

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results/profiles"
)

// Llama is a model of 8 billion parameters where it has 32 layers.
func Llama(layers int) costmodel.Model {
	return costmodel.Model{Name: "llama", Layers: layers, Hidden: 4096, FFN: 14336, QHeads: 32, KVHeads: 8, HeadDim: 128, Vocab: 32000, GatedMLP: true}
}

// Job trains a model on a cluster, such as "2x8 h100_sxm", by laws that are the caller's to
// change: cores, corrections, laws made between measured groups, and assumed links.
func Job(t testing.TB, model costmodel.Model, cluster string, seq units.Tokens) (*costmodel.Profile, costmodel.Job) {
	t.Helper()
	profile := profiles.Merge(profiles.All())
	c, err := costmodel.ParseCluster(cluster)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.Named(profile); err != nil {
		t.Fatal(err)
	}
	if c, err = fit.AssumeLinks(profile, &costmodel.Profile{}, c); err != nil {
		t.Fatal(err)
	}
	return profile, costmodel.Job{
		Model: model, Cluster: c, SeqLen: seq, DType: op.BF16, Recompute: costmodel.RecomputeNone, RingBuffers: 2, LossChunk: 1024,
	}
}

package world

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
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
	return reference.Job(t, reference.Llama(8), cluster, seq)
}

package solver

import (
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// testProblem is world.Problem for Solve.
func testProblem(t testing.TB, cluster string, seq units.Tokens, devices ...world.Device) *Problem {
	t.Helper()
	return toSolve(t, world.Problem(t, cluster, seq, devices...))
}

func randomWorld(t testing.TB, r *rand.Rand) *Problem {
	t.Helper()
	return toSolve(t, world.Random(t, r))
}

func gpuProblem(t testing.TB, cluster string, seq units.Tokens) *Problem {
	t.Helper()
	return toSolve(t, world.GPUs(t, cluster, seq))
}

func toSolve(t testing.TB, p *strategy.Problem) *Problem {
	t.Helper()
	return problemOf(t, p.Profile, p.Job)
}

func problemOf(t testing.TB, profile *costmodel.Profile, job costmodel.Job) *Problem {
	t.Helper()
	if err := profile.Validate(); err != nil {
		t.Fatal(err)
	}
	p, err := NewProblem(profile, job)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

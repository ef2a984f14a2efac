package world

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// After solves a strategy, and those before it unless others have been.
func After(ctx context.Context, p *strategy.Problem, s strategy.Strategy, before []strategy.Strategy) (strategy.Result, error) {
	if p.Seeds == nil && !s.Claims().Baseline {
		if _, _, err := strategy.SolveEach(ctx, p, before, nil); err != nil {
			return strategy.Result{}, err
		}
	}
	return s.Solve(ctx, p, nil)
}

// Solve is After for a strategy that has to find a layout, with its account.
func Solve(t testing.TB, p *strategy.Problem, s strategy.Strategy, before []strategy.Strategy) strategy.Result {
	t.Helper()
	res, err := After(context.Background(), p, s, before)
	if err == nil && res.Step == nil {
		res.Step, err = p.Simulate(context.Background(), res.Layout)
	}
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// Sequential leaves a test that starts no goroutine, as Solve does, out under the race
// detector: it has nothing to find there, and takes ten times as long.
func Sequential(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("nothing in it runs beside anything else")
	}
}

// WithHeads is the test problem with so many query and key-value heads.
func WithHeads(t testing.TB, cluster string, seq units.Tokens, q, kv int) *strategy.Problem {
	t.Helper()
	job := Job(t, cluster, seq)
	job.Model.QHeads, job.Model.KVHeads = q, kv
	return ProblemOf(t, Profile([]Device{Fast(), Slow()}, []Wire{Near(), Far()}), job)
}

// Without is a profile that lacks the laws of a collective.
func Without(p *costmodel.Profile, kind op.Kind) *costmodel.Profile {
	p.Laws = slices.DeleteFunc(p.Laws, func(l costmodel.Law) bool { return l.Op == kind })
	return p
}

// Time is the simulated time of a layout that has to be a valid one.
func Time(t testing.TB, p *strategy.Problem, l costmodel.Layout) units.Seconds {
	t.Helper()
	if err := l.Validate(p.Job.SeqLen, len(p.Ranks), p.Job.Model.QHeads); err != nil {
		t.Fatalf("%s: %v: %+v", p.Job.Cluster, err, l)
	}
	s, err := p.Sim.Time(l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Doubtful is a cluster with a device whose laws may be off by a factor either way: with it
// plans are fastest, and without it there is something to gain as well.
func Doubtful(t testing.TB, factor float64) *strategy.Problem {
	return DoubtfulOn(t, "1x(2 fast + 2 slow + 1 odd)", factor)
}

// DoubtfulOn is that of a cluster in which the device is called odd.
func DoubtfulOn(t testing.TB, cluster string, factor float64) *strategy.Problem {
	odd := Fast()
	odd.Name, odd.FLOPS = "odd", Fast().FLOPS*0.6
	profile := Profile([]Device{Fast(), Slow(), odd}, []Wire{Near(), Far()})
	for i := range profile.Laws {
		if l := &profile.Laws[i]; l.Device == "odd" {
			l.Spread = costmodel.Spread{Lo: 1 / factor, Hi: factor}
		}
	}
	return ProblemOf(t, profile, Job(t, cluster, 32768))
}

// Changed is a problem with another job.
func Changed(t testing.TB, p *strategy.Problem, change func(*costmodel.Job)) *strategy.Problem {
	t.Helper()
	job := p.Job
	change(&job)
	return ProblemOf(t, p.Profile, job)
}

// LongRing is a cluster whose ring has more tasks in a pass, 1104 x 1104, than a simulation
// does before it asks whether to go on.
const LongRing = "138x8 fast"

// FittingTime is the time of a strategy's layout, false where it has none that fits.
func FittingTime(t testing.TB, p *strategy.Problem, s strategy.Strategy) (units.Seconds, bool) {
	t.Helper()
	res, err := s.Solve(context.Background(), p, nil)
	var bad *strategy.MemoryError
	var none *strategy.IllegalError
	if errors.As(err, &bad) || errors.As(err, &none) {
		return 0, false
	}
	if err != nil {
		t.Fatalf("%s on %s: %v", s.Name(), p.Job.Cluster, err)
	}
	return Time(t, p, res.Layout), true
}

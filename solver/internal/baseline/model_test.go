package baseline

import (
	"context"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// On equal shares the analytic model comes near the simulator: it leaves out
// queues, so it is seldom above, and usp may trust it not to be far above.
func TestModelOfEqualShares(t *testing.T) {
	for _, cluster := range []string{"1x8 h100_sxm", "1x8 h100_sxm + 1x8 a100_sxm", "2x(4 h100_sxm + 4 a100_sxm)", "4x4 gb200", "2x8 a100_sxm + 2x8 b60"} {
		for _, seq := range []units.Tokens{8192, 1 << 17, 1 << 20} {
			p := world.GPUs(t, cluster, seq)
			m := modelOf(t, p)
			for _, x := range Meshes(p, p.AllRanks()) {
				l := EqualShares(p, x.Groups)
				model, real := m.Layout(l), layersTime(t, p, l)
				if model > analytic.Hopeless*real {
					t.Errorf("%s, %d tokens, %s: the model says %v, the simulator %v", cluster, seq, x.Name(), model, real)
				}
				if seq == 1<<20 && model < 0.75*real {
					t.Errorf("%s, %d tokens, %s: the model says %v, the simulator %v", cluster, seq, x.Name(), model, real)
				}
			}
		}
	}
}

// layersTime is the part of a step that the model covers.
func layersTime(t testing.TB, p *strategy.Problem, l costmodel.Layout) float64 {
	t.Helper()
	step, err := p.Simulate(context.Background(), l)
	if err != nil {
		t.Fatal(err)
	}
	total := step.Time.Mid
	for _, x := range step.Parts {
		if x.Name == "gradient sync" || x.Name == "optimizer" {
			total -= x.Time.Mid
		}
	}
	return float64(total)
}

// Network cards that a node's devices share slow all-to-alls and messages in the
// model as they do in the simulator.
func TestModelOfSharedCards(t *testing.T) {
	for _, cards := range []int{0, 1, 2} {
		job := world.Job(t, "2x4 fast", 16384)
		for i := range job.Cluster.Nodes {
			job.Cluster.Nodes[i].NICs = cards
		}
		p := world.ProblemOf(t, world.Profile([]world.Device{world.Fast()}, []world.Wire{world.Near(), world.Link("far", 1e-6, 2e-9)}), job)
		m := modelOf(t, p)
		for _, x := range Meshes(p, p.AllRanks()) {
			l := EqualShares(p, x.Groups)
			if model, real := m.Layout(l), layersTime(t, p, l); model > analytic.Hopeless*real || model < 0.7*real {
				t.Errorf("%d cards, %s: the model says %v, the simulator %v", cards, x.Name(), model, real)
			}
		}
	}
}

func modelOf(t testing.TB, p *strategy.Problem) *analytic.Model {
	t.Helper()
	m, err := analytic.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

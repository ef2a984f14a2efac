package evenkeel

import (
	"context"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/bound"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

func tokensOfLayout(l costmodel.Layout) []units.Tokens {
	var n []units.Tokens
	for _, s := range l.Shards {
		n = append(n, s.Tokens())
	}
	return n
}

func TestEqualDevicesGetEqualShares(t *testing.T) {
	d := world.Fast()
	d.Launch, d.Row = 5e-6, 1e-12
	for _, cluster := range []string{"1x2 fast", "1x4 fast", "2x3 fast"} {
		for _, seq := range []units.Tokens{16384, 10007} {
			p := world.Problem(t, cluster, seq, d)
			split := tokensOfLayout(world.Solve(t, p, &Evenkeel{}, baseline.Strategies()).Layout)
			// Kernels hand out tiles of 64 rows whole, so a length that does not
			// divide into equal tiles is best split into unequal ones.
			within := p.Block
			if seq%(64*units.Tokens(len(split))) != 0 {
				within = 64
			}
			if slices.Max(split)-slices.Min(split) > within {
				t.Errorf("%s, %d tokens: %v, more than %d apart", cluster, seq, split, within)
			}
		}
	}
}

func TestFasterDeviceGetsAtLeastAsMuch(t *testing.T) {
	for _, cluster := range []string{"1x(1 fast + 1 slow)", "1x(2 slow + 1 fast)", "1x2 slow + 1x2 fast"} {
		p := world.Problem(t, cluster, 16384)
		split := tokensOfLayout(world.Solve(t, p, &Evenkeel{}, baseline.Strategies()).Layout)
		for a, x := range p.Ranks {
			for b, y := range p.Ranks {
				if x.Device == "fast" && y.Device == "slow" && split[a] < split[b] {
					t.Errorf("%s: fast rank %d has %d tokens, slow rank %d has %d", cluster, a, split[a], b, split[b])
				}
			}
		}
	}
}

// Where computing is all that counts, a fourfold speed earns a fourfold share
// and the time is the bound but for merging and rounding.
func TestComputeBoundSharesFollowSpeed(t *testing.T) {
	f, s := world.Fast(), world.Slow()
	f.Bytes, s.Bytes = 1e15, 1e15
	profile := world.Profile([]world.Device{f, s}, []world.Wire{world.Link("near", 0, 1e-16), world.Link("far", 0, 1e-16)})
	p := world.ProblemOf(t, profile, world.Job(t, "1x(1 fast + 1 slow)", 65536))
	res := world.Solve(t, p, &Evenkeel{}, baseline.Strategies())
	split := tokensOfLayout(res.Layout)
	if ratio := float64(split[0]) / float64(split[1]); ratio < 3.9 || ratio > 4.1 {
		t.Errorf("shares %v, ratio %v, want 4", split, ratio)
	}
	bound, err := bound.Lower(p.Profile, p.Predictor, p.Job)
	if err != nil {
		t.Fatal(err)
	}
	if g := float64(res.Step.Time.Mid/bound) - 1; g > 0.01 {
		t.Errorf("gap %v", g)
	}
}

func TestExhaustiveSmallCases(t *testing.T) {
	world.Sequential(t)
	uneven := world.Slow()
	uneven.Launch, uneven.Tail = 2e-5, 2e-13
	for _, tc := range []struct {
		cluster string
		blocks  int
		devices []world.Device
		wires   []world.Wire
	}{
		{"1x(1 fast + 1 slow)", 16, []world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Far()}},
		{"1x(2 fast + 1 slow)", 16, []world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Far()}},
		{"1x(1 fast + 2 slow)", 16, []world.Device{world.Fast(), uneven}, []world.Wire{world.Near(), world.Far()}},
		{"1x(1 fast + 1 slow) + 1x1 fast", 16, []world.Device{world.Fast(), uneven}, []world.Wire{world.Near(), world.Link("far", 1e-4, 1e-8)}},
		{"1x1 fast + 1x1 slow", 16, []world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Link("far", 1e-3, 1e-7)}},
		{"1x(1 fast + 1 slow) + 1x1 slow", 12, []world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Link("far", 1e-5, 1e-9)}},
	} {
		p := world.ProblemOf(t, world.Profile(tc.devices, tc.wires), world.Job(t, tc.cluster, units.Tokens(tc.blocks)*256))
		p.Block = 256
		best := bestOf(t, p, tc.blocks)
		bound, err := bound.Lower(p.Profile, p.Predictor, p.Job)
		if err != nil {
			t.Fatal(err)
		}
		ours := world.Solve(t, p, &Evenkeel{}, baseline.Strategies())
		if ours.Step.Time.Mid > best*1.02 || bound > best*(1+1e-9) {
			t.Errorf("%s: evenkeel %v in %d layouts, best %v, bound %v", tc.cluster, ours.Step.Time.Mid, ours.Evaluated, best, bound)
		}
		t.Logf("%s: evenkeel %v, best %v (%.2f %% above), bound %v, %d layouts", tc.cluster, ours.Step.Time.Mid, best, 100*float64(ours.Step.Time.Mid/best-1), bound, ours.Evaluated)
	}
}

// inOrder is a zigzag of single ranks in the order of their ring.
func inOrder(p *strategy.Problem, tokens []units.Tokens, order []int) costmodel.Layout {
	var groups []costmodel.Group
	for _, r := range order {
		if tokens[r] > 0 {
			groups = append(groups, costmodel.Group{{Rank: r, QHeads: p.Job.Model.QHeads}})
		}
	}
	return costmodel.ZigZag(tokens, groups)
}

func bestOf(t *testing.T, p *strategy.Problem, blocks int) units.Seconds {
	best := units.Seconds(-1)
	world.EverySplit(blocks, len(p.Ranks), func(split []int) {
		tokens := make([]units.Tokens, len(split))
		for r, b := range split {
			tokens[r] = units.Tokens(b) * p.Block
		}
		for _, order := range world.Orders(len(split)) {
			step, err := p.Simulate(context.Background(), inOrder(p, tokens, order))
			if err != nil {
				t.Fatal(err)
			}
			if best < 0 || step.Time.Mid < best {
				best = step.Time.Mid
			}
		}
	})
	return best
}

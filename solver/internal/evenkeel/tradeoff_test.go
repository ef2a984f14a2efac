package evenkeel

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// tightWorld is a node of unlike devices whose memory holds the sequence, but not
// in any shares.
func tightWorld(t testing.TB, r *rand.Rand, cluster string, seq units.Tokens) *strategy.Problem {
	t.Helper()
	f, s := world.Fast(), world.Slow()
	f.Memory, s.Memory = 1<<50, 1<<50
	roomy := world.Problem(t, cluster, seq, f, s)
	// What an even split needs, a little more or less of it.
	need := 0.0
	for _, m := range roomy.Sim.Memory(roomy.EqualRing()) {
		need = max(need, float64(m.Peak()))
	}
	f.Memory, s.Memory = units.Bytes(need*(0.8+1.2*r.Float64())), units.Bytes(need*(0.8+1.2*r.Float64()))
	f.FLOPS *= 0.5 + 2*r.Float64()
	return world.Problem(t, cluster, seq, f, s)
}

// A member fits with as many tokens as it is said to have room for, and not with
// many more: where what is sent begins to count, the room errs on the safe side.
func TestRoomIsWhatMemoryHolds(t *testing.T) {
	r := rand.New(rand.NewPCG(32, 1))
	full := 0
	for range 60 {
		p := tightWorld(t, r, "1x(2 fast + 2 slow)", units.Tokens(4000+r.IntN(30000)))
		e, err := newEstimator(p)
		if err != nil {
			t.Fatal(err)
		}
		s := float64(p.Job.SeqLen) * (0.2 + 0.8*r.Float64())
		l := lot{class: r.IntN(len(e.dev)), heads: r.IntN(p.Job.Model.QHeads + 1)}
		widest := s * float64(r.IntN(2))
		room := e.roomOf(l, s, setting{4, s, widest, 1, 4})
		fits := func(tokens float64) bool {
			m := p.Job.MemoryOf(e.share(l, tokens, setting{4, s, widest, 1, 4}), e.m.Memory[e.dev[l.class]])
			return m.Fits()
		}
		if room > 0 && !fits(room) {
			t.Errorf("%v tokens beside %d heads do not fit", room, l.heads)
		}
		if room > 0 && room < s {
			full++
			if more := room*1.15 + 3*float64(p.Block); more < s && fits(more) {
				t.Errorf("room for %v tokens beside %d heads, but %v fit", room, l.heads, more)
			}
		}
	}
	if full < 10 {
		t.Errorf("memory bound %d members only: the test says little", full)
	}
}

// No way to deal heads leaves room for more tokens within the same limits.
func TestDealLeavesTheMostRoom(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 1))
	bound := 0
	for range 80 {
		p := tightWorld(t, r, "1x(1 fast + 2 slow)", units.Tokens(4000+r.IntN(30000)))
		e, err := newEstimator(p)
		if err != nil {
			t.Fatal(err)
		}
		d := e.draft([][]int{{0, 1, 2}})
		s := float64(p.Job.SeqLen)
		x := e.newTradeoff(&d.kinds[0], 1, s, 0, 3)
		theta, linear := x.first()*(1+r.Float64()), s/x.classes[0].rate*(0.2+r.Float64())
		got, best := x.deal(theta, linear), -1.0
		world.EverySplit(x.heads, 3, func(heads []int) {
			held := 0.0
			for m, h := range heads {
				c := x.of[m]
				if h > 0 && (x.attention(c, h) > theta || x.rooms(c)[h] == 0 && x.rooms(c)[h-1] == 0) {
					return
				}
				held += min(linear*x.classes[c].rate, x.rooms(c)[h])
			}
			best = max(best, held)
		})
		if got < best*(1-1e-3)-4*float64(p.Block) {
			t.Errorf("%s: room for %v tokens, %v are to be had", p.Job.Cluster, got, best)
		}
		if got > 0 && got < s {
			bound++
		}
	}
	if bound < 10 {
		t.Errorf("limits bound %d deals only: the test says little", bound)
	}
}

// Where memory binds, heads and tokens have to move together: the plan is near
// the best of all, and what members trade is what the exact search finds.
func TestAgainstExactSearchWithinMemory(t *testing.T) {
	instances := 24
	if testing.Short() {
		instances = 6
	}
	r := rand.New(rand.NewPCG(34, 1))
	var gaps []float64
	for i := range instances {
		p := tightWorld(t, r, []string{"1x(1 fast + 1 slow)", "1x(1 fast + 2 slow)", "1x(2 fast + 1 slow)"}[r.IntN(3)], 12*256)
		p = world.Changed(t, p, func(j *costmodel.Job) {
			j.Model.QHeads, j.Model.KVHeads, j.Model.Hidden = 6, 6, 64*6
			j.Recompute = costmodel.RecomputeFull
		})
		p.Block = 256
		best := exactWithin(t, p, 12)
		res, err := world.After(context.Background(), p, &Evenkeel{}, baseline.Strategies())
		if err != nil {
			if !math.IsInf(best, 1) {
				t.Errorf("instance %d: %v, but %v fits", i, err, best)
			}
			continue
		}
		gap := float64(world.Seconds(t, p, res.Layout))/best - 1
		gaps = append(gaps, gap)
		if gap > 0.02 {
			t.Errorf("instance %d: %s: %v above the best", i, p.Job.Cluster, gap)
		}
	}
	slices.Sort(gaps)
	t.Logf("%d instances fit: median %.4f %%, worst %.3f %%", len(gaps), 100*gaps[len(gaps)/2], 100*gaps[len(gaps)-1])
}

// exactWithin is world.Exact among the layouts that fit.
func exactWithin(t testing.TB, p *strategy.Problem, blocks int) float64 {
	best, n := math.Inf(1), len(p.Ranks)
	tokens := make([]units.Tokens, n)
	world.EveryPartition(n, func(groups [][]int) {
		world.EveryHeads(groups, p.Job.Model.QHeads, func(heads [][]int) {
			world.EverySplit(blocks, n, func(split []int) {
				for i, b := range split {
					tokens[i] = units.Tokens(b) * p.Block
				}
				if l, ok := world.ExactLayout(tokens, groups, heads); ok && p.Overfull(l) == nil {
					best = min(best, float64(world.Seconds(t, p, l)))
				}
			})
		})
	})
	return best
}

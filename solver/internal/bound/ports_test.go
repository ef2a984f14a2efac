package bound

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// sent is the bytes that the simulator counts of a layout's all-to-alls and rings,
// between nodes and in all.
func sent(t *testing.T, p *strategy.Problem, l costmodel.Layout) (far, all float64) {
	t.Helper()
	step, err := p.Sim.Step(l, costmodel.SimOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nodes, n := map[int]bool{}, 0
	for _, g := range l.Groups {
		for _, m := range g {
			nodes[p.Ranks[m.Rank].Node] = true
			n++
		}
	}
	for _, x := range step.Traffic {
		all += float64(x.Bytes)
		if x.Link == p.Job.Cluster.Network {
			far += float64(x.Bytes)
		}
	}
	for _, c := range p.Job.Collectives() {
		b := float64(n-1) * float64(c.Bytes) * c.Times
		if c.Kind == op.KindAllReduce {
			b *= 2
		}
		all -= b
		if len(nodes) > 1 {
			far -= b
		}
	}
	return far, all
}

// tokensOf is the most tokens of a rank and of a node.
func tokensOf(p *strategy.Problem, l costmodel.Layout) (rank, node float64) {
	nodes := map[int]units.Tokens{}
	for r, n := range l.Tokens() {
		nodes[p.Ranks[r].Node] += n
		rank = max(rank, float64(n))
		node = max(node, float64(nodes[p.Ranks[r].Node]))
	}
	return rank, node
}

// What the simulator counts on the wires of any layout of several groups is never
// less than what the floor of ports takes to pass.
func TestPortsCarryNoLess(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(41, 1))
	near, crossed := 0, 0
	for range 60 {
		p := world.Random(t, r)
		p = world.ProblemOf(t, p.Profile, varied(r, p.Job))
		f := &floors{profile: p.Profile, predictor: p.Predictor, job: p.Job, size: len(p.Ranks)}
		micro, again := float64(max(1, p.Job.Accumulate)), 0.0
		if p.Job.Recompute == costmodel.RecomputeFull {
			again = 1
		}
		times := float64(p.Job.Model.Layers) * micro
		for range 20 {
			l := world.RandomGrouped(r, p)
			if len(l.Groups) < 2 {
				continue
			}
			l.KeepTail = r.IntN(2) == 0
			b := f.borderOf(1, 1)
			x := ports{tokens: b.tokens, ranks: float64(len(p.Ranks)), kvShare: b.kvShare, wide: b.wide, row: b.perRow, hop: b.perHop}
			total := func(q passes) float64 { return x.ranks * times * ((1+again)*q.forward + q.backward) }
			x.mostOfRank, x.mostOfNode = tokensOf(p, l)
			far, all := sent(t, p, l)
			if least := x.least(total); least > all*(1+1e-9) {
				t.Fatalf("%+v on %s carries %v bytes, the floor is %v", l, p.Job.Cluster, all, least)
			} else if least > all/2 {
				near++
			}
			x.row, x.hop, x.farRow, x.farHop = 0, 0, b.perRow, b.perHop
			if least := x.least(total); least > far*(1+1e-9) {
				t.Fatalf("%+v on %s carries %v bytes between nodes, the floor is %v", l, p.Job.Cluster, far, least)
			} else if least > far/4 && far > 0 {
				crossed++
			}
		}
	}
	if near < 40 || crossed < 80 {
		t.Errorf("only %d layouts carry less than twice the floor, %d between nodes four times", near, crossed)
	}
}

// Where gradients and parameters keep the ports busy for a whole layer, what groups
// pass to each other comes on top.
func TestBoundKnowsPortsAreShared(t *testing.T) {
	job := world.Job(t, "1x4 fast", 1<<14)
	job.Zero, job.OverlapZero, job.Model.Layers, job.Model.KVHeads = costmodel.Zero3, true, 32, 8
	d := world.Fast()
	d.FLOPS *= 3
	p := world.ProblemOf(t, world.Profile([]world.Device{d}, []world.Wire{world.Link("near", 0, 1e-9), world.Link("far", 0, 1e-9)}), job)
	f, err := newFloors(p.Profile, p.Predictor, p.Job)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range f.scopes() {
		if s.size() < 4 {
			continue
		}
		s.fewest, s.most = 4, 4
		bound := f.ofRing(s, math.Inf(1))
		best := min(world.Seconds(t, p, baseline.EqualShares(p, [][]int{{0, 1}, {2, 3}})), world.Seconds(t, p, baseline.EqualShares(p, [][]int{{0}, {1}, {2}, {3}})))
		x := f.exchange(s)
		alone := x.open + float64(job.Model.Layers-1)*(x.forward+x.backward)
		if bound > float64(best) || bound < 1.2*alone {
			t.Errorf("bound %v, the exchange alone takes %v, equal groups %v", bound, alone, best)
		}
	}
}

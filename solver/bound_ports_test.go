package solver

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// sent is the bytes that the simulator counts of a layout's all-to-alls and rings,
// between nodes and in all.
func sent(t *testing.T, p *Problem, l costmodel.Layout) (far, all float64) {
	t.Helper()
	step, err := p.sim.Step(l, costmodel.SimOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nodes, n := map[int]bool{}, 0
	for _, g := range l.Groups {
		for _, m := range g {
			nodes[p.ranks[m.Rank].Node] = true
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
func tokensOf(p *Problem, l costmodel.Layout) (rank, node float64) {
	nodes := map[int]units.Tokens{}
	for r, n := range l.Tokens() {
		nodes[p.ranks[r].Node] += n
		rank = max(rank, float64(n))
		node = max(node, float64(nodes[p.ranks[r].Node]))
	}
	return rank, node
}

// What the simulator counts on the wires of any layout of several groups is never
// less than what the floor of ports takes to pass.
func TestPortsCarryNoLess(t *testing.T) {
	sequential(t)
	r := rand.New(rand.NewPCG(41, 1))
	near, crossed := 0, 0
	for range 60 {
		p := randomWorld(t, r)
		p = problemOf(t, p.Profile, varied(r, p.Job))
		f := &floors{profile: p.Profile, predictor: p.Predictor, job: p.Job, size: len(p.ranks)}
		micro, again := float64(max(1, p.Job.Accumulate)), 0.0
		if p.Job.Recompute == costmodel.RecomputeFull {
			again = 1
		}
		times := float64(p.Job.Model.Layers) * micro
		for range 20 {
			l := randomGrouped(r, p)
			if len(l.Groups) < 2 {
				continue
			}
			l.KeepTail = r.IntN(2) == 0
			b := f.borderOf(1, 1)
			x := ports{tokens: b.tokens, ranks: float64(len(p.ranks)), kvShare: b.kvShare, wide: b.wide, row: b.perRow, hop: b.perHop}
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
	job := testJob(t, "1x4 fast", 1<<14)
	job.Zero, job.OverlapZero, job.Model.Layers, job.Model.KVHeads = costmodel.Zero3, true, 32, 8
	d := fast()
	d.flops *= 3
	p := problemOf(t, testProfile([]device{d}, []wire{{"near", 0, 1e-9}, {"far", 0, 1e-9}}), job)
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
		best := min(secondsOf(t, p, equalShares(p, [][]int{{0, 1}, {2, 3}})), secondsOf(t, p, equalShares(p, [][]int{{0}, {1}, {2}, {3}})))
		x := f.exchange(s)
		alone := x.open + float64(job.Model.Layers-1)*(x.forward+x.backward)
		if bound > float64(best) || bound < 1.2*alone {
			t.Errorf("bound %v, the exchange alone takes %v, equal groups %v", bound, alone, best)
		}
	}
}

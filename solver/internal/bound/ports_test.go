package bound

import (
	"math"
	"math/rand/v2"
	"slices"
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
		if len(nodes) > 1 { // of a ring of n hops one leaves every node; bytes that do not divide by n count there
			far -= b * float64(len(nodes)) / float64(n)
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
			x := ports{tokens: b.tokens, ranks: float64(len(p.Ranks)), cards: float64(len(p.Ranks)), kvShare: b.kvShare, wide: b.wide, row: b.perRow, hop: b.perHop}
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

// queriesOf are the queries of each head that stay with the unit of ranks that has the most of
// them, summed over heads, and the most pairs that a unit computes.
func queriesOf(p *strategy.Problem, l costmodel.Layout, unit func(rank int) int) (stay, pairs float64) {
	work := map[int]float64{}
	of := make([]map[int]float64, p.Job.Model.QHeads)
	for j := range of {
		of[j] = map[int]float64{}
	}
	for g, members := range l.Groups {
		own, seen := map[int]float64{}, 0.0
		for _, m := range members {
			own[unit(m.Rank)] += float64(l.Shards[m.Rank].Tokens())
		}
		for _, x := range l.GroupShard(g).Segments {
			seen += float64(x.Len()) * float64(x.Start+x.End+1) / 2
		}
		first := 0
		for _, m := range members {
			u := unit(m.Rank)
			work[u] += seen * float64(m.QHeads)
			for j := first; j < first+m.QHeads; j++ {
				of[j][u] += own[u]
			}
			first += m.QHeads
		}
	}
	for j := range of {
		most := 0.0
		for _, n := range of[j] {
			most = max(most, n)
		}
		stay += most
	}
	for _, n := range work {
		pairs = max(pairs, n)
	}
	return stay, pairs
}

// No layout lets more queries stay than its pairs allow, with ranks or with nodes, and some
// come near that.
func TestQueriesThatStayHavePairs(t *testing.T) {
	r := rand.New(rand.NewPCG(42, 1))
	near := 0
	for range 40 {
		p := world.Random(t, r)
		x := ports{tokens: float64(p.Job.SeqLen), heads: float64(p.Job.Model.QHeads)}
		for range 20 {
			l := world.RandomGrouped(r, p)
			if r.IntN(2) == 0 {
				l = inStretches(r, p)
			}
			for _, unit := range []func(int) int{func(rank int) int { return rank }, func(rank int) int { return p.Ranks[rank].Node }} {
				stay, pairs := queriesOf(p, l, unit)
				most := x.stays(pairs)
				if stay /= x.heads; stay > most*(1+1e-9) {
					t.Fatalf("%+v on %s: %v queries of a head stay, by %v pairs no more than %v", l, p.Job.Cluster, stay, pairs, most)
				} else if stay > most/1.5 {
					near++
				}
			}
		}
	}
	if near < 100 {
		t.Errorf("only %d layouts come near", near)
	}
}

// fewCards is a problem of nodes with so many network cards each, whose exchange hides behind
// layers.
func fewCards(t *testing.T, p *strategy.Problem, cards int) *strategy.Problem {
	t.Helper()
	return world.Changed(t, p, func(j *costmodel.Job) {
		j.Zero, j.OverlapZero = costmodel.Zero3, true
		j.Cluster.Nodes = slices.Clone(j.Cluster.Nodes)
		for i := range j.Cluster.Nodes {
			j.Cluster.Nodes[i].NICs = min(cards, j.Cluster.Nodes[i].Size())
		}
	})
}

// No layout of several groups beats their floor where ranks share cards and the network is
// slow.
func TestRingFloorHoldsOverSharedCards(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(43, 1))
	held := 0
	for _, cluster := range []string{"2x2 fast", "3x2 fast", "2x(2 fast + 1 slow)", "1x3 fast + 2x2 slow", "4x2 fast"} {
		for range 6 {
			profile := world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Link("far", 0, math.Exp(-21+4*r.Float64()))})
			p := fewCards(t, world.ProblemOf(t, profile, varied(r, world.Job(t, cluster, units.Tokens(512<<r.IntN(5))))), 1+r.IntN(2))
			floor := map[int]float64{} // by ranks, less than none for micro-batches in twos
			for range 12 {
				l := []costmodel.Layout{world.RandomGrouped(r, p), twoGroups(r, p), inStretches(r, p)}[r.IntN(3)]
				n := 0
				for _, g := range l.Groups {
					n += len(g)
				}
				if len(l.Groups) < 2 || !fitsAll(p, l) {
					continue
				}
				l.OwnLast, l.KeepTail = r.IntN(2) == 0, r.IntN(2) == 0
				l.TwoBatch = p.Job.Accumulate > 1 && r.IntN(2) == 0
				key := n
				if l.TwoBatch {
					key = -n
					l.WeaveForward, l.WeaveBackward = r.IntN(2) == 0, r.IntN(2) == 0
				}
				if _, ok := floor[key]; !ok {
					floor[key] = ringFloor(t, p, n, l.TwoBatch)
				}
				held++
				if took := float64(world.Seconds(t, p, l)); fitsAll(p, l) && floor[key] > took*(1+1e-9) {
					t.Fatalf("floor %v above %v of %+v on %s, %+v", floor[key], took, l, p.Job.Cluster, p.Job)
				}
			}
		}
	}
	if held < 200 {
		t.Errorf("%d layouts: the test says little", held)
	}
}

// ringFloor is the floor of layouts of several groups of so many ranks.
func ringFloor(t *testing.T, p *strategy.Problem, ranks int, twoBatch bool) float64 {
	t.Helper()
	f, err := newFloors(p.Profile, p.Predictor, p.Job)
	if err != nil {
		t.Fatal(err)
	}
	f.twoBatch = twoBatch
	least := math.Inf(1)
	for _, s := range f.scopes() {
		if s.least > 1 && s.least <= ranks && ranks <= s.size() {
			s.fewest, s.most = ranks, ranks
			least = min(least, f.ofRing(s, math.Inf(1)))
		}
	}
	return least
}

// Eight nodes whose eight ranks share a card take longer than with a card each, by 16.6 %
// at least for any layout of several groups.
func TestRingFloorKnowsCardsAreShared(t *testing.T) {
	d := world.Fast()
	d.FLOPS, d.Bytes = 3*d.FLOPS, 3*d.Bytes
	job := world.Job(t, "8x8 fast", 1<<16)
	job.Model.QHeads, job.Model.KVHeads, job.Model.Hidden, job.Model.FFN = 32, 32, 32*64, 64
	p := world.ProblemOf(t, world.Profile([]world.Device{d}, []world.Wire{world.Near(), world.Link("far", 0, 8e-10)}), job)
	own, shared := ringFloor(t, fewCards(t, p, 8), 64, false), ringFloor(t, fewCards(t, p, 1), 64, false)
	if shared < 1.15*own {
		t.Errorf("with a card each %v, with one a node %v", own, shared)
	}
}

// Rows inside a node and those between nodes move at once, so that a byte of a group on two
// nodes is worth two ports side by side: over links of one rate half of what it takes either.
func TestAllToAllsOfTwoNodesHaveTwoPorts(t *testing.T) {
	const rate = 1e-9
	far := world.Link("far", 0, 3*rate)
	p := world.ProblemOf(t, world.Profile([]world.Device{world.Fast()}, []world.Wire{world.Link("near", 0, rate), far}), world.Job(t, "2x4 fast", 1<<14))
	f, err := newFloors(p.Profile, p.Predictor, p.Job)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		kind op.Kind
		node int
		want float64
	}{{op.KindAllToAll, -1, rate * 3 / 4}, {op.KindAllToAll, 0, rate}, {op.KindSendRecv, -1, rate}} {
		if got := f.perByte(x.kind, scope{counts: f.ranks, node: x.node}); math.Abs(got/x.want-1) > 1e-6 {
			t.Errorf("%s on node %d: %g seconds a byte, want %g", x.kind, x.node, got, x.want)
		}
	}
}

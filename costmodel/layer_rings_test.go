package costmodel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// longPlan is a plan of n groups of so many members with as many heads each, on
// nodes of eight: with equal tokens or not, nested in the order of the groups or
// in another, in one piece each or in many.
func longPlan(rng *rand.Rand, n, members int) plan {
	c := Cluster{Network: "net"}
	for i := 0; i*8 < n*members; i++ {
		fast := 1 + rng.IntN(7)
		c.Nodes = append(c.Nodes, Node{
			Name: fmt.Sprint("n", i), Link: "bus", NICs: rng.IntN(9),
			Devices: []op.Member{{Device: "fast", Count: fast}, {Device: "slow", Count: 8 - fast}},
		})
	}
	j := Job{
		Model: smallModel(), Cluster: c, DType: op.F32, Recompute: []Recompute{RecomputeNone, RecomputeFull}[rng.IntN(2)],
		RingBuffers: 2 + rng.IntN(5), LossChunk: 4096, OverlapZero: rng.IntN(2) == 0,
	}
	j.Model.QHeads, j.Model.KVHeads, j.Model.Layers = 12, 4, 2
	if rng.IntN(5) == 0 {
		j.RingBuffers = n + rng.IntN(3)
	}
	tokens, groups, alike := make([]units.Tokens, len(c.Ranks())), make([]Group, n), rng.IntN(2) == 0
	for r := range n * members {
		if tokens[r] = units.Tokens(1 + rng.IntN(900)); alike {
			tokens[r] = 256
		}
		groups[r/members] = append(groups[r/members], HeadShare{r, 12 / members})
	}
	j.SeqLen = sumTokens(tokens)
	return plan{j, longLayout(rng, tokens, groups)}
}

func longLayout(rng *rand.Rand, tokens []units.Tokens, groups []Group) Layout {
	switch rng.IntN(5) {
	case 0:
		return Contiguous(tokens, groups)
	case 1:
		return scattered(rng, tokens, groups)
	case 2: // nested in another order than the ring's
		order := slices.Clone(groups)
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		l := ZigZag(tokens, order)
		l.Groups = groups
		return l
	}
	return ZigZag(tokens, groups)
}

func longSim(t *testing.T, p *Profile, x plan, timeOnly bool) *sim {
	t.Helper()
	s, err := newSim(NewPredictor(p), x.job)
	if err != nil {
		t.Fatal(err)
	}
	s.timeOnly, s.lengthOnly = timeOnly, timeOnly
	if err := s.run(x.layout, SimOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// unlikeHeads shares the heads of every group anew, so that members pass on to several.
func unlikeHeads(rng *rand.Rand, l *Layout) {
	for _, g := range l.Groups {
		left := 0
		for i := range g {
			left, g[i].QHeads = left+g[i].QHeads-1, 1
		}
		for ; left > 0; left-- {
			g[rng.IntN(len(g))].QHeads++
		}
	}
}

// TestRingsAgainstAccount: the quick simulation of rings does the same sums as that
// which books what the ranks do, so it comes to the same bits; but for the ports' sums,
// whose order differs.
func TestRingsAgainstAccount(t *testing.T) {
	quick := map[string]int{}
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 70))
		members := 1 + rng.IntN(3)
		p, x := world(t, rng, faster{}), longPlan(rng, 1+rng.IntN(90/members), members)
		if seed%2 == 1 { // few ranks in groups of any sizes
			x, members = randomPlan(rng), 2
			x.layout.HeadChunks = 0
		}
		if seed%3 == 2 {
			x = inTwos(rng, x)
		}
		unlike := seed%2 == 0 && seed%5 < 2
		if unlike {
			unlikeHeads(rng, &x.layout)
		}
		x.layout.OwnLast = len(x.layout.Groups) > 1 && rng.IntN(2) == 0
		got, want := longSim(t, p, x, true), longSim(t, p, x, false)
		if got.goesRound() && len(got.groups) > 1 {
			quick[fmt.Sprintf("own last %t, unlike %t, in twos %t, in turn %t", x.layout.OwnLast, unlike && members > 1, x.layout.TwoBatch, x.layout.WeaveForward && x.layout.WeaveBackward)]++
		}
		for n, round := range got.rounds() {
			for dir := range round.layers {
				a, b := &round.layers[dir], &want.rounds()[n].layers[dir]
				if a.length != b.length {
					t.Fatalf("seed %d, round %d, pass %d: %v, account %v", seed, n, dir, float64(a.length), float64(b.length))
				}
				for i := range a.seats {
					y, z := a.seats[i], b.seats[i]
					if y.free != z.free || y.egress != z.egress || y.ingress != z.ingress || !near(y.port, z.port, 1e-12) {
						t.Fatalf("seed %d, round %d, pass %d, seat %d: %+v, account %+v", seed, n, dir, i, y, z)
					}
				}
			}
		}
		if !near(got.length(), want.length(), 1e-12) {
			t.Fatalf("seed %d: step %v, account %v", seed, float64(got.length()), float64(want.length()))
		}
	}
	if len(quick) != 12 {
		t.Errorf("of plans of these kinds only were some simulated the quick way: %v", quick)
	}
}

// TestLateGradientsTakeTheLongWay: all blocks go all the way round here, but the second
// group ends before the first one's tokens begin, so that the first one's gradients
// begin at the third.
func TestLateGradientsTakeTheLongWay(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 71))
	p, x := world(t, rng, faster{}), longPlan(rng, 3, 1)
	x.job.SeqLen = 800
	at := func(cuts ...units.Tokens) Shard {
		var s Shard
		for i := 0; i < len(cuts); i += 2 {
			s.Segments = append(s.Segments, Segment{cuts[i], cuts[i+1]})
		}
		return s
	}
	for g, shard := range []Shard{at(400, 700), at(100, 300), at(0, 100, 300, 400, 700, 800)} {
		x.layout.Shards[x.layout.Groups[g][0].Rank] = shard
	}
	if got := x.layout.Reaches(); !slices.Equal(got, []int{2, 2, 2}) {
		t.Fatalf("blocks reach %v", got)
	}
	quick, long := longSim(t, p, x, true), longSim(t, p, x, false)
	if quick.goesRound() {
		t.Error("taken for blocks that go all the way round")
	}
	if quick.length() != long.length() {
		t.Errorf("%v, account %v", float64(quick.length()), float64(long.length()))
	}
}

// TestStripsAgainstLaws: what a step takes from its strip is what the laws say
// of that pair of shards, whatever prices are in the tables already.
func TestStripsAgainstLaws(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 72))
		members := 1 + rng.IntN(3)
		p, x := world(t, rng, faster{}), longPlan(rng, 1+rng.IntN(80/members), members)
		s := longSim(t, p, x, true)
		for dir := range s.layers {
			r := &s.layers[dir]
			r.reset(s, dir == 1, false)
			for g := range s.groups {
				r.enter(g)
			}
			for u := range r.n {
				for i, got := range r.step(u) {
					a := &s.seats[i]
					want := s.attentionCost(dir == 1, a, &s.groups[r.source(a.group, u)], nil)
					if u < r.n-1 {
						want = r.beside[i].stretch(want)
					}
					if got != want {
						t.Fatalf("seed %d, pass %d, step %d, seat %d: %v, by the laws %v", seed, dir, u, i, float64(got), float64(want))
					}
				}
			}
		}
	}
}

// TestLongRingAgainstSlowReference is TestStepAgainstSlowReference for rings
// that are longer than a strip.
func TestLongRingAgainstSlowReference(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 73))
		members := 1 + int(seed%2)
		p, x := world(t, rng, faster{}), longPlan(rng, 33+rng.IntN(8), members)
		s, err := NewSimulator(NewPredictor(p), x.job)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Time(x.layout)
		if err != nil {
			t.Fatal(err)
		}
		if want := units.Seconds(newSlowSim(t, p, x).step()); !near(got, want, 1e-9) {
			t.Errorf("seed %d: %v, reference %v", seed, float64(got), float64(want))
		}
	}
}

// TestPriceTable: a price, be it nothing, is kept where it was put and nowhere else.
func TestPriceTable(t *testing.T) {
	var table priceTable
	want := map[[2]int]units.Seconds{}
	rng := rand.New(rand.NewPCG(1, 74))
	for range 300 {
		at := [2]int{rng.IntN(100), rng.IntN(200)}
		want[at] = units.Seconds(max(0, rng.Float64()-0.1))
		table.set(at[0], at[1], want[at])
	}
	for row := range 120 {
		for column := range 240 {
			got, kept := table.get(row, column), false
			if _, kept = want[[2]int{row, column}]; kept != !unknown(got) {
				t.Fatalf("row %d, column %d: %v, kept %v", row, column, float64(got), kept)
			}
			if kept && got != want[[2]int{row, column}] {
				t.Fatalf("row %d, column %d: %v, want %v", row, column, float64(got), float64(want[[2]int{row, column}]))
			}
		}
	}
}

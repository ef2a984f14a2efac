package costmodel

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// alikePlan is a plan whose groups have members at the same places that are alike: of nodes
// that are alike, in the order of the ranks or in another, with as many heads in each group.
func alikePlan(rng *rand.Rand) plan {
	members := []int{1, 2, 4}[rng.IntN(3)]
	x := longPlan(rng, 2+rng.IntN(12), members)
	fast := 1 + rng.IntN(8)
	for i := range x.job.Cluster.Nodes {
		n := &x.job.Cluster.Nodes[i]
		n.NICs, n.Devices = x.job.Cluster.Nodes[0].NICs, []op.Member{{Device: "fast", Count: fast}, {Device: "slow", Count: 8 - fast}}[:1+min(1, 8-fast)]
	}
	heads := [][]int{{12}, {6, 6}, {3, 3, 3, 3}}[members/2]
	if rng.IntN(3) == 0 {
		heads = [][]int{{12}, {4, 8}, {1, 2, 6, 3}}[members/2]
	}
	tokens, scattered, n := make([]units.Tokens, len(x.job.Cluster.Ranks())), rng.IntN(3) == 0, len(x.layout.Groups)
	for g, group := range x.layout.Groups {
		for p := range group {
			group[p].QHeads = heads[p]
			if scattered {
				group[p].Rank = p*n + g
			}
			tokens[group[p].Rank] = units.Tokens(100 + 50*(p%2) + g%3)
		}
	}
	if rng.IntN(4) == 0 {
		x.layout.Groups[0][0].Rank, x.layout.Groups[1][0].Rank = x.layout.Groups[1][0].Rank, x.layout.Groups[0][0].Rank
	}
	if rng.IntN(8) == 0 && members > 1 { // groups of two sizes
		a, b := &x.layout.Groups[rng.IntN(n)], []HeadShare(nil)
		*a, b = (*a)[:members-1], (*a)[members-1:]
		(*a)[0].QHeads += b[0].QHeads
		tokens[b[0].Rank] = 0
	}
	x.job.SeqLen = sumTokens(tokens)
	x.layout = longLayout(rng, tokens, x.layout.Groups)
	if rng.IntN(8) == 0 {
		unlikeHeads(rng, &x.layout)
	}
	return x
}

// One member of a group may stand for others: what comes of it is the same to the last bit,
// in the account and without.
func TestFoldedRingsAreTheWholeOnes(t *testing.T) {
	halved, quartered := 0, 0
	for seed := range uint64(600) {
		rng := rand.New(rand.NewPCG(seed, 71))
		p, x := world(t, rng, faster{}), alikePlan(rng)
		x.layout.OwnLast = rng.IntN(2) == 0
		for _, timeOnly := range []bool{false, true} {
			var runs [2]*sim
			for i, from := range []int{2, 1 << 20} {
				s, err := newSim(NewPredictor(p), x.job)
				if err != nil {
					t.Fatal(err)
				}
				s.timeOnly, s.lengthOnly, s.foldFrom, s.contended = timeOnly, timeOnly, from, seed%5 == 0
				if err := s.run(x.layout, SimOptions{Timeline: seed%7 == 0 && !timeOnly}); err != nil {
					t.Fatal(err)
				}
				runs[i] = s
			}
			got, want := runs[0], runs[1]
			for dir := range got.layers {
				if a, b := &got.layers[dir], &want.layers[dir]; a.length != b.length || !reflect.DeepEqual(a.seats, b.seats) || !reflect.DeepEqual(a.outside, b.outside) {
					t.Fatalf("seed %d, pass %d, quick %t: %v, whole %v", seed, dir, timeOnly, a.seats, b.seats)
				}
			}
			if a, b := got.length(), want.length(); a != b || len(got.spans) != len(want.spans) {
				t.Fatalf("seed %d: %v, %d tasks, whole %v, %d", seed, a, len(got.spans), b, len(want.spans))
			}
			// The same simulator simulates the same again.
			if err := got.run(x.layout, SimOptions{}); err != nil || got.length() != want.length() {
				t.Fatalf("seed %d: again %v, whole %v: %v", seed, got.length(), want.length(), err)
			}
		}
		switch kept := keptOf(t, p, x); {
		case kept*4 <= len(x.layout.Groups[0]):
			quartered++
		case kept*2 <= len(x.layout.Groups[0]):
			halved++
		}
	}
	t.Logf("of 600 plans %d are folded to the half, %d to a quarter", halved, quartered)
	if halved < 20 || quartered < 10 {
		t.Errorf("of 600 plans %d are folded to the half, %d to a quarter", halved, quartered)
	}
}

// keptOf is how many members of a group are simulated in the forward pass.
func keptOf(t *testing.T, p *Profile, x plan) int {
	t.Helper()
	s := longSim(t, p, x, true)
	s.foldFrom = 2
	r := &s.layers[0]
	r.reset(s, false, false)
	for g := range s.groups {
		r.enter(g)
	}
	if f := r.folding(); f != nil {
		return len(f.of) / r.n
	}
	return len(x.layout.Groups[0])
}

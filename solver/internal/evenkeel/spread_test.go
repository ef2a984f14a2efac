package evenkeel

import (
	"math"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// oneCard is a problem of GPUs whose nodes have a single network card each.
func oneCard(t testing.TB, cluster string, kvHeads int, seq units.Tokens) *strategy.Problem {
	t.Helper()
	profile, job := world.GPUJob(t, cluster, seq)
	for i := range job.Cluster.Nodes {
		job.Cluster.Nodes[i].NICs = 1
	}
	// As many heads as do not divide among the ranks, in few layers.
	job.Model.QHeads, job.Model.KVHeads, job.Model.Hidden = 40, kvHeads, 5120
	job.Accumulate = 2
	return world.ProblemOf(t, profile, job)
}

// Groups over several nodes get as large a share of tokens as of heads on each of them,
// all heads in all, even ones where paces do not count, and those that share keys and
// values together while these are enough for all nodes.
func TestSpreadSharesAreEvenByNode(t *testing.T) {
	p := oneCard(t, "1x4 h100_sxm + 3x4 a100_sxm", 8, 32<<10)
	e, err := newEstimator(p)
	if err != nil {
		t.Fatal(err)
	}
	m := p.Job.Model
	together := m.QHeads / m.KVHeads
	for _, groups := range [][][]int{
		{countTo(16)},
		{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}},
		{{12, 0, 13, 4, 1}},             // nodes in no order
		{{0, 1, 2, 3}, {4, 5, 8, 9, 6}}, // one of them on a node
	} {
		for _, power := range spreads() {
			d := e.draft(groups)
			e.setShares(d, len(groups), 1, false)
			before := d.clone()
			e.spreadShares(d, len(groups), power)
			for i := range d.kinds {
				k := &d.kinds[i]
				if !e.overNodes(*k) {
					if &k.heads[0] != &before.kinds[i].heads[0] {
						t.Errorf("%v: a group on one node has other heads", groups)
					}
					continue
				}
				heads, tokens, all, sum := map[int]int{}, map[int]float64{}, 0, 0.0
				for x, r := range k.groups[0] {
					node := p.Ranks[r].Node
					heads[node] += k.heads[x]
					tokens[node] += k.weight[x]
					all, sum = all+k.heads[x], sum+k.weight[x]
				}
				if all != m.QHeads || math.Abs(sum-1) > 1e-9 {
					t.Errorf("%v, power %v: %d heads and %v of the tokens", groups, power, all, sum)
				}
				for node, h := range heads {
					if math.Abs(tokens[node]-float64(h)/float64(m.QHeads)) > 1e-9 {
						t.Errorf("%v, power %v: node %d has %d heads and %v of the tokens", groups, power, node, h, tokens[node])
					}
					if h%together != 0 {
						t.Errorf("%v, power %v: node %d has %d heads, of which %d share keys and values", groups, power, node, h, together)
					}
					if even := float64(m.QHeads) / float64(len(heads)); power == 0 && math.Abs(float64(h)-even) > float64(together) {
						t.Errorf("%v: node %d has %d heads, evenly it is %v", groups, node, h, even)
					}
				}
				if power == 1 && len(heads) == 4 && heads[0] <= heads[1] {
					t.Errorf("%v: by their paces H100 have %d heads and A100 %d", groups, heads[0], heads[1])
				}
			}
		}
	}
}

// On top of what the search comes to, shares that are even by node gain where nodes share
// a card.
func TestFurtherLayoutsGain(t *testing.T) {
	world.Sequential(t)
	for _, tc := range []struct {
		cluster string
		seq     units.Tokens
	}{
		{"4x8 h100_sxm + 2x4 a100_sxm", 64 << 10},
		{"4x4 h100_sxm + 4x2 a100_sxm", 32 << 10},
	} {
		p := oneCard(t, tc.cluster, 40, tc.seq)
		s := searchOf(t, p)
		var twos float64
		s.budget, twos = s.parts()
		s.inTwos(s.run(), twos)
		before := s.Time()
		s.further(twos > 0, 1)
		if s.Err() != nil {
			t.Fatal(s.Err())
		}
		if s.Time() > before*0.995 {
			t.Errorf("%s, %d tokens: %v, and %v before", tc.cluster, int64(tc.seq), s.Time(), before)
		}
	}
}

// Further pools are those of a device type that comes in several kinds of nodes, and of
// the larger nodes, and none that there was.
func TestFurtherPools(t *testing.T) {
	p := oneCard(t, "1x8 h100_sxm + 1x4 h100_sxm + 1x4 a100_sxm + 1x2 a100_sxm + 1x1 a100_sxm + 1x1 rtx_pro_6000_server", 40, 32<<10)
	e, err := newEstimator(p)
	if err != nil {
		t.Fatal(err)
	}
	known := e.pools()
	further := e.furtherPools(known)
	of := func(pools []pool, ranks []int) bool {
		return slices.ContainsFunc(pools, func(p pool) bool { return slices.Equal(p.ranks, ranks) })
	}
	for _, want := range [][]int{countTo(12), countTo(16), countTo(19)[12:], countTo(18)} { // H100; 4 or more a node; A100; 2 or more
		if !of(further, want) || of(known, want) {
			t.Errorf("%v: among further pools %v, among the first %v", want, of(further, want), of(known, want))
		}
	}
	for _, x := range further {
		if of(known, x.ranks) {
			t.Errorf("%v is there twice", x.ranks)
		}
	}
}

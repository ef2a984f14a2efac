package costmodel

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// A simulator that has just had another layout of the same groups, of which it keeps the
// seats, says of a layout to the bit what a fresh one does: whichever of them needs whose
// keys, with or without a tail that stays at home, heads in chunks, and cards that ranks share.
func TestSeatsAreTakenAgain(t *testing.T) {
	again, total := 0, 0
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 81))
		p := world(t, rng, faster{})
		tokens := make([]units.Tokens, 8)
		for r := range tokens {
			tokens[r] = units.Tokens(16 * (1 + rng.IntN(8)))
		}
		j := testJob(cluster(t, "2x(2 fast + 2 slow)", p, "bus", "net"), tokens)
		for i := range j.Cluster.Nodes {
			j.Cluster.Nodes[i].NICs = int(seed % 3)
		}
		s, err := NewSimulator(NewPredictor(p), j)
		if err != nil {
			t.Fatal(err)
		}
		sets := [][]Group{
			{{{0, 2}, {1, 2}}, {{2, 3}, {3, 1}}, {{4, 1}, {5, 3}}, {{6, 2}, {7, 2}}},
			{{{0, 1}, {4, 3}}, {{2, 3}, {6, 1}}, {{1, 1}, {3, 1}, {5, 1}, {7, 1}}},
			{{{0, 2}, {1, 2}}, {{2, 4}}}, // of one node
			{{{0, 1}, {1, 0}, {2, 1}, {3, 0}, {4, 1}, {5, 0}, {6, 1}, {7, 0}}},
		}
		var groups []Group
		for range 60 {
			if groups == nil || rng.IntN(5) == 0 {
				groups = sets[rng.IntN(len(sets))]
			}
			if total++; s.fast.seated.of(groups) {
				again++
			}
			l := anyOrder(rng, tokens, groups)
			fresh, err := NewSimulator(NewPredictor(p), j)
			if err != nil {
				t.Fatal(err)
			}
			for name, of := range map[string]func(*Simulator) (units.Seconds, error){
				"time": func(s *Simulator) (units.Seconds, error) { return s.Time(l) },
				"contention": func(s *Simulator) (units.Seconds, error) {
					b, err := s.Brief(l)
					if err != nil {
						return 0, err
					}
					return b.Contention, nil
				},
			} {
				got, err := of(s)
				want, none := of(fresh)
				if err != nil || none != nil || got != want {
					t.Fatalf("seed %d, %+v: %s %v, afresh %v: %v, %v", seed, l.Schedule, name, float64(got), float64(want), err, none)
				}
			}
		}
	}
	if again < total/2 {
		t.Errorf("seats were taken again %d times of %d", again, total)
	}
}

// anyOrder deals the tokens anew, to the ranks that have a group, and lays the groups along the sequence in one of several ways.
func anyOrder(rng *rand.Rand, tokens []units.Tokens, groups []Group) Layout {
	tokens = slices.Clone(tokens)
	rng.Shuffle(len(tokens), func(i, k int) { tokens[i], tokens[k] = tokens[k], tokens[i] })
	works := make([]bool, len(tokens))
	for _, m := range slices.Concat(groups...) {
		works[m.Rank] = true
	}
	for r := range tokens {
		if !works[r] {
			tokens[groups[0][0].Rank] += tokens[r]
			tokens[r] = 0
		}
	}
	l := ZigZag(tokens, groups)
	switch rng.IntN(3) {
	case 0:
		l = Contiguous(tokens, groups)
	case 1:
		tiers := make([]int, len(groups))
		tiers[rng.IntN(len(tiers))] = 1
		l = ZigZagTiers(tokens, groups, tiers)
	}
	if len(groups) == 1 {
		l.HeadChunks = rng.IntN(2) * 2
		return l
	}
	l.KeepTail, l.OwnLast = rng.IntN(2) == 0, rng.IntN(2) == 0
	return l
}

package evenkeel

import (
	"math/rand/v2"
	"testing"
)

// optionsOf makes options of so many groups, with random estimates.
func optionsOf(r *rand.Rand, groups ...int) []option {
	var all []option
	for _, n := range groups {
		t := 1 + r.Float64()
		all = append(all, option{d: &draft{ring: make([]slot, n)}, t: t, rank: t * (1 + r.Float64()*float64(r.IntN(2)))})
	}
	return all
}

// Every option has its turn, once.
func TestLineupHasAllOptionsOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 1))
	for range 50 {
		var groups []int
		for range 1 + r.IntN(60) {
			groups = append(groups, 1+r.IntN(40))
		}
		all := optionsOf(r, groups...)
		line, seen := newBestFirst(all), map[*draft]bool{}
		for c, _ := line.next(); c != nil; c, _ = line.next() {
			if seen[c.d] {
				t.Fatal("an option came twice")
			}
			seen[c.d] = true
			line.learn(c, c.rank*(0.5+2*r.Float64()))
		}
		if len(seen) != len(all) {
			t.Fatalf("%d of %d options came", len(seen), len(all))
		}
	}
}

// Each number of groups has a first turn; one whose simulations take twice as
// long as estimated waits from then on, though its estimates are the best.
func TestLineupLearnsFromSimulations(t *testing.T) {
	var all []option
	for i := range 40 {
		late := 1 + 0.001*float64(i)
		all = append(all, option{d: &draft{ring: make([]slot, 5)}, t: late, rank: late})
		late += 0.1
		all = append(all, option{d: &draft{ring: make([]slot, 2)}, t: late, rank: late})
	}
	line, first := newBestFirst(all), map[int]int{}
	for range 30 {
		c, _ := line.next()
		n := len(c.d.ring)
		first[n]++
		line.learn(c, c.rank*map[int]float64{5: 2, 2: 1}[n])
	}
	if first[5] == 0 || first[5] > 3 || first[2] < 27 {
		t.Errorf("turns by number of groups: %v", first)
	}
}

package groupcost_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/groupcost"
)

// everyDeal is groupcost.DealHeads by trying every way, the first of the best.
func everyDeal(heads int, uses []int, slow []float64) []int {
	best, least := []int(nil), math.Inf(1)
	var deal func(pool, left int, heads []int, worst float64)
	deal = func(pool, left int, heads []int, worst float64) {
		if pool == len(uses) {
			if left == 0 && worst < least {
				best, least = slices.Clone(heads), worst
			}
			return
		}
		if uses[pool] == 0 {
			deal(pool+1, left, append(heads, 0), worst)
			return
		}
		for h := 1; h*uses[pool] <= left; h++ {
			deal(pool+1, left-h*uses[pool], append(heads, h), max(worst, float64(h)*slow[pool]))
		}
	}
	deal(0, heads, nil, 0)
	return best
}

// Heads are dealt as by trying every way, ties included: times a head are one of four, or
// any.
func TestHeadsAreDealtAsByTryingAll(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	const cases = 20000
	none := 0
	for range cases {
		heads := 1 + r.IntN(40)
		uses, slow := make([]int, 1+r.IntN(5)), []float64{}
		ties := r.IntN(2) == 0
		for p := range uses {
			uses[p] = r.IntN(5)
			if slow = append(slow, 1e-6*float64(1+r.IntN(4))); !ties {
				slow[p] = 1e-6 * math.Exp(r.NormFloat64())
			}
		}
		got, want := groupcost.DealHeads(heads, uses, slow), everyDeal(heads, uses, slow)
		if !slices.Equal(got, want) || (got == nil) != (want == nil) {
			t.Fatalf("%d heads on %v devices at %v: %v, want %v", heads, uses, slow, got, want)
		}
		if want == nil {
			none++
		}
	}
	if none < cases/20 || none > cases/2 {
		t.Errorf("of %d cases %d cannot be dealt", cases, none)
	}
}

// Of many pools there are more ways than anyone could try: 10^31 here.
func TestHeadsOfManyPools(t *testing.T) {
	uses, slow := slices.Repeat([]int{1, 2}, 10), make([]float64, 20)
	for p := range slow {
		slow[p] = 1e-6 * float64(20-p)
	}
	got, sum := groupcost.DealHeads(512, uses, slow), 0
	for p, h := range got {
		if sum += h * uses[p]; h < 1 || p > 0 && h < got[p-1] {
			t.Errorf("%v: pool %d is faster than the one before", got, p)
		}
	}
	if len(got) != len(uses) || sum != 512 {
		t.Errorf("%v: %d heads", got, sum)
	}
}

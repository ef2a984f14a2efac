package evenkeel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// Every group ends at theta, is full, or would not have begun by then.
func TestLevelEndsAllGroupsTogether(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	for range 300 {
		n := 1 + r.IntN(6)
		paces, counts, caps := make([]pace, n), make([]float64, n), make([]float64, n)
		total, room := 1+3000*r.Float64(), 0.0
		for i := range paces {
			paces[i] = pace{r.Float64() * float64(r.IntN(2)), 0.001 + r.Float64()}
			counts[i], caps[i] = float64(1+r.IntN(5)), 2000*r.Float64()
			room += counts[i] * min(total, caps[i])
		}
		each, theta := level(total, paces, counts, caps)
		if room < total*(1-1e-9) {
			if each != nil {
				t.Fatalf("%v tokens in a room of %v", total, room)
			}
			continue
		}
		all := 0.0
		for i, s := range each {
			all += counts[i] * s
			end := paces[i].fixed + paces[i].perToken*s
			switch full := s >= min(total, caps[i])*(1-1e-9); {
			case s > caps[i]:
				t.Fatalf("%v tokens, cap %v", s, caps[i])
			case s == 0 && paces[i].fixed < theta*(1-1e-9):
				t.Fatalf("idle until %v", theta)
			case s > 0 && !full && math.Abs(end-theta) > 1e-6*theta:
				t.Fatalf("ends at %v, not at %v", end, theta)
			}
		}
		if math.Abs(all-total) > 1e-6*total {
			t.Fatalf("%v tokens of %v", all, total)
		}
	}
}

// Whole blocks but for the rest, no one later than a block behind the ideal, and
// equal weights get equal tokens but for a block.
func TestDealByWeight(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 2))
	for range 300 {
		weights := make([]float64, 1+r.IntN(6))
		all, least := 0.0, math.Inf(1)
		for i := range weights {
			weights[i] = []float64{1, 1, 2.5, 7}[r.IntN(4)]
			all, least = all+weights[i], min(least, weights[i])
		}
		total, block := units.Tokens(1+r.IntN(5000)), units.Tokens(1+r.IntN(64))
		split := dealByWeight(total, block, weights)
		if world.Sum(split) != total {
			t.Fatalf("%v is not %d", split, total)
		}
		odd := 0
		for i, s := range split {
			if s%block != 0 {
				odd++
			}
			if end := float64(s) / weights[i]; end > float64(total)/all+float64(block)/least*(1+1e-9) {
				t.Fatalf("%v by %v: done at %v", split, weights, end)
			}
			j := slices.Index(weights, weights[i])
			if d := max(s-split[j], split[j]-s); d > block {
				t.Fatalf("%v by %v: equals %d apart", split, weights, d)
			}
		}
		if odd > 1 {
			t.Fatalf("%v: more than one rest, block %d", split, block)
		}
	}
}

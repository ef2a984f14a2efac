package stats

import (
	"fmt"
	"math"
)

// KendallTauB returns Kendall's rank correlation of a and b over all pairs of
// places, between -1 and 1:
//
//	tau_b = (concordant - discordant) / sqrt((n - ties in a) (n - ties in b))
//
// (Kendall, "The treatment of ties in ranking problems", Biometrika 33, 1945).
//
// tied may be nil. Pairs that it calls tied are left out of all counts: neither
// order of them is penalised, even by one of the two that has an order. This is
// for pairs that measurements cannot tell apart; equal numbers are ties as in the
// formula. The relation need not be transitive.
//
// pairs is n, the number of pairs that count; tau is NaN if a or b has no two
// values that differ among them.
// It panics if a and b differ in length or are not finite.
func KendallTauB(a, b []float64, tied func(i, j int) bool) (tau float64, pairs int) {
	if len(a) != len(b) {
		panic(fmt.Sprintf("stats: KendallTauB of %d and %d values", len(a), len(b)))
	}
	mustBeFinite("a", a)
	mustBeFinite("b", b)
	var sum, inA, inB float64 // pairs with an order in a, in b
	for i := range a {
		for j := range i {
			if tied != nil && tied(i, j) {
				continue
			}
			x, y := order(a[i], a[j]), order(b[i], b[j])
			sum, inA, inB = sum+x*y, inA+x*x, inB+y*y
			pairs++
		}
	}
	if inA == 0 || inB == 0 {
		return math.NaN(), pairs
	}
	return sum / math.Sqrt(inA*inB), pairs
}

// order is the sign of a - b.
func order(a, b float64) float64 {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Of a dense sweep of thousands of sizes the simpler forms that a law is compared with take no
// more cuts, knots and places than sizes can tell apart: what a fit costs grows with the points,
// not with their square.
func TestDenseSweepsAreFittedAtFewPlaces(t *testing.T) {
	for _, n := range []int{1700, 17000} {
		points := sized(n, 0.02, rand.New(rand.NewPCG(7, 8)), ring(2))
		logs := make([]float64, n)
		for i, p := range points {
			logs[i] = math.Log(float64(op.Volume(p.Shape)))
		}
		cuts := cutPlaces(points)
		if few, most := mostCuts/2, mostCuts; len(cuts) < few || len(cuts) > most || !slices.IsSorted(cuts) || cuts[0] < fewestInPiece || cuts[len(cuts)-1] > n-fewestInPiece {
			t.Errorf("%d points: %d cuts: want %d to %d: %v", n, len(cuts), few, most, cuts)
		}
		if knots := knotPlaces(logs); len(knots) != mostKnots+1 {
			t.Errorf("%d points: %d knots: want %d", n, len(knots), mostKnots+1)
		}
		if p := newPartition(points); len(p.places) < mostPlaces/4 || len(p.places) > mostPlaces+1 {
			t.Errorf("%d points: a partition at %d places: want %d at most", n, len(p.places), mostPlaces+1)
		}
	}
}

package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func gemmAt(m units.Tokens, n, k int) op.GEMM {
	return op.GEMM{Pass: op.Forward, M: m, N: n, K: k, DType: op.BF16}
}

// A table of a power law gives it back between its points, and the rate of its
// edge beyond them.
func TestTableFollowsPowerLaws(t *testing.T) {
	law := func(s op.GEMM) float64 {
		return 1e-9 * math.Pow(float64(s.M), 0.8) * math.Pow(float64(s.N), 0.9) * math.Pow(float64(s.K), 1.1)
	}
	var points []Point
	for m := units.Tokens(16); m <= 4096; m *= 2 {
		for n := 64; n <= 4096; n *= 4 {
			for k := 64; k <= 4096; k *= 4 {
				s := gemmAt(m, n, k)
				points = append(points, Point{Shape: s, Seconds: law(s)})
			}
		}
	}
	predict, err := interpolated(points)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []op.GEMM{gemmAt(100, 300, 900), gemmAt(3000, 64, 4096), gemmAt(17, 2000, 70)} {
		if got := predict(s) / law(s); math.Abs(got-1) > 0.04 {
			t.Errorf("%+v: %.3f of the truth", s, got)
		}
	}
	edge, beyond := gemmAt(4096, 1024, 1024), gemmAt(16384, 1024, 1024)
	if got := predict(beyond) / predict(edge); math.Abs(got-4) > 1e-9 {
		t.Errorf("four times the rows beyond the table take %.3f times as long", got)
	}
	if _, err := interpolated(nil); err == nil {
		t.Error("no points, no error")
	}
}

// The nearest points are those that sorting all of them finds.
func TestNearestOfTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	table := &shapeTable{}
	for range 200 {
		table.places = append(table.places, []float64{math.Floor(8 * rng.Float64()), math.Floor(8 * rng.Float64())})
	}
	for range 50 {
		at := []float64{8 * rng.Float64(), 8 * rng.Float64()}
		var all []neighbour
		for i, y := range table.places {
			all = append(all, neighbour{(at[0]-y[0])*(at[0]-y[0]) + (at[1]-y[1])*(at[1]-y[1]), i})
		}
		slices.SortStableFunc(all, func(a, b neighbour) int {
			switch {
			case a.apart < b.apart:
				return -1
			case a.apart > b.apart:
				return 1
			}
			return 0
		})
		if got := table.nearest(at); !slices.Equal(got, all[:6]) {
			t.Errorf("%v: %v, want %v", at, got, all[:6])
		}
	}
}

package fit

import (
	"math"
	"testing"
)

func TestVisitsThatDisagreeAreSettledByTheFaster(t *testing.T) {
	for _, c := range []struct {
		visits []float64
		want   float64
	}{
		{[]float64{1}, 1},
		{[]float64{1, 1.02}, 1.01}, // they agree: the median
		{[]float64{1.02, 1}, 1.01},
		{[]float64{1, 1.5}, 1}, // the slower was disturbed
		{[]float64{1.5, 1}, 1},
		{[]float64{3, 1, 1.04}, 1.02},
	} {
		if got := settle(c.visits); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v: got %v, want %v", c.visits, got, c.want)
		}
	}
}

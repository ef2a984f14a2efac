package profile

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Where the budget holds too few short calls for a law, longer ones are taken, but
// not any.
func TestASpaceOfLongCallsHasALaw(t *testing.T) {
	sp := Space{On: "d", Kind: op.KindGEMM, Dims: 1, Make: func(u []float64) op.Shape {
		return op.GEMM{Pass: op.Forward, M: units.Tokens(LogScale(u[0], 512, 4096)), N: 512, K: 512, DType: op.F32}
	}}
	least := sp.at(0)
	each := leastPointTime
	for _, c := range []struct {
		call units.Seconds // of the smallest shape
		want int
	}{{1e-3, 12}, {30e-3, fewest}, {1, 0}} {
		cost := Cost{PerUnit: c.call / units.Seconds(size(least))}
		part := 10 * pointTime(least, 20e-3, cost, each)
		shapes, longest := fill(sp, 12, cost, each, part, 1)
		if len(shapes) != c.want {
			t.Errorf("calls of %v and more: %d shapes up to %v, want %d", c.call, len(shapes), longest, c.want)
		}
		if took := pointsTime(shapes, cost, each); took > overdraw*part {
			t.Errorf("calls of %v and more: %v, of a part of %v", c.call, took, part)
		}
	}
}

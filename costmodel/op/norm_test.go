package op

import (
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// A norm's row is summed up by one unit: its FLOPs are the Tail, whatever the number of
// rows, but where one unit does everything.
func TestARowOfANormIsOneUnits(t *testing.T) {
	for _, c := range []struct {
		tokens   units.Tokens
		parallel int
		tail     float64
	}{{1, 132, 4 * 9408}, {68, 132, 4 * 9408}, {100_000, 132, 4 * 9408}, {68, 1, 0}} {
		if f := (Norm{Rowwise{c.tokens, 9408, BF16}}).Features(c.parallel); f.Tail != c.tail || f.FLOPs != 0 {
			t.Errorf("%d rows on %d units: %+v, want a tail of %v", c.tokens, c.parallel, f, c.tail)
		}
	}
}

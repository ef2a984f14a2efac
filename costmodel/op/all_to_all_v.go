package op

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// KindAllToAllV is the uneven all-to-all.
const KindAllToAllV Kind = "all_to_all_v"

// AllToAllV sends Matrix[i][j] bytes from rank i to rank j, all at once; the
// diagonal stays where it is.
type AllToAllV struct {
	Matrix [][]units.Bytes `json:"matrix_bytes"` // group x group
}

var allToAllVSpec = Spec{
	Kind: KindAllToAllV, Class: Collective, Measures: Time,
	Doc:     "uneven all-to-all: rank i sends matrix_bytes[i][j] to rank j; the diagonal does not travel",
	Example: AllToAllV{[][]units.Bytes{{0, 1 << 20}, {1 << 18, 0}}},
}

// Kind implements Shape.
func (AllToAllV) Kind() Kind { return KindAllToAllV }

// Ranks implements Grouped.
func (a AllToAllV) Ranks() int { return len(a.Matrix) }

// Variant implements Shape.
func (AllToAllV) Variant() Variant { return Variant{} }

// Validate implements Shape: a square matrix without negative entries that
// moves something.
func (a AllToAllV) Validate() error {
	if err := ranks(KindAllToAllV, "matrix_bytes", len(a.Matrix)); err != nil {
		return err
	}
	for i, row := range a.Matrix {
		if len(row) != len(a.Matrix) {
			return &AxisError{KindAllToAllV, fmt.Sprintf("matrix_bytes[%d]", i), fmt.Sprintf("%d entries: want %d, one a rank", len(row), len(a.Matrix))}
		}
		for j, b := range row {
			if b < 0 || b > maxBytes/maxGroup {
				return &AxisError{KindAllToAllV, fmt.Sprintf("matrix_bytes[%d][%d]", i, j), fmt.Sprintf("%d: want 0 to %d", int64(b), maxBytes/maxGroup)}
			}
		}
	}
	if a.Work().Wire == 0 {
		return &AxisError{KindAllToAllV, "matrix_bytes", "nothing travels: every entry off the diagonal is 0"}
	}
	return nil
}

// Work implements Shape: the largest number of bytes that any rank sends or
// receives, which
// is what the time of an uneven all-to-all follows.
func (a AllToAllV) Work() Work {
	var most units.Bytes
	for r := range a.Matrix {
		var sent, received units.Bytes
		for p := range a.Matrix {
			if p != r {
				sent += a.Matrix[r][p]
				received += a.Matrix[p][r]
			}
		}
		most = max(most, sent, received)
	}
	return onWire(most)
}

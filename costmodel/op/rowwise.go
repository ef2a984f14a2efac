package op

import "github.com/evenkeel/evenkeel/internal/units"

// Rowwise is the shape of the bandwidth-bound element-wise ops: `tokens` rows
// of `width` elements.
type Rowwise struct {
	Tokens units.Tokens `json:"tokens"`
	Width  int          `json:"width"` // elements a row
	DType  DType        `json:"dtype"`
}

func (r Rowwise) validate(k Kind) error {
	for _, err := range []error{
		within(k, "tokens", r.Tokens, maxTokens), within(k, "width", r.Width, maxWidth), r.DType.validate(k),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Variant implements Shape.
func (r Rowwise) Variant() Variant { return Variant{DType: r.DType} }

// matrix is the size of one tokens x width operand.
func (r Rowwise) matrix() units.Bytes {
	return units.Bytes(r.Tokens) * units.Bytes(r.Width) * r.DType.Size()
}

// rowwiseWork charges the reading of `reads` operands, the writing of one, and a number
// of FLOPs an element.
func (r Rowwise) rowwiseWork(flops float64, reads units.Bytes) Work {
	return Work{
		FLOPs: units.FLOPs(flops * float64(r.Tokens) * float64(r.Width)),
		Read:  reads * r.matrix(), Write: r.matrix(),
	}
}

// rowFeatures of a bandwidth op: its bytes, and its rows, each of which costs a
// little however narrow it is.
func rowFeatures(w Work, rows units.Tokens, parallel int) Features {
	return Features{Rows: float64(rows) / float64(parallel), Bytes: float64(w.Bytes())}
}

package op

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// DType is the precision of an op's operands.
type DType string

// The precisions.
const (
	F32  DType = "f32"
	BF16 DType = "bf16"
	F16  DType = "f16"
	FP8  DType = "fp8"
)

// Size is bytes an element; 0 for an unknown precision.
func (d DType) Size() units.Bytes {
	switch d {
	case F32:
		return 4
	case BF16, F16:
		return 2
	case FP8:
		return 1
	}
	return 0
}

func (d DType) validate(k Kind) error {
	if d.Size() == 0 {
		return &AxisError{k, "dtype", fmt.Sprintf("%q: want f32, bf16, f16 or fp8", string(d))}
	}
	return nil
}

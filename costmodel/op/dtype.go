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

	// Of messages only: what a reduction adds up matters to the switch that
	// may do it.
	F64 DType = "f64"
	I8  DType = "i8"
	I32 DType = "i32"
	I64 DType = "i64"
)

// Size is bytes an element; 0 for an unknown precision.
func (d DType) Size() units.Bytes {
	switch d {
	case F64, I64:
		return 8
	case F32, I32:
		return 4
	case BF16, F16:
		return 2
	case FP8, I8:
		return 1
	}
	return 0
}

// Computes says that kernels are measured in the precision; the others are of
// messages only.
func (d DType) Computes() bool { return d == F32 || d == BF16 || d == F16 || d == FP8 }

// Runs says that a worker runs kernels in the precision: of fp8 there is what others
// measured, and no kernel to measure or to train with.
func (d DType) Runs() bool { return d.Computes() && d != FP8 }

func (d DType) validate(k Kind) error {
	if !d.Computes() {
		return &AxisError{k, "dtype", fmt.Sprintf("%q: want f32, bf16, f16 or fp8", string(d))}
	}
	return nil
}

package importer

import (
	"bytes"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func gemmOp(name string) bool {
	return name == "aten::mm" || name == "aten::addmm" || name == "aten::linear"
}

// gemmCall makes a product of an op's arguments. Only the layout of a linear
// layer's forward is taken: rows of activations times rows of weights. The two
// products of its backward come as aten::mm too, with other strides, and
// nothing tells them from a product that belongs to no layer.
func gemmCall(name string, in *opInputs) *computeCall {
	c := &computeCall{gemm: true}
	var a, b []int64
	var dtype op.DType
	switch name {
	case "aten::linear":
		a, b, dtype = rowsOf(in.dim(0)), in.dim(1), same(in, 0, 1)
		if len(b) == 2 {
			b = []int64{b[1], b[0]} // weights are [n, k]
		}
		c.reason = in.contiguousRows(0)
	case "aten::addmm":
		a, b, dtype = in.dim(1), in.dim(2), same(in, 1, 2)
		if c.reason = in.forward(1, 2); len(in.dim(0)) != 1 {
			c.reason = "addmm of a whole matrix: more than a linear layer's bias"
		}
	default:
		a, b, dtype = in.dim(0), in.dim(1), same(in, 0, 1)
		c.reason = in.forward(0, 1)
	}
	switch {
	case len(in.dims) == 0:
		c.reason = "no Input Dims: record the trace with record_shapes=True"
	case len(a) != 2 || len(b) != 2 || a[1] != b[0] || a[0] < 1 || a[1] < 1 || b[1] < 1 || max(a[0], a[1], b[1]) > 1<<31:
		c.reason = "operands that do not fit together"
	case dtype == "" || dtype == op.FP8:
		c.reason = "a product of element types other than bf16, f16 or f32"
	}
	if c.reason == "" {
		c.product = op.GEMM{Pass: op.Forward, M: units.Tokens(a[0]), N: int(b[1]), K: int(a[1]), DType: dtype}
	}
	return c
}

// rowsOf joins all dims but the last: batch and tokens are rows of one product.
func rowsOf(dims []int64) []int64 {
	if len(dims) < 2 {
		return nil
	}
	rows := int64(1)
	for _, d := range dims[:len(dims)-1] {
		if d < 1 || rows > 1<<31 {
			return nil
		}
		rows *= d
	}
	return []int64{rows, dims[len(dims)-1]}
}

func same(in *opInputs, i, j int) op.DType {
	if d := operandType(at(in.types, i)); d == operandType(at(in.types, j)) {
		return d
	}
	return ""
}

// forward checks strides: input i lies in rows; j, the transposed view of
// weights that lie as [n, k], in columns. dgrad multiplies by the weights as they
// lie, and wgrad takes a transposed view of the gradients.
func (in *opInputs) forward(i, j int) (reason string) {
	a, b := at(in.strides, i), at(in.strides, j)
	switch {
	case len(a) != 2 || len(b) != 2:
		return "no Input Strides: which pass of a layer a product belongs to is not known"
	case a[1] != 1 || b[0] != 1:
		return "a product in another layout than a linear layer's forward"
	}
	return ""
}

// contiguousRows checks an input of aten::linear, whose weights are as they lie.
func (in *opInputs) contiguousRows(i int) (reason string) {
	if s := at(in.strides, i); len(s) == 0 || s[len(s)-1] != 1 {
		return "no Input Strides: which pass of a layer a product belongs to is not known"
	}
	return ""
}

// gemmKernel is the reason why a kernel's arithmetic is not that of its op's
// element type, or "": PyTorch may round f32 operands to TF32, which is eight
// times as fast and shows in the kernel's name alone.
func gemmKernel(name []byte) string {
	lower := bytes.ToLower(name)
	if bytes.Contains(lower, []byte("tf32")) || bytes.Contains(lower, []byte("_s1688gemm")) || bytes.Contains(lower, []byte("_xf32_")) {
		return "a product in TF32: no such element type"
	}
	return ""
}

package importer

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/go-json-experiment/json/jsontext"
)

// opInputs is what record_shapes wrote down of an op's arguments, by position:
// the dims, strides and element types of tensors, the values of scalars.
type opInputs struct {
	dims, strides [][]int64
	types, values []string
}

// maxInputs is more arguments than any op of interest has.
const maxInputs = 64

func inputsOf(e *traceEvent) opInputs {
	return opInputs{
		dims: sizes(e.raw[fieldDims]), strides: sizes(e.raw[fieldStrides]),
		types: texts(e.raw[fieldTypes]), values: texts(e.raw[fieldConcrete]),
	}
}

// dim is the dims of an input; none for a scalar, an absent tensor, a list of
// tensors.
func (in *opInputs) dim(i int) []int64 { return at(in.dims, i) }

// value is what was passed for a scalar: "" where none was.
func (in *opInputs) value(i int) string { return at(in.values, i) }

func at[T any](list []T, i int) T {
	if i < 0 || i >= len(list) {
		var none T
		return none
	}
	return list[i]
}

// sizes reads a list of lists of whole numbers. What is neither counts as an
// empty list, so that the others keep their positions.
func sizes(raw []byte) [][]int64 {
	var all [][]int64
	for _, element := range elements(raw) {
		var one []int64
		for _, n := range elements(element) {
			v, err := strconv.ParseInt(string(n), 10, 64)
			if err != nil {
				one = nil
				break
			}
			one = append(one, v)
		}
		all = append(all, one)
	}
	return all
}

// texts reads a list of strings; another value counts as "".
func texts(raw []byte) []string {
	var all []string
	for _, element := range elements(raw) {
		text, err := jsontext.AppendUnquote(nil, element)
		if err != nil {
			text = nil
		}
		all = append(all, string(text))
	}
	return all
}

// elements splits a JSON array; none for another value.
func elements(raw []byte) [][]byte {
	if len(raw) == 0 || raw[0] != '[' {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewReader(raw), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	if _, err := dec.ReadToken(); err != nil {
		return nil
	}
	var all [][]byte
	for len(all) < maxInputs && dec.PeekKind() != ']' {
		v, err := dec.ReadValue()
		if err != nil {
			return nil
		}
		all = append(all, bytes.Clone(v))
	}
	return all
}

// operandType is the precision of a tensor that an attention or a GEMM takes;
// "" for another. Builds spell C++ types differently.
func operandType(text string) op.DType {
	text = strings.TrimPrefix(strings.TrimPrefix(text, "c10::"), "at::")
	switch {
	case text == "BFloat16":
		return op.BF16
	case text == "Half":
		return op.F16
	case text == "float":
		return op.F32
	case strings.HasPrefix(text, "Float8_e4m3"), strings.HasPrefix(text, "Float8_e5m2"):
		return op.FP8
	}
	return ""
}

package fit

import (
	"math"
	"reflect"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// coefficients are all numbers in a law's body that can be moved.
func coefficients(law *costmodel.Law) []*float64 {
	var all []*float64
	for _, body := range []any{law.Attention, law.GEMM, law.Linear} {
		if v := reflect.ValueOf(body); !v.IsNil() {
			all = append(all, numbers(v.Elem())...)
		}
	}
	return all
}

// numbers are the positive numbers of a value, at any depth.
func numbers(v reflect.Value) []*float64 {
	var all []*float64
	switch v.Kind() {
	case reflect.Float64:
		if p, ok := v.Addr().Interface().(*float64); ok && *p > 0 {
			all = append(all, p)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				all = append(all, numbers(v.Field(i))...)
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			all = append(all, numbers(v.Index(i))...)
		}
	}
	return all
}

// elasticities says by how much a law's time moves with each of its
// coefficients, d log t / d log c, by a small step in each.
func elasticities(law *costmodel.Law, coefs []*float64, s op.Shape) []float64 {
	const h = 1e-3
	t := float64(law.Seconds(s))
	out := make([]float64, len(coefs))
	for j, c := range coefs {
		was := *c
		*c = was * (1 + h)
		out[j] = math.Log(float64(law.Seconds(s))/t) / h
		*c = was
		if math.IsNaN(out[j]) || math.IsInf(out[j], 0) {
			out[j] = 0
		}
	}
	return out
}

package costmodel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// MissingLawError says that a needed law was never measured, and what would
// measure it. Nothing is ever filled in for it.
type MissingLawError struct {
	Op      op.Kind
	Variant op.Variant
	On      string // device type, group signature or link class
	// What laws of the op the device has that are alike but for one axis, sorted.
	HeadDims []int
	DTypes   []op.DType
}

// missing is the error of a law that a device lacks, with those it has beside it.
func (q *Predictor) missing(on string, kind op.Kind, v op.Variant) *MissingLawError {
	e := &MissingLawError{Op: kind, Variant: v, On: on}
	if _, device := q.devices[on]; !device {
		return e
	}
	for k := range q.laws {
		if k.op != kind || k.on != on {
			continue
		}
		other := k.variant
		other.HeadDim = v.HeadDim
		if other == v {
			e.HeadDims = append(e.HeadDims, k.variant.HeadDim)
		}
		other = k.variant
		other.DType = v.DType
		if other == v {
			e.DTypes = append(e.DTypes, k.variant.DType)
		}
	}
	slices.Sort(e.HeadDims)
	slices.Sort(e.DTypes)
	return e
}

// Error names the law, what the profile has in its place, and the command that measures
// it: a default calibration would measure the same widths and types again.
func (e *MissingLawError) Error() string {
	what := string(e.Op)
	if v := e.Variant.String(); v != "" {
		what += " (" + v + ")"
	}
	has, calibrate := ";", "evenkeel calibrate --only "+string(e.Op)
	switch {
	case len(e.DTypes) > 0:
		has = fmt.Sprintf(", which has it in %s: plan with --dtype %s, or", listed(e.DTypes, ", "), listed(e.DTypes, " or --dtype "))
		if e.Variant.DType.Computes() { // others nobody calibrates
			calibrate += fmt.Sprintf(" --dtype %s", e.Variant.DType)
		}
	case len(e.HeadDims) > 0:
		has = fmt.Sprintf(", which has it for heads of %s;", listed(e.HeadDims, ", "))
		calibrate += " --model config.json"
	}
	return fmt.Sprintf("no law for %s on %s in the profile%s measure it: %s, then fit again", what, e.On, has, calibrate)
}

// listed writes values one after another.
func listed[T any](values []T, between string) string {
	var words []string
	for _, v := range values {
		words = append(words, fmt.Sprint(v))
	}
	return strings.Join(words, between)
}

// MissingPartsError says which laws a composed op needs that were never measured.
type MissingPartsError struct {
	Op      op.Kind
	On      string
	Missing []*MissingLawError
}

// Error names the laws and the command that measures the first.
func (e *MissingPartsError) Error() string {
	var laws []string
	for _, m := range e.Missing {
		laws = append(laws, strings.TrimSpace(fmt.Sprintf("%s %s", m.Op, m.Variant)))
	}
	return fmt.Sprintf("no prediction of %s on %s: its parts have no law for %s; measure them: evenkeel calibrate --only %s, then fit again", e.Op, e.On, strings.Join(laws, ", "), e.Missing[0].Op)
}

package costmodel

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// MissingLawError says that a law is needed which the profile does not have, and how to
// measure it. The cost model never fills in for a missing law.
type MissingLawError struct {
	Op      op.Kind
	Variant op.Variant
	On      string // device type, group signature or link class
	// Sorted head widths and precisions for which the device has laws of this op that
	// differ from the missing one in nothing else.
	HeadDims []int
	DTypes   []op.DType
	// Model is the file of the model that is planned for; empty where nobody knows.
	Model string
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
	has := ";"
	switch {
	case len(e.DTypes) > 0:
		has = fmt.Sprintf(", which has it %s: plan with --dtype %s, or", e.beside(), listed(e.DTypes, " or --dtype "))
	case len(e.HeadDims) > 0:
		has = fmt.Sprintf(", which has it %s;", e.beside())
	}
	return fmt.Sprintf("no law for %s on %s in the profile%s measure it: evenkeel calibrate --fresh --only %s%s, then fit again", named(e.Op, e.Variant), e.On, has, e.Op, e.measured())
}

// named is an op with its variant, where it has any: "gemm (fwd f32)".
func named(kind op.Kind, variant op.Variant) string {
	if v := variant.String(); v != "" {
		return fmt.Sprintf("%s (%s)", kind, v)
	}
	return string(kind)
}

// beside is what the profile has in the law's place.
func (e *MissingLawError) beside() string {
	switch {
	case len(e.DTypes) > 0:
		return "in " + listed(e.DTypes, ", ")
	case len(e.HeadDims) > 0:
		return "for heads of " + listed(e.HeadDims, ", ")
	}
	return ""
}

// measured is what a calibration is to be told besides the op.
func (e *MissingLawError) measured() string {
	switch {
	case len(e.DTypes) > 0 && e.Variant.DType.Computes(): // others nobody calibrates
		return fmt.Sprintf(" --dtype %s", e.Variant.DType)
	case len(e.DTypes) == 0 && len(e.HeadDims) > 0:
		return " --model " + cmp.Or(e.Model, "config.json")
	}
	return ""
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

// Error names the laws with what the profile has in their place, and the command that
// measures them all.
func (e *MissingPartsError) Error() string {
	var kinds []op.Kind
	var flags []string
	for _, m := range e.Missing {
		if !slices.Contains(kinds, m.Op) {
			kinds = append(kinds, m.Op)
		}
		if f := m.measured(); !slices.Contains(flags, f) {
			flags = append(flags, f)
		}
	}
	return fmt.Sprintf("no prediction of %s on %s: its parts have no law for %s; measure them: evenkeel calibrate --fresh --only %s%s, then fit again", e.Op, e.On, e.Laws(), listed(kinds, ","), strings.Join(flags, ""))
}

// Laws lists those that are missing, with what the profile has in their place.
func (e *MissingPartsError) Laws() string {
	var laws []string
	for _, m := range e.Missing {
		law := strings.TrimSpace(fmt.Sprintf("%s %s", m.Op, m.Variant))
		if has := m.beside(); has != "" {
			law += " (the profile has it " + has + ")"
		}
		laws = append(laws, law)
	}
	return strings.Join(laws, ", ")
}

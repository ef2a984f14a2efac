package costmodel

import (
	"cmp"
	"errors"
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
	Link    string // the link class alone, where it is of one
	// Sorted head widths and precisions for which the device has laws of this op that
	// differ from the missing one in nothing else.
	HeadDims []int
	DTypes   []op.DType
	// Model is the file of the model that is planned for; empty where nobody knows.
	Model string
}

func (e *MissingLawError) law() lawKey { return lawKey{e.Op, e.Variant, e.On} }

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
	return fmt.Sprintf("no law for %s on %s in the profile%s %s", named(e.Op, e.Variant), e.On, has, remedy("it", e))
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
	return throughTorch(cmp.Or(e.Link, e.On)) + e.besides()
}

// throughTorch is the flag without which calibrate does not measure a device type, a group or
// a class of links: on a machine without a GPU it takes another backend unless told, whose
// devices and links have other names.
func throughTorch(on string) string {
	if strings.Contains(on, "torch_cpu:") || strings.Contains(on, "gloo_tcp") {
		return " --backend torch"
	}
	return ""
}

func (e *MissingLawError) besides() string {
	switch {
	case len(e.DTypes) > 0 && e.Variant.DType.Computes(): // others nobody calibrates
		return fmt.Sprintf(" --dtype %s", e.Variant.DType)
	case len(e.DTypes) == 0 && len(e.HeadDims) > 0:
		return " --model " + cmp.Or(e.Model, "config.json")
	}
	return ""
}

// MissingLawsError says which laws a step needs that the profile does not have, so that one
// calibration measures them all. As an error it is the first of them too.
type MissingLawsError struct {
	Missing []*MissingLawError // two or more
}

// besides adds what a step lacks to what it was found to lack before.
func besides(known, err error) error {
	more, ok := errors.AsType[*MissingLawError](err)
	if !ok {
		return err
	}
	switch known := known.(type) {
	case nil:
		return err
	case *MissingLawError:
		if known.law() == more.law() {
			return known
		}
		return &MissingLawsError{Missing: []*MissingLawError{known, more}}
	case *MissingLawsError:
		if !slices.ContainsFunc(known.Missing, func(m *MissingLawError) bool { return m.law() == more.law() }) {
			known.Missing = append(known.Missing, more)
		}
	}
	return known
}

// Unwrap is the first law that is missing.
func (e *MissingLawsError) Unwrap() error { return e.Missing[0] }

// Error names the laws with the devices and links that lack them, what the profile has in
// their place, and the command that measures them all.
func (e *MissingLawsError) Error() string {
	var on, lacks []string
	alike := !slices.ContainsFunc(e.Missing, func(m *MissingLawError) bool { return m.beside() != e.Missing[0].beside() })
	for _, m := range e.Missing {
		law := named(m.Op, m.Variant)
		if has := m.beside(); has != "" && !alike {
			law += " (it has that " + has + ")"
		}
		if i := slices.Index(on, m.On); i >= 0 {
			lacks[i] += ", " + law
		} else {
			on, lacks = append(on, m.On), append(lacks, law)
		}
	}
	var all []string
	for i, laws := range lacks {
		if slices.Index(lacks, laws) < i {
			continue // said of the first that lacks the same
		}
		var same []string
		for k := range on {
			if lacks[k] == laws {
				same = append(same, on[k])
			}
		}
		all = append(all, laws+" on "+strings.Join(same, ", "))
	}
	has, way, it := "", ";", "them"
	if first := e.Missing[0]; alike && first.beside() != "" {
		has = ", which has them " + first.beside()
		if len(first.DTypes) > 0 {
			way = fmt.Sprintf(": plan with --dtype %s, or", listed(first.DTypes, " or --dtype "))
		}
	}
	if kinds, _ := toMeasure(e.Missing); len(kinds) == 1 {
		it = "it"
	}
	return fmt.Sprintf("no law for %s in the profile%s%s %s", strings.Join(all, ", nor for "), has, way, remedy(it, e.Missing...))
}

// remedy says how to come by laws, called it or them: the command that measures all of
// them, or where those come from that no calibration can measure.
func remedy(it string, laws ...*MissingLawError) string {
	for _, m := range laws {
		if d := m.Variant.DType; d.Computes() && !d.Runs() {
			return fmt.Sprintf("import what others measured of %s, for calibrate runs no %s: evenkeel import, then fit again", it, d)
		}
	}
	kinds, flags := toMeasure(laws)
	return fmt.Sprintf("measure %s: evenkeel calibrate --fresh --only %s%s, then fit again%s", it, listed(kinds, ","), flags, stating(laws))
}

// stating is the way out of who cannot measure links: whoever plans may state their rates.
func stating(laws []*MissingLawError) string {
	var ways []string
	for _, m := range laws {
		if way := fmt.Sprintf("--network %s=25GB/s between nodes, --link %s=25GB/s inside one", m.Link, m.Link); m.Link != "" && !slices.Contains(ways, way) {
			ways = append(ways, way)
		}
	}
	if len(ways) == 0 {
		return ""
	}
	return "; or plan with a rate that you state, which counts as assumed, such as " + strings.Join(ways, ", and ")
}

// toMeasure is what a calibration is to be told to measure laws: --only's ops, and the flags
// besides.
func toMeasure(laws []*MissingLawError) (kinds []op.Kind, flags string) {
	for _, m := range laws {
		if !slices.Contains(kinds, m.Op) {
			kinds = append(kinds, m.Op)
		}
		f := m.measured()
		if rest, ok := strings.CutPrefix(f, " --backend torch"); ok && strings.Contains(flags, "--backend torch") {
			f = rest
		}
		if !strings.Contains(flags, f) {
			flags += f
		}
	}
	return kinds, flags
}

// ForModel tells the errors of missing laws in err which file the model that is planned for
// is in.
func ForModel(err error, file string) {
	var one *MissingLawError
	if all, ok := errors.AsType[*MissingLawsError](err); ok {
		for _, m := range all.Missing {
			m.Model = file
		}
	} else if errors.As(err, &one) {
		one.Model = file
	}
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
	return fmt.Sprintf("no prediction of %s on %s: its parts have no law for %s; %s", e.Op, e.On, e.Laws(), remedy("them", e.Missing...))
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

package profile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Difference is a setting in which a recording differs from the calibration that is asked
// for. A resumed recording continues with its own settings, so the new one does not take
// effect.
type Difference struct {
	Field DifferingField
	Text  string // the recording's setting, in words
}

// DifferingField names the setting that differs.
type DifferingField int

// The settings. Spaces differ in their ops, or in the head widths and precisions of these.
const (
	DiffersInSeed DifferingField = iota + 1
	DiffersInPoints
	DiffersInChooser
	DiffersInOps
	DiffersInWidths
)

// Differs lists the settings in which the recording differs from a new calibration of the
// inventory by cfg. Of a recording without a schedule only the seed is compared.
func (p *Past) Differs(inv *Inventory, cfg Config) []Difference {
	var all []Difference
	add := func(f DifferingField, text string) { all = append(all, Difference{f, text}) }
	if p.Header != nil && p.Header.Seed != cfg.Seed {
		add(DiffersInSeed, fmt.Sprintf("has the seed %d", p.Header.Seed))
	}
	if p.Schedule == nil {
		return all
	}
	switch {
	case p.Schedule.Limit == cfg.Points:
	case p.Schedule.Limit == 0:
		add(DiffersInPoints, "has as many points of a law as its budget allowed")
	default:
		add(DiffersInPoints, fmt.Sprintf("has at most %d points of a law", p.Schedule.Limit))
	}
	switch rounds := p.Schedule.Families != nil; {
	case rounds && cfg.Chooser == nil:
		add(DiffersInChooser, "has its points chosen in rounds, by those before")
	case !rounds && cfg.Chooser != nil:
		add(DiffersInChooser, "has its points spread over the shapes, all chosen before the first")
	}
	for _, of := range []struct {
		field DifferingField
		named func(op.Kind, op.Variant) string
	}{{DiffersInOps, opName}, {DiffersInWidths, widthName}} {
		if text := p.otherSpaces(inv, cfg, of.named); text != "" {
			add(of.field, text)
			break // what other ops have of widths and types differs with them
		}
	}
	return all
}

// opName and widthName are what spaces are compared by. Kernels and devices are left out:
// one that does not work the next day is no other calibration.
func opName(kind op.Kind, _ op.Variant) string { return string(kind) }

func widthName(kind op.Kind, v op.Variant) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s", kind, op.Variant{HeadDim: v.HeadDim, DType: v.DType}))
}

// otherSpaces compares what the recording was begun for with the spaces that are wanted.
func (p *Past) otherSpaces(inv *Inventory, cfg Config, named func(op.Kind, op.Variant) string) string {
	var want, begun, tried []string
	for _, sp := range (&calibration{Config: cfg}).wanted(inv.Spaces) {
		want = append(want, named(sp.Kind, sp.variant()))
	}
	for _, s := range p.Schedule.Points {
		begun = append(begun, named(s.Op, s.Shape.Variant()))
	}
	for _, f := range p.Schedule.Families {
		begun = append(begun, named(f.Op, f.Variant))
	}
	// Those whose pilot failed, or for which there was no time, were begun with too.
	for _, s := range p.LeftOut {
		tried = append(tried, named(s.Op, s.Shape.Variant()))
	}
	for _, v := range p.Measured {
		tried = append(tried, named(v.Op, v.Shape.Variant()))
	}
	if more := without(begun, want); len(more) > 0 {
		return "measures " + strings.Join(more, ", ")
	}
	if missing := without(want, slices.Concat(begun, tried)); len(missing) > 0 {
		return "does not measure " + strings.Join(missing, ", ")
	}
	return ""
}

// without lists the names that are not among others, each once.
func without(names, others []string) []string {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(others, n) })
	slices.Sort(names)
	return slices.Compact(names)
}

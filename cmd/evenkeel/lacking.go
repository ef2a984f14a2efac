package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/results/profiles"
)

// orReferences adds to the error of a law that the given profiles lack what may stand for it: the
// embedded profiles, if they are not among the given ones and know the GPU, the precision and the
// head width, or what fit assumes from the laws that there are.
func (o problem) orReferences(err error) error {
	var missing *costmodel.MissingLawError
	err = o.namesModel(err)
	if !errors.As(err, &missing) {
		return err
	}
	lacks := []*costmodel.MissingLawError{missing}
	var several *costmodel.MissingLawsError
	if errors.As(err, &several) {
		lacks = several.Missing
	}
	paths, references, _ := o.profiles()
	if !references && !slices.ContainsFunc(lacks, unknownToReferences) {
		err = fmt.Errorf("%w; or, of GPUs, let the embedded profiles stand for what is lacking: --profile %s,%s", err, o.profile, borrowReferences)
	}
	if len(paths) > 0 && o.assumable(paths, lacks) {
		err = fmt.Errorf("%w; or let fit assume what nobody measured: evenkeel fit --assume", err)
	}
	return err
}

// unknownToReferences says of a law that no embedded profile stands for it: its GPU model is not
// known, or none of their laws has its precision or head width.
func unknownToReferences(m *costmodel.MissingLawError) bool {
	if m.Link != "" {
		return false
	}
	if model := costmodel.ModelOf(m.On); !slices.Contains(datasheets(), model) && modelNamed(model) == "" {
		return true
	}
	attention := slices.Contains([]op.Kind{op.KindAttnFwd, op.KindAttnBwd, op.KindAttnVarlenFwd, op.KindAttnVarlenBwd}, m.Op)
	for _, r := range profiles.All() {
		for _, l := range r.Profile.Laws {
			if m.Variant.DType == "" || l.Variant.DType == m.Variant.DType && (!attention || l.Variant.HeadDim == m.Variant.HeadDim) {
				return false
			}
		}
	}
	return true
}

// assumable says that fit --assume would give the profiles all laws that they lack.
func (o problem) assumable(paths []string, lacks []*costmodel.MissingLawError) bool {
	own, err := loadProfiles(o.out, paths)
	if err != nil {
		return false
	}
	p := profiles.Merge(own)
	fit.Assume(p)
	q := costmodel.NewPredictor(p)
	return !slices.ContainsFunc(lacks, func(m *costmodel.MissingLawError) bool {
		if m.Link != "" {
			return !slices.ContainsFunc(p.Laws, func(l costmodel.Law) bool {
				return l.Op == m.Op && slices.ContainsFunc(p.Groups, func(g op.GroupType) bool { return g.Name == l.Group && g.Link == m.Link })
			})
		}
		return !q.Has(m.On, m.Op, m.Variant)
	})
}

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile/importer"
	"github.com/evenkeel/evenkeel/results/profiles"
)

// Who lends to devices with few points, in --borrow.
const (
	borrowReferences = "references"
	borrowNone       = "none"
)

// lendersOf reads --borrow: the embedded references, nobody, or profiles.
func lendersOf(from string) (lenders []*costmodel.Profile, err error) {
	switch from {
	case borrowNone:
	case borrowReferences:
		return references(), nil
	default:
		for path := range strings.SplitSeq(from, ",") {
			p, err := loadProfile(path)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				err := fmt.Errorf("--borrow %s: there is no file %q: want %s, %s, or profiles separated by commas", from, path, borrowReferences, borrowNone)
				if namedLikeFile(path) {
					return nil, err
				}
				return nil, usageError{err}
			case err != nil:
				return nil, err
			}
			lenders = append(lenders, p)
		}
	}
	return lenders, nil
}

// references are the embedded profiles.
func references() (all []*costmodel.Profile) {
	for _, r := range profiles.All() {
		all = append(all, r.Profile)
	}
	return all
}

// borrow writes the profile of a GPU model that nobody measured, whose datasheet is known or
// in a table of devices.
func (a *app) borrow(model, devices, from, out string) (*costmodel.Profile, error) {
	sheets, err := readDevices(devices)
	if err != nil {
		return nil, err
	}
	if _, described := sheets[model]; !described {
		model = speltModel(model, datasheets())
	}
	if _, err := profiles.Lookup(model); err == nil && from == borrowReferences {
		return nil, usagef("--for %[1]s: a reference profile of it was measured, which solve takes where --profile is missing or ends with ,%[2]s (see: evenkeel show --references %[1]s); other lenders are named with --borrow", model, borrowReferences)
	}
	lenders, err := lendersOf(from)
	if err != nil {
		return nil, err
	}
	m, err := sheetFor(model, devices, sheets)
	if err != nil {
		return nil, usagef("--for %w", err)
	}
	p, err := lent(m, lenders)
	if err != nil {
		return nil, usagef("--for %w", err)
	}
	p.Tool, p.Created = tool, time.Now().UTC().Format(time.RFC3339)
	return p, doc.Save(out, p)
}

// sheetFor is the description of a GPU model in a table of devices or, where that has none,
// among the known ones.
func sheetFor(model, devices string, sheets map[string]importer.Model) (importer.Model, error) {
	if m, ok := sheets[model]; ok {
		if missing := importer.Undescribed(m.Of("")); len(missing) > 0 {
			return m, fmt.Errorf("%s: %s has no %s of it, and laws are lent by the ratios of these", model, devices, strings.Join(missing, ", "))
		}
		return m, nil
	}
	known := importer.Models()
	if k := slices.IndexFunc(known, func(m importer.Model) bool { return m.Name == model }); k >= 0 {
		return known[k], nil
	}
	names, where := datasheets(), "describe it in a table: --devices (see: evenkeel import --help)"
	if devices != "" {
		names = slices.Concat(slices.Sorted(maps.Keys(sheets)), names)
		where = devices + " has no row of it"
	}
	return importer.Model{}, fmt.Errorf("%q: no datasheet of such a GPU is known%s; there are those of %s; %s", model, profiles.NearestModel(model, names), strings.Join(names, ", "), where)
}

// lent is the profile of a GPU model by its datasheet and what others lend.
func lent(m importer.Model, lenders []*costmodel.Profile) (*costmodel.Profile, error) {
	p, err := fit.Borrowed(m.Of(costmodel.BorrowedStack), fit.Donors(lenders...))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name, err)
	}
	fit.LendLinks(p, lenders...)
	p.Origins = originsOf(p, lenders)
	fit.Assume(p)
	return p, nil
}

// originsOf are those of the profiles that lent a profile its laws: whose measurements it
// rests on.
func originsOf(p *costmodel.Profile, lenders []*costmodel.Profile) (all []costmodel.Origin) {
	for _, l := range lenders {
		for _, o := range l.Origins {
			if lends(l, p) && !slices.Contains(all, o) {
				all = append(all, o)
			}
		}
	}
	return all
}

// lends says that laws of a profile were lent by devices or groups of another.
func lends(lender, to *costmodel.Profile) bool {
	return slices.ContainsFunc(to.Laws, func(l costmodel.Law) bool {
		return slices.ContainsFunc(lender.Devices, func(d op.DeviceType) bool { return l.Device != "" && d.Name == l.From }) || borrowsLinks(&l, lender)
	})
}

// borrowsLinks says that a collective's law was lent by a group of a profile.
func borrowsLinks(l *costmodel.Law, lender *costmodel.Profile) bool {
	return l.Group != "" && slices.ContainsFunc(lender.Groups, func(g op.GroupType) bool { return g.Name == l.From })
}

// datasheets lists the GPU models whose datasheet is known, sorted.
func datasheets() []string {
	var names []string
	for _, m := range importer.Models() {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

package results

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/results/profiles"
)

// ReferenceSummary is what a list of reference profiles says of one.
type ReferenceSummary struct {
	Name     string             `json:"name"` // of the GPU model
	Devices  []string           `json:"device_types"`
	Software []string           `json:"software"`
	Measured []string           `json:"measured_ops"`
	Assumed  []string           `json:"assumed_ops"`
	Borrowed []string           `json:"borrowed_ops,omitempty"` // of another GPU model
	Median   float64            `json:"held_out_median"`        // worst law's of attention and GEMM, |log(measured/predicted)|
	P90      float64            `json:"held_out_p90"`
	Points   int                `json:"held_out_points"`
	Origins  []costmodel.Origin `json:"origins"`
	Own      bool               `json:"measured_by_this_project,omitzero"`
}

// wholeSteps stands among the ops: how long calls take in training steps.
const wholeSteps = "training steps"

// SummariseReferences sums reference profiles up.
func SummariseReferences(refs []profiles.Reference) []ReferenceSummary {
	var all []ReferenceSummary
	for _, r := range refs {
		s := ReferenceSummary{Name: r.Name, Origins: r.Profile.Origins, Own: MeasuredHere(r.Profile)}
		for _, d := range r.Profile.Devices {
			s.Devices, s.Software = append(s.Devices, d.Name), append(s.Software, softwareOf(d))
		}
		for i := range r.Profile.Laws {
			s.add(&r.Profile.Laws[i])
		}
		for _, t := range r.Profile.Training {
			if t.Assumed == "" {
				s.Measured = append(s.Measured, wholeSteps)
			} else {
				s.Assumed = append(s.Assumed, wholeSteps)
			}
		}
		slices.Sort(s.Assumed)
		all = append(all, s)
	}
	return all
}

// softwareOf is what a device type's name says of its software or, where it says nothing,
// the first of its stack.
func softwareOf(d op.DeviceType) string {
	if _, software, named := strings.Cut(d.Name, "/"); named {
		return software
	}
	first, _, _ := strings.Cut(d.Stack, ",")
	return first
}

func (s *ReferenceSummary) add(l *costmodel.Law) {
	name := string(l.Op)
	for _, part := range []string{string(l.Variant.Mask), string(l.Variant.Pass)} {
		if part != "" {
			name += " " + part
		}
	}
	list := &s.Measured
	switch {
	case l.Assumed != "":
		list = &s.Assumed
	case l.From != "":
		list = &s.Borrowed
	}
	if !slices.Contains(*list, name) {
		*list = append(*list, name)
	}
	if l.Held.Points > 0 && (l.Attention != nil || l.GEMM != nil) {
		s.Points += l.Held.Points
		s.Median, s.P90 = max(s.Median, l.Held.Median), max(s.P90, l.Held.P90)
	}
}

// References lists the reference profiles: what was measured of each, what is
// assumed, how far its laws were off on points set aside, and whose
// measurements they are; the other GPU models that borrow from them by their
// datasheets; and below them the cost models of groups that others published.
func References(w io.Writer, refs []ReferenceSummary, datasheets []string) error {
	p := &printer{w: w}
	p.para("", "reference profiles, fitted to the measurements of those named below; solve uses them where no --profile is given. Calibrate your own cluster to replace them.")
	t := newTable(column{title: "GPU", most: 12}, column{title: "software", most: 18}, column{title: "measured", most: 26}, column{title: "assumed or borrowed", most: 26},
		column{title: "held-out error\nmedian, p90", number: true})
	for _, r := range refs {
		assumed := strings.Join(r.Assumed, ", ")
		if len(r.Borrowed) > 0 {
			assumed += "; borrowed: " + strings.Join(r.Borrowed, ", ")
		}
		t.row(r.Name, strings.Join(r.Software, ", "), strings.Join(r.Measured, ", "), assumed,
			fmt.Sprintf("%s, %s", percent(r.Median, r.Points), percent(r.P90, r.Points)))
	}
	p.printf("\n")
	t.render(p)
	p.para("", "errors are |log(predicted / measured)|, as everywhere: 5 % is a time predicted too long or too short by a factor of 1.05, whichever; of points set aside before the fit, of the worst law of attention and matrix products; an op in both columns was measured in another precision, head dimension or group")
	p.printf("\n")
	for _, r := range refs {
		if r.Own {
			p.para("measured by ", fmt.Sprintf("this project: %s, by evenkeel calibrate; what it borrows was measured by others", r.Name))
		} else if slices.Contains(r.Measured, wholeSteps) {
			p.para("measured by ", fmt.Sprintf("this project: %s of %s; of the others they are assumed", wholeSteps, r.Name))
		}
	}
	for _, o := range originsOf(refs) {
		p.para("measured by ", fmt.Sprintf("%s: %s at %.12s, %s", o.Title, o.Repository, o.Commit, o.Licence))
	}
	if others := slices.DeleteFunc(slices.Clone(datasheets), func(name string) bool {
		return slices.ContainsFunc(refs, func(r ReferenceSummary) bool { return r.Name == name })
	}); len(others) > 0 {
		p.printf("\n")
		p.para("", "nobody measured these, and they borrow from the most similar reference by the ratios of their datasheets: "+strings.Join(others, ", "))
	}
	groupCosts(p, profiles.GroupCosts())
	return p.err
}

// groupCosts lists published cost models of groups.
func groupCosts(p *printer, all []profiles.GroupCost) {
	p.printf("\n")
	p.para("", "published cost models of groups, for planning batches of unequal sequences with their authors' coefficients:")
	t := newTable(column{title: "model", most: 16}, column{title: "of", most: 60}, column{title: "published by", most: 44})
	for _, g := range all {
		var by []string
		for _, o := range g.Model.Origins {
			by = append(by, fmt.Sprintf("%s: %s at %.12s, %s", o.Title, o.Repository, o.Commit, o.Licence))
		}
		t.row(g.Name, g.Model.Title, strings.Join(by, "; "))
	}
	p.printf("\n")
	t.render(p)
}

// MeasuredHere says that devices of a profile were measured by evenkeel itself: their times
// were not imported.
func MeasuredHere(p *costmodel.Profile) bool {
	return len(profile.ImportedPlaces(p.Devices, nil)) < len(p.Devices)
}

// originsOf lists the origins of all references, each once.
func originsOf(refs []ReferenceSummary) []costmodel.Origin {
	var all []costmodel.Origin
	for _, r := range refs {
		for _, o := range r.Origins {
			if !slices.Contains(all, o) {
				all = append(all, o)
			}
		}
	}
	return all
}

// assumedMark is the footnote of a law that nobody measured.
func assumedMark(n *notes, l *costmodel.Law) string {
	return n.mark(fmt.Sprintf("assumed, with an interval of %s to %s of the time: %s", units.Percent(l.Spread.Lo), units.Percent(l.Spread.Hi), l.Assumed))
}

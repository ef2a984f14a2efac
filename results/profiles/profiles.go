// Package profiles holds the reference profiles: laws fitted to what others
// measured of six GPU types, embedded in the binary, so that a cluster can be
// planned before anyone owns it. docs/references.sh makes the files again;
// NOTICE names whose measurements they rest on.
package profiles

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/agnivade/levenshtein"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
)

//go:embed *.profile.json
var files embed.FS

const suffix = ".profile.json"

// Reference is an embedded profile, or another that is merged with such.
type Reference struct {
	Name    string // of the GPU model, as a cluster says it; of a file its path
	Input   doc.Input
	Profile *costmodel.Profile
}

// read decodes the embedded files once; nothing changes them afterwards.
var read = sync.OnceValue(func() []Reference {
	var all []Reference
	for _, e := range decoded[costmodel.Profile](files, suffix) {
		all = append(all, Reference{Name: e.name, Input: e.input, Profile: e.document})
	}
	return all
})

// All lists the references by name. The profiles are shared: clone before changing.
func All() []Reference { return slices.Clone(read()) }

// Lookup finds the reference of a GPU model, or of a device type by what stands
// before its slash. The error names the nearest reference and lists all.
func Lookup(name string) (Reference, error) { return LookupOr(name, nil) }

// LookupOr is Lookup, whose error knows of the GPU models whose datasheets would do too.
func LookupOr(name string, datasheets []string) (Reference, error) {
	model := costmodel.ModelOf(name)
	var names []string
	for _, r := range read() {
		if r.Name == model {
			return r, nil
		}
		names = append(names, r.Name)
	}
	others := ""
	if len(datasheets) > 0 {
		others = ", and datasheets of " + strings.Join(datasheets, ", ")
	}
	return Reference{}, fmt.Errorf("no reference profile of %q%s; there are %s%s; measure your own: evenkeel calibrate, then solve --profile", name, nearest(model, append(slices.Clone(names), datasheets...)), strings.Join(names, ", "), others)
}

// nearest suggests a name that goes on where the given one ends, as h100_sxm does after
// h100, or else one that differs by no more than a third of its letters.
func nearest(name string, names []string) string {
	if i := slices.IndexFunc(names, func(n string) bool { return name != "" && strings.HasPrefix(n, name+"_") }); i >= 0 {
		return fmt.Sprintf(", did you mean %q?", names[i])
	}
	distance := func(n string) int { return levenshtein.ComputeDistance(name[:min(len(name), 60)], n) }
	best := slices.MinFunc(names, func(a, b string) int { return distance(a) - distance(b) })
	if distance(best) > max(2, len(name)/3) {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", best)
}

// Merge is one profile of several, each once, in the given order: of the references of
// several GPU models, or others. Their laws stay apart: no device type may be in two of them.
func Merge(refs []Reference) *costmodel.Profile {
	var p costmodel.Profile
	for i, r := range refs {
		o := r.Profile
		if i == 0 {
			p.Header, p.Holdout = o.Header, o.Holdout
			p.Inputs = nil
		}
		p.Created = max(p.Created, o.Created)
		if !slices.Contains(p.Inputs, r.Input) {
			p.Inputs = append(p.Inputs, r.Input)
		}
		p.Simulated = p.Simulated || o.Simulated
		for _, origin := range o.Origins {
			if !slices.Contains(p.Origins, origin) {
				p.Origins = append(p.Origins, origin)
			}
		}
		p.Devices, p.Groups = append(p.Devices, o.Devices...), append(p.Groups, o.Groups...)
		p.Laws, p.Steps = append(p.Laws, o.Laws...), append(p.Steps, o.Steps...)
		p.Memory, p.Overlaps = append(p.Memory, o.Memory...), append(p.Overlaps, o.Overlaps...)
		p.Outliers, p.Warnings = append(p.Outliers, o.Outliers...), append(p.Warnings, o.Warnings...)
	}
	return &p
}

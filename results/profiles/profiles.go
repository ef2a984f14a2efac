// Package profiles holds the reference profiles: laws of seven GPU types, fitted to
// what others measured and, of an H200 and of whole training steps, to what this project did,
// embedded in the binary, so that a cluster can be planned before anyone owns it.
// docs/references.sh makes the files again;
// NOTICE names whose measurements they rest on.
package profiles

import (
	"cmp"
	"embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/agnivade/levenshtein"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/spelling"
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
	datasheets = slices.DeleteFunc(slices.Clone(datasheets), func(d string) bool { return slices.Contains(names, d) })
	if len(datasheets) > 0 {
		others = ", and datasheets of " + strings.Join(datasheets, ", ")
	}
	return Reference{}, fmt.Errorf("no reference profile of %q%s; there are %s%s; measure your own: evenkeel calibrate, then solve --profile", name, NearestModel(name, datasheets), strings.Join(names, ", "), others)
}

// NearestModel suggests a GPU model, as an error ends with it, or nothing: of those that are
// as near rather one that has a reference than one whose datasheet alone is known.
func NearestModel(given string, datasheets []string) string {
	var names []string
	for _, r := range read() {
		names = append(names, r.Name)
	}
	return Nearest(costmodel.ModelOf(given), append(names, datasheets...))
}

// plain is a GPU model's name in the spelling of those that are known: A100-SXM is a100_sxm,
// AMD MI300X mi300x.
func plain(given string) string {
	name := strings.NewReplacer("-", "_", " ", "_").Replace(strings.ToLower(given[:min(len(given), 60)]))
	for _, maker := range []string{"nvidia_", "tesla_", "geforce_", "amd_", "instinct_"} {
		name = strings.TrimPrefix(name, maker)
	}
	return name
}

// Spelt is a device type in the spelling of the model among known ones that it is of:
// h100_sxm/mine of H100-SXM/mine. One that is of none, or spelt as one is, stays as it is.
func Spelt(given string, models []string) string {
	model := costmodel.ModelOf(given)
	if name := plain(model); !slices.Contains(models, model) && slices.Contains(models, name) {
		return name + given[len(model):]
	}
	return given
}

// Nearest suggests a known name, as an error ends with it, or nothing: the given one in another
// spelling; one that goes on where the given one ends, as h100_sxm after h100 and mi300x after
// mi300; else of those with its model number the one that has most of its words, as a100_sxm_40gb for
// a100_40gb, and is the longest that the given one goes on from, as a100_sxm for a100_sxm_80gb;
// else one that differs by no more than a third of its letters.
func Nearest(given string, names []string) string {
	name := plain(given)
	if slices.Contains(names, name) {
		return spelling.Suggest(name)
	}
	distance := func(n string) int { return levenshtein.ComputeDistance(name, n) }
	best := slices.MinFunc(names, func(a, b string) int { return distance(a) - distance(b) })
	for _, begins := range []string{name + "_", name} {
		if i := slices.IndexFunc(names, func(n string) bool { return len(name) > 1 && strings.HasPrefix(n, begins) }); i >= 0 {
			return spelling.Suggest(names[i])
		}
	}
	longest := slices.MinFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(both(name, b), both(name, a)), cmp.Compare(shared(name, b), shared(name, a)), distance(a)-distance(b))
	})
	switch {
	case shared(name, longest) > 0:
		best = longest
	case distance(best) > max(1, len(name)/3) || distance(best) >= len(name):
		return ""
	}
	return spelling.Suggest(best)
}

// shared is how much of the beginning of a given name is a known one, or its model number:
// h100 of h100_sxm, but not the rtx that begins many.
func shared(given, known string) int {
	number, _, _ := strings.Cut(known, "_")
	switch {
	case strings.HasPrefix(given, known):
		return len(known)
	case strings.HasPrefix(given, number) && strings.ContainsAny(number, "0123456789"):
		return len(number)
	}
	return 0
}

// both counts the words of a given name that a known one with its model number has; sxm4 is sxm.
func both(given, known string) int {
	if shared(given, known) == 0 {
		return 0
	}
	all, n := strings.Split(known, "_"), 0
	for w := range strings.SplitSeq(given, "_") {
		if slices.Contains(all, w) || slices.Contains(all, strings.TrimRight(w, "0123456789")) {
			n++
		}
	}
	return n
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
		p.Training = append(p.Training, o.Training...)
		p.Outliers, p.Warnings = append(p.Outliers, o.Outliers...), append(p.Warnings, o.Warnings...)
	}
	return &p
}

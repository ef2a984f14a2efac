package fit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/profile"
)

// origins says where the points of devices and groups come from: what was imported nobody
// here can measure more of.
type origins struct {
	measured map[string]bool       // devices and groups of recordings of this tool
	imported map[string][]imported // of those made from other tools' files
}

// imported is a recording that was made from files of a format.
type imported struct{ file, format string }

// note takes in a recording's header.
func (o *origins) note(file string, h *profile.Header) {
	if o.measured == nil {
		o.measured, o.imported = map[string]bool{}, map[string][]imported{}
	}
	take := func(on string) {
		from := imported{file, strings.TrimPrefix(h.Backend, profile.ImportPrefix)}
		switch {
		case !h.Imported():
			o.measured[on] = true
		case !slices.Contains(o.imported[on], from):
			o.imported[on] = append(o.imported[on], from)
		}
	}
	for _, d := range h.Devices {
		take(d.Name)
	}
	for _, g := range h.Groups {
		take(g.Name)
	}
}

// foreign says that all points of a device or group were imported.
func (o *origins) foreign(on string) bool { return len(o.imported[on]) > 0 && !o.measured[on] }

// allForeign says that everything was imported.
func (o *origins) allForeign() bool { return len(o.imported) > 0 && len(o.measured) == 0 }

// more is the way to further points of a device or group: the command that measures them, or
// where all were imported, what to import more of.
func (o *origins) more(on, measure string) string {
	if !o.foreign(on) {
		return measure
	}
	var files, ways []string
	for _, f := range o.imported[on] {
		files = append(files, fmt.Sprintf("%s (%s)", f.file, f.format))
		if way := "evenkeel import --from " + f.format; !slices.Contains(ways, way) {
			ways = append(ways, way)
		}
	}
	return fmt.Sprintf("those of %s were imported, into %s: import more of them: %s", on, strings.Join(files, ", "), strings.Join(ways, ", "))
}

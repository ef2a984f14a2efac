package main

import (
	"bytes"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile/importer"
)

// writeImport prints what became of every row of an import.
func writeImport(w io.Writer, r *importer.Report, out string, written bool) error {
	var b bytes.Buffer
	if !written {
		out = "nothing written"
	}
	fmt.Fprintf(&b, "%s: %s of %s from %s (%s)", out, units.Count(r.Points, "point"), units.Count(r.Rows, "row"), units.Count(len(r.Files), "file"), r.Format)
	if 0 < r.Shapes && r.Shapes < r.Points {
		fmt.Fprintf(&b, ", of %s: fit makes one point of each", units.Count(r.Shapes, "shape"))
	}
	b.WriteByte('\n')
	named(&b, "devices", r.Devices)
	named(&b, "groups", r.Groups)
	if len(r.Dropped) > 0 {
		fmt.Fprintf(&b, "\n%d of %s not used:\n", r.Rows-r.Points, units.Count(r.Rows, "row"))
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, d := range r.Dropped {
			fmt.Fprintf(t, "%d\t  %s\n\t  first: %s\n", d.Rows, d.Reason, d.First)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	listed(&b, "Contradictions:", r.Flags)
	listed(&b, "Notes:", r.Notes)
	_, err := w.Write(b.Bytes())
	return err
}

// mostNamed is the number of names that a reader takes in.
const mostNamed = 12

func named(b *bytes.Buffer, title string, names []string) {
	for i, n := range names {
		if i == mostNamed {
			fmt.Fprintf(b, "  %-8s and %d more\n", "", len(names)-i)
			return
		}
		if i > 0 {
			title = ""
		}
		fmt.Fprintf(b, "  %-8s %s\n", title, n)
	}
}

func listed(b *bytes.Buffer, title string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintf(b, "\n%s\n", title)
	}
	for _, l := range lines {
		fmt.Fprintf(b, "  - %s\n", l)
	}
}

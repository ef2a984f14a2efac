package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/serve"
)

// journalSchema stands for the schema of a journal of serve, whose lines have none.
const journalSchema = "evenkeel.journal/v1"

func (a *app) showJournal(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return openError(err)
	}
	defer f.Close()
	v, err := serve.ViewJournal(path, f)
	if err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) error { return writeJournal(w, path, v) })
}

// writeJournal prints what a journal of serve keeps.
func writeJournal(w io.Writer, path string, v *serve.JournalView) error {
	var b bytes.Buffer
	plans, keeps := 0, "no plans yet"
	for _, j := range v.Jobs {
		plans += j.Plans
		keeps = fmt.Sprintf("%s of %s", units.Count(plans, "plan"), units.Count(len(v.Jobs), "job"))
	}
	fmt.Fprintf(&b, "journal of serve: %s\nfor: %s\n", keeps, v.Costs)
	if len(v.Jobs) > 0 {
		b.WriteByte('\n')
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "job\tsteps\tplans\tfailed\twaiting")
		for _, j := range v.Jobs {
			fmt.Fprintf(t, "%s\t%d-%d\t%d\t%d\t%d\n", j.Job, j.First, j.Last, j.Plans, j.Failed, j.Waiting)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		b.WriteString("\nfailed: could not be planned; waiting: accepted, and planned once a server goes on\n")
	}
	if v.Torn {
		b.WriteString("the last line is not whole: a server is writing it, or ended while it did\n")
	}
	fmt.Fprintf(&b, "a server for the same devices goes on with it and hands its plans out: evenkeel serve --journal %s\n", path)
	_, err := w.Write(b.Bytes())
	return err
}

package results

import (
	"fmt"
	"io"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/emit"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

// Emission prints what a framework runs of a plan of a sequence, what that costs, and what became
// of every field; below it what the framework reads, unless a file has it.
func Emission(w io.Writer, d *solver.Plan, e *emit.Emission, file string) error {
	stamp, because := planStamp(d)
	return emission(w, fmt.Sprintf("%s for %s, as %s runs it", stamp, inTokens(d.Job.SeqLen), e.To), because, e, file)
}

// PipelineEmission is Emission of a plan of a pipeline.
func PipelineEmission(w io.Writer, d *pipeline.Document, e *emit.Emission, file string) error {
	all := units.Tokens(0)
	for _, n := range d.Lengths {
		all += n
	}
	head := fmt.Sprintf("%s plan of %s as a pipeline: %s (%s), as %s runs it", stampOf(d.Simulated, d.Chosen()), orNone(d.Name), plural(len(d.Lengths), "sequence"), inTokens(all), e.To)
	return emission(w, head, "prices: "+d.Prices, e, file)
}

func emission(w io.Writer, head, because string, e *emit.Emission, file string) error {
	p, n := &printer{w: w}, &notes{}
	p.para("", head)
	p.para("", because)
	p.para("", fmt.Sprintf("a step takes %s (%s) as emitted, %s as planned: %s", estimate(e.Time), e.Time.Source, estimate(e.Planned), lost(e)))
	p.printf("\n")
	t := newTable(column{title: "field"}, column{title: "plan", most: 24}, column{title: "emitted", most: 26}, column{title: "verdict"}, column{title: "why", most: 34})
	for _, f := range e.Fields {
		t.row(f.Name, f.Plan, f.Emitted, string(f.Verdict), f.Why)
	}
	t.render(p)
	p.printf("\n")
	if file != "" {
		p.para("", fmt.Sprintf("%s: %s", file, e.Use))
	} else {
		p.printf("%s\n", e.Text)
		p.para("", "FILE is the lines above (-o writes them): "+e.Use)
	}
	n.add(e.Notes...)
	n.render(p)
	return p.err
}

// lost is what a step takes more than planned, and by how much of the planned time that may be
// off; a "~" says that there may be no difference.
func lost(e *emit.Emission) string {
	more := e.Time.Mid - e.Planned.Mid
	switch {
	case more == 0 && e.Exact():
		return "nothing is lost"
	case more == 0:
		return "as long"
	}
	return changed(float64(e.Planned.Mid/e.Time.Mid), float64(e.Error/e.Planned.Mid), max(more, -more) <= e.Error)
}

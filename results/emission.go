package results

import (
	"fmt"
	"io"
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/emit"
)

// otherLaws is by how much two prices of a plan differ at most if they are of the same laws.
const otherLaws = 1e-6

// Emission prints what a framework runs of a plan, what that costs, and what became of every
// field; below it what the framework reads, unless a file has it.
func Emission(w io.Writer, d *solver.Plan, e *emit.Emission, file string) error {
	p, n := &printer{w: w}, &notes{}
	loss := float64(e.Time/e.Planned) - 1
	p.para("", fmt.Sprintf("%s for %s: a step takes %s as emitted, %s as planned (%+.1f %%; both predicted)", inTokens(d.Job.SeqLen), e.To, seconds(e.Time), seconds(e.Planned), 100*loss))
	p.printf("\n")
	t := newTable(column{title: "field"}, column{title: "plan", most: 36}, column{title: "emitted", most: 36}, column{title: "verdict"}, column{title: "why", most: 44})
	for _, f := range e.Fields {
		t.row(f.Name, f.Plan, f.Emitted, string(f.Verdict), f.Why)
	}
	t.render(p)
	p.printf("\n")
	switch {
	case file != "":
		p.para("", fmt.Sprintf("%s: %s", file, e.Use))
	default:
		p.printf("%s", e.Text)
		p.printf("\n")
		p.para("", "FILE is the lines above (-o writes them): "+e.Use)
	}
	n.add(e.Notes...)
	if was := d.Step.Time.Mid; math.Abs(float64(e.Planned/was)-1) > otherLaws {
		n.add(fmt.Sprintf("these are not the laws that the plan was made with: it says %s of its step (--profile names them)", seconds(units.Seconds(was))))
	}
	n.render(p)
	return p.err
}

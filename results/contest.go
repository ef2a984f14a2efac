package results

import (
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// contest is the strategies that were considered, for a table.
type contest struct {
	candidates []recommend.Candidate
	base       *recommend.Candidate // the strongest baseline; nil without one
	taken      bool                 // the plan was asked for by name
	time       units.Seconds        // of the plan
	more       []own                // columns of the plans' own
}

// own is a column that only some kinds of plans have, by candidate.
type own struct {
	title string
	cells []string
}

// show prints the table.
func (x contest) show(p *printer) {
	p.printf("\nconsidered, today's and published strategies first\n")
	columns := []column{
		{title: "strategy"},
		{title: "step", number: true},
		{title: "against the best\nbaseline", number: true},
		{title: "speed-up", number: true},
		{title: "above the\nbound", number: true},
		{title: "planned in", number: true},
		{title: "verdict", most: 40},
	}
	const after = 2
	for _, c := range slices.Backward(x.more) {
		columns = slices.Insert(columns, after, column{title: c.title, number: true})
	}
	t := newTable(columns...)
	row := func(mine []string, cells ...string) { t.row(slices.Insert(cells, after, mine...)...) }
	doubts := false
	for i, c := range x.candidates {
		doubts = doubts || inDoubt(c, x.base)
		name := c.Strategy
		if c.Published {
			name += " (published)"
		} else if c.Baseline {
			name += " (baseline)"
		}
		if !(c.Time > 0) {
			row(slices.Repeat([]string{none}, len(x.more)), name, none, none, none, none, c.Took.String(), string(c.Verdict)+": "+c.Why)
			continue
		}
		step, speedup := c.Time.String(), none
		if c.Interval.Mid > 0 {
			step = estimate(c.Interval)
		}
		if c.Speedup > 0 {
			speedup = fmt.Sprintf("%.3fx", c.Speedup)
		}
		var more []string
		for _, c := range x.more {
			more = append(more, c.cells[i])
		}
		row(more, name, step, candidateAgainst(c, x.base), speedup, units.Percent(c.Gap), c.Took.String(), verdictWord(c.Verdict, x.taken && c.Time < x.time))
	}
	t.render(p)
	if doubts {
		p.para("", "~: the model's error leaves open whether there is a difference from the baseline")
	}
}

// candidateAgainst prints how much less (or more) time a candidate takes than the strongest baseline
// and how much nearer to it that may be, with a "~" where there may be no difference.
func candidateAgainst(c recommend.Candidate, base *recommend.Candidate) string {
	switch {
	case base == nil || !(c.Speedup > 0):
		return none
	case c.Strategy == base.Strategy:
		return "baseline"
	}
	return changed(c.Speedup, float64(c.GainError/base.Time), inDoubt(c, base))
}

// inDoubt says that a candidate may be as fast as the strongest baseline.
func inDoubt(c recommend.Candidate, base *recommend.Candidate) bool {
	return base != nil && c.Strategy != base.Strategy && c.Interval.Mid > 0 && math.Abs(float64(base.Time-c.Time)) <= float64(c.GainError)
}

// stampOf is the first word of a plan: what its time rests on.
func stampOf(simulated bool, chosen *recommend.Candidate) string {
	if simulated {
		return "SIMULATED"
	}
	if chosen != nil && (chosen.Interval.Source == costmodel.Transferred || chosen.Interval.Source == costmodel.Assumed) {
		return "HYPOTHETICAL"
	}
	return "PREDICTED"
}

// stepOf is a plan's time with its error, where one is known.
func stepOf(t units.Seconds, chosen *recommend.Candidate) string {
	if chosen == nil || chosen.Interval.Mid <= 0 {
		return t.String()
	}
	return fmt.Sprintf("%s (%s)", estimate(chosen.Interval), chosen.Interval.Source)
}

// reasons explains the choice, and those that were faster and in doubt.
func (x contest) reasons(p *printer) {
	if c := recommend.ChosenOf(x.candidates); c != nil {
		whyChosen(p, x.taken, c.Strategy, c.Why)
	}
	for _, c := range x.candidates {
		if c.Verdict == recommend.Tie {
			whyNot(p, c.Strategy, string(c.Verdict), c.Why)
		}
	}
}

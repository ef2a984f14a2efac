package results

import (
	"fmt"
	"io"
	"strings"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay/comparison"
)

// TraceJUnit writes what `check` found in a trace as JUnit XML, a case a check.
// What has no verdict is skipped, with the reason; judged strictly, what has too little
// measured for one fails.
func TraceJUnit(w io.Writer, r *comparison.Report) error {
	s := junitSuite{Name: "evenkeel.check.replay"}
	for _, k := range r.Verdicts {
		c := junitCase{Class: "replay", Name: k.Name, Out: checkText(k)}
		switch k.Verdict {
		case fit.Fail:
			c.Failure = &junitMessage{Message: k.Why, Text: traceWhere(r, k)}
		case fit.Insufficient:
			c.undecided(fmt.Sprintf("%s: %s", k.Verdict, k.Why), r.Strict)
		case fit.Ungated:
			c.Skipped = &junitMessage{Message: fmt.Sprintf("%s: %s", k.Verdict, k.Why)}
		}
		s.Cases = append(s.Cases, c)
	}
	return writeJUnit(w, []junitSuite{s})
}

// checkText is the value of a check against its limit.
func checkText(k comparison.Check) string {
	if strings.HasSuffix(k.Name, "tau_b") {
		return fmt.Sprintf("%.2f, limit at least %.2f", k.Value, k.Limit)
	}
	return fmt.Sprintf("%s, limit %s", units.Percent(k.Value), units.Percent(k.Limit))
}

// traceWhere says where the difference of a plan's step comes from.
func traceWhere(r *comparison.Report, k comparison.Check) string {
	for i := range r.Plans {
		if strings.HasPrefix(k.Name, fmt.Sprintf("plan %d:", i)) {
			return traceDifference(&r.Plans[i])
		}
	}
	return ""
}

func traceDifference(x *comparison.Plan) string {
	var parts []string
	for _, d := range x.Parts {
		parts = append(parts, fmt.Sprintf("%s %s", d.Name, more(d.Difference)))
	}
	return fmt.Sprintf("predicted %s, measured %s; %s along rank %s: %s", estimate(x.Predicted), seconds(x.Measured.Median), more(x.Difference), traceLongest(x.Critical), strings.Join(parts, ", "))
}

// TraceMarkdown writes what `check` found in a trace as a section that can be
// appended to the summary of a CI job. It begins with an empty line.
func TraceMarkdown(w io.Writer, r *comparison.Report) error {
	p := &printer{w: w}
	p.printf("\n## evenkeel check of a replay: %s\n\n%s. %s.\n", traceState(r), cell(traceVerdict(r)), cell(traceTitle(r)))
	p.printf("\n| plan | file (strategy) | predicted | measured (spread) | error of step (95 %% bound) | compute | exposed communication | skew | gaps | error of compute |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, x := range r.Plans {
		p.printf("| %d | %s | %s | %s (%s) | %s (%s) |", x.Plan, cell(planTitle(&x)), estimate(x.Predicted), seconds(x.Measured.Median), units.Percent(x.Measured.Spread), signed(x.Log), units.Percent(x.Upper))
		for _, d := range x.Parts {
			p.printf(" %s |", more(d.Difference))
		}
		p.printf(" %s |\n", percent(x.ComputeError, x.Stretches))
	}
	p.printf("\n| check | value | verdict |\n|---|---|---|\n")
	for _, k := range r.Verdicts {
		p.printf("| %s | %s | %s |\n", cell(k.Name), checkText(k), cell(strings.TrimSuffix(emphasised(k.Verdict)+": "+k.Why, ": ")))
	}
	traceGainsMarkdown(p, r)
	markdownList(p, r.Warnings)
	return p.err
}

func traceGainsMarkdown(p *printer, r *comparison.Report) {
	if len(r.Gains) == 0 {
		return
	}
	p.printf("\n| plan 0 over | predicted gain | measured gain (95 %%) | achieved |\n|---|---:|---:|---:|\n")
	for _, g := range r.Gains {
		share := none
		if g.Predicted > 0 {
			share = units.Percent(g.Share)
		}
		p.printf("| plan %d, %s | %s | %s (%s..%s) | %s |\n", g.Over, cell(planTitle(&r.Plans[g.Over])), signed(g.Predicted), signed(g.Measured), signed(g.Lo), signed(g.Hi), share)
	}
}

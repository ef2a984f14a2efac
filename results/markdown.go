package results

import (
	"fmt"
	"io"
	"strings"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

// mostMarkdown is how many strata of a family the summary of a CI job lists.
const mostMarkdown = 12

// Markdown writes a report as a section that can be appended to the summary of
// a CI job: the verdict as its heading, families, strata from the worst on,
// what is broken, drift and warnings. It begins with an empty line.
func Markdown(w io.Writer, r *fit.Report) error {
	p := &printer{w: w}
	state, _, _ := outcome(r)
	p.printf("\n## evenkeel check: %s\n\n%s\n", state, cell(verdict(r)))
	if r.Simulated {
		p.printf("\n**SIMULATED**: %s.\n", origin(true))
	}
	markdownFamilies(p, r)
	markdownStrata(p, r)
	markdownDrift(p, r.Drift)
	var lines []string
	for _, m := range r.Missing {
		lines = append(lines, "no law in the profile: "+m)
	}
	markdownList(p, append(lines, unstamped(r.Warnings)...))
	return p.err
}

// MarkdownError writes the section of a check that could not judge: a job's summary without one
// looks like that of a job without a check.
func MarkdownError(w io.Writer, err error) error {
	p := &printer{w: w}
	p.printf("\n## evenkeel check: ERROR\n\nnothing was judged: %s\n", cell(err.Error()))
	return p.err
}

func markdownFamilies(p *printer, report *fit.Report) {
	if len(report.Rows) == 0 {
		return
	}
	p.printf("\n| family | on | points | median (95 %% bound) | p90 (95 %% bound) | bias | in 90 %% | limits | verdict |\n|---|---|---:|---:|---:|---:|---:|---:|---|\n")
	for _, r := range report.Rows {
		on := r.On
		if r.Part {
			on = "of which " + on
		}
		p.printf("| %s | %s | %d | %s | %s | %s | %s | %s | %s |\n", cell(string(r.Family)), cell(on), r.Points, bounded(r.Median, r.MedianUpper, r.Points),
			bounded(r.P90, r.P90Upper, r.Points), bias(-r.Bias, r.Points), percent(r.Coverage, r.Points), limits(r.Limit), emphasised(r.Verdict))
	}
	if text := coverageText(report.Covered); text != "" {
		p.printf("\n%s\n", cell(text))
	}
	markdownList(p, brokenRows(report))
}

func markdownStrata(p *printer, r *fit.Report) {
	if len(r.Strata) == 0 {
		return
	}
	var rows []fit.CheckedStratum
	for _, f := range fit.Families() {
		all := worstFirst(r.Strata, f)
		rows = append(rows, all[:min(mostMarkdown, len(all))]...)
	}
	if len(rows) > 0 {
		p.printf("\n| stratum | on | points | MAPE (95 %% bound) | P95 | bias | in 90 %% | noise | limit | verdict |\n|---|---|---:|---:|---:|---:|---:|---:|---|---|\n")
	}
	for _, s := range rows {
		p.printf("| %s | %s | %d | %s | %s | %s | %s | %s | %s | %s |\n", cell(stratumTitle(&s)), cell(s.On), s.Points, stratumMAPE(&s), units.Percent(s.P95),
			signed(s.Bias), units.Percent(s.Coverage), stratumFloor(&s), cell(limitCell(&s)), emphasised(s.Verdict))
	}
	if left := unlisted(r, mostMarkdown); left != "" {
		p.printf("\nStrata not listed: %s.\n", left)
	}
	var broken []string
	for i := range r.Strata {
		if s := &r.Strata[i]; s.Verdict == fit.Fail {
			broken = append(broken, fmt.Sprintf("%s: %s (limit %s: %s)", s, strings.Join(s.Broken, "; "), s.LimitID, s.Reason))
		}
	}
	markdownList(p, broken)
}

func limitCell(s *fit.CheckedStratum) string {
	if s.LimitID == "" {
		return none
	}
	return fmt.Sprintf("%s: %s", s.LimitID, boundText(s))
}

func markdownDrift(p *printer, d *fit.DriftReport) {
	if d == nil {
		return
	}
	p.printf("\nDrift from `%s` to `%s`: %s\n\n| on | shared | moved | shift | 99 %% interval | verdict |\n|---|---|---:|---:|---:|---|\n", d.From, d.To, d.Verdict)
	var lines []string
	for _, x := range d.Places {
		p.printf("| %s | %s | %d | %s | %s..%s | %s |\n", cell(x.On), sharedText(x), x.Moved, shift(x.Shift), shift(x.Lo), shift(x.Hi), x.Verdict)
		if x.Verdict != fit.Same {
			lines = append(lines, x.On+": "+x.Why+remedy(x.Cause))
		}
	}
	for _, e := range d.Environment {
		lines = append(lines, fmt.Sprintf("environment: %s was %s, is %s", e.Field, orNone(e.Was), orNone(e.Is)))
	}
	markdownList(p, lines)
}

func markdownList(p *printer, lines []string) {
	for i, l := range lines {
		if i == 0 {
			p.printf("\n")
		}
		p.printf("- %s\n", cell(l))
	}
}

// cell keeps a text from ending a cell of a table, or its row, early.
func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "\r", " ", "<", "&lt;").Replace(s)
}

func emphasised(v fit.Verdict) string {
	if v == fit.Fail {
		return "**FAIL**"
	}
	return string(v)
}

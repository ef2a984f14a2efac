package results

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Report prints what `check` found: every family on every device and group
// against its limits, the strata from the worst on, what drifted, what has no
// law, and the verdict in the last line. The limits apply to the upper 95 %
// bounds, which stand in parentheses. Long lists are cut, and say so.
func Report(w io.Writer, r *fit.Report) error { return report(w, r, mostStrata) }

// FullReport is Report with every stratum listed.
func FullReport(w io.Writer, r *fit.Report) error { return report(w, r, math.MaxInt) }

func report(w io.Writer, r *fit.Report, most int) error {
	p, n := &printer{w: w, further: r.Calibration}, &notes{}
	if len(r.Pairs) > 0 || r.Drift == nil {
		p.para("", fmt.Sprintf("%s accuracy: %s, in %s", stamp(r.Simulated), unfitted(r), judged(r)))
	} else {
		p.para("", fmt.Sprintf("%s drift of %s against %s", stamp(r.Simulated), r.Drift.To, r.Drift.From))
	}
	if r.Simulated {
		p.para("", "the times come from a simulated backend; no hardware was measured")
	}
	reportTable(p, n, r)
	strataTables(p, n, r, most)
	histograms(p, r)
	driftTables(p, r.Drift)
	missing(p, r)
	n.add(unstamped(r.Warnings)...)
	n.render(p)
	p.printf("\n")
	p.para("", verdict(r))
	return p.err
}

// unfitted counts the points of a report, which no law was fitted to as far as that can be told.
func unfitted(r *fit.Report) string {
	all := plural(len(r.Pairs), "point")
	switch r.Doubtful {
	case 0:
		return all + " that no law was fitted to"
	case len(r.Pairs):
		return all + ", to all of which laws may have been fitted"
	}
	return fmt.Sprintf("%s, to %d of which laws may have been fitted", all, r.Doubtful)
}

// judged counts the families of a report.
func judged(r *fit.Report) string {
	n := 0
	for _, row := range r.Rows {
		if !row.Part {
			n++
		}
	}
	if n == 1 {
		return "1 family of ops"
	}
	return fmt.Sprintf("%d families of ops", n)
}

func reportTable(p *printer, n *notes, report *fit.Report) {
	if len(report.Rows) == 0 {
		return
	}
	t := newTable(column{title: "family"}, column{title: "on", most: 15}, column{title: "n", number: true},
		column{title: "median error\n(95 % bound)", number: true}, column{title: "p90 error\n(95 % bound)", number: true},
		column{title: "bias", number: true}, column{title: "in 90 %\ninterval", number: true},
		column{title: "limits", number: true}, column{title: "verdict"})
	for _, r := range report.Rows {
		family := string(r.Family)
		if r.Part {
			family = "  of which"
		}
		t.row(family, r.On, fmt.Sprint(r.Points), bounded(r.Median, r.MedianUpper, r.Points), bounded(r.P90, r.P90Upper, r.Points),
			bias(-r.Bias, r.Points), percent(r.Coverage, r.Points), limits(r.Limit), rowVerdict(n, r, unmeasured(report, r), imported(report, r)))
	}
	p.printf("\n")
	t.render(p)
	p.para("", "errors are |log(predicted / measured)|; a positive bias predicts too long; limits are of the bounds of median and p90")
	if text := coverageText(report.Covered); text != "" {
		p.para("", text)
	}
	for _, line := range brokenRows(report) {
		p.para("FAIL ", line)
	}
}

// coverageText says what the limit of coverage is, and why; nothing where there is none.
func coverageText(l fit.CoverageLimit) string {
	if l.Least == 0 {
		return ""
	}
	return fmt.Sprintf("at least %.3g %% of a family's points, and of those of a stratum that has a limit, must lie inside the 90 %% interval, by the upper 95 %% bound of their share: %s", 100*l.Least, l.Reason)
}

// brokenRows names every broken limit of the families with its numbers.
func brokenRows(r *fit.Report) []string {
	var lines []string
	for _, row := range r.Rows {
		if row.Verdict == fit.Fail {
			lines = append(lines, fmt.Sprintf("%s on %s: %s", row.Family, row.On, strings.Join(row.Broken, "; ")))
		}
	}
	return lines
}

// bias prints the median of log(predicted/measured).
func bias(f float64, points int) string {
	if points == 0 {
		return none
	}
	return signed(f)
}

func bounded(f, upper float64, points int) string {
	if points == 0 {
		return none
	}
	return fmt.Sprintf("%s (%s)", units.Percent(f), units.Percent(upper))
}

func limits(l fit.Limit) string {
	return fmt.Sprintf("%.3g, %.3g %%", 100*l.Median, 100*l.P90)
}

// unmeasured counts the points of a row whose law is not a measured one of their own
// device or group.
func unmeasured(report *fit.Report, r fit.Row) int {
	count := 0
	for _, p := range report.Pairs {
		if p.Family == r.Family && (r.On == fit.AllDevices || p.On == r.On) && (p.Estimate.Source == costmodel.Transferred || p.Estimate.Source == costmodel.Assumed) {
			count++
		}
	}
	return count
}

// imported says whether all points of a row were imported.
func imported(report *fit.Report, r fit.Row) bool {
	return len(report.Imported) > 0 && !slices.ContainsFunc(report.Pairs, func(p fit.Pair) bool {
		return p.Family == r.Family && (r.On == fit.AllDevices || p.On == r.On) && !slices.Contains(report.Imported, p.On)
	})
}

// rowVerdict is a row's verdict with its footnotes; lent of its points outside are so
// because their law was borrowed or assumed.
func rowVerdict(n *notes, r fit.Row, lent int, imported bool) string {
	s := string(r.Verdict)
	switch r.Verdict {
	case fit.Fail:
		s = "FAIL"
	case fit.Insufficient:
		s = none
		if r.Part {
			break
		}
		if r.Points == 0 && lent > 0 {
			break // said below
		}
		s += n.mark(fmt.Sprintf("fewer than %d points: no verdict; %s", fit.MinPoints, furtherPoints(imported, "measure more: "+toMeasure)))
	}
	if lent > 0 {
		s += n.mark("the laws of some points were borrowed or assumed: their errors are no measured law's, are not in these numbers and have no limit; among the strata it is judged whether their intervals hold what they promise; " + furtherPoints(imported, "measure enough of the op for a law of its own, and fit: "+toMeasure))
	}
	if r.Outside > lent {
		s += n.mark("some points lie outside the fitted range: their error is an extrapolation's and is not in these numbers; " + furtherPoints(imported, "a longer calibration covers more: "+toMeasure))
	}
	return s
}

// missing lists the ops without a law. They are no footnote: nothing that needs
// them can be planned.
func missing(p *printer, r *fit.Report) {
	if len(r.Missing) == 0 {
		return
	}
	p.printf("\n%s of the recording without a law in the profile; to fit one: evenkeel fit\n", plural(len(r.Missing), "op"))
	for _, m := range r.Missing {
		p.para("  ", m)
	}
}

// outcome counts the verdicts of a report: of families, and of strata. A family is
// above its limits where any part of it is.
func outcome(r *fit.Report) (state string, families, strata map[fit.Verdict]int) {
	families, strata = map[fit.Verdict]int{}, map[fit.Verdict]int{}
	of := map[fit.Family]fit.Verdict{}
	for _, row := range r.Rows {
		if !row.Part || row.Verdict == fit.Fail {
			of[row.Family] = row.Verdict
		}
	}
	for _, v := range of {
		families[v]++
	}
	for _, s := range r.Strata {
		strata[s.Verdict]++
	}
	switch {
	case r.Refused():
		state = "FAIL"
	case r.Drift != nil && len(r.Pairs) == 0:
		state = strings.ToUpper(string(r.Drift.Verdict))
	case families[fit.Pass] == 0 && strata[fit.Pass] == 0:
		state = "NO VERDICT"
	default:
		state = "PASS"
	}
	return state, families, strata
}

func verdict(r *fit.Report) string {
	state, families, strata := outcome(r)
	s := fmt.Sprintf("verdict: %s (%s)", state, stamp(r.Simulated))
	if len(r.Pairs) > 0 || r.Drift == nil {
		s += ": " + counted(families, judged(r))
	}
	if len(r.Strata) > 0 {
		s += "; of the strata " + counted(strata, fmt.Sprint(len(r.Strata)))
	}
	if r.Drift != nil {
		s += fmt.Sprintf("; drift: %s", r.Drift.Verdict)
	}
	if r.Refused() && !r.Failed(false) {
		s += "; --strict: too few points to say, or no law, fails"
	}
	return s
}

func counted(count map[fit.Verdict]int, of string) string {
	s := fmt.Sprintf("%d of %s within their limits", count[fit.Pass], of)
	if count[fit.Pass]+count[fit.Fail] == 0 { // "0 within" would read as a failure
		s = fmt.Sprintf("none of %s judged", of)
	}
	if n := count[fit.Fail]; n > 0 {
		s += fmt.Sprintf(", %d above", n)
	}
	if n := count[fit.Insufficient]; n > 0 {
		s += fmt.Sprintf(", %d with too few points to say", n)
	}
	if n := count[fit.Ungated]; n > 0 {
		s += fmt.Sprintf(", %d without a limit", n)
	}
	return s
}

// bins of a histogram: the middle one is centred on 0, the ends are open.
const bins = 9

// histograms draws how the errors of each family are spread and to which side.
func histograms(p *printer, r *fit.Report) {
	logs := map[fit.Family][]float64{}
	var all []float64
	for _, pair := range r.Pairs {
		if finite(pair.Log()) {
			logs[pair.Family] = append(logs[pair.Family], -pair.Log())
			all = append(all, -pair.Log())
		}
	}
	if len(all) == 0 {
		return
	}
	width := binWidth(all)
	cols := []column{{title: "log(predicted / measured)"}}
	for b := range bins {
		cols = append(cols, column{title: binTitle(b, width), number: true})
	}
	t := newTable(cols...)
	for _, f := range fit.Families() {
		of := logs[f]
		if len(of) == 0 {
			continue
		}
		cells := []string{fmt.Sprintf("  %s (n = %d)", f, len(of))}
		for _, c := range binned(of, width) {
			cells = append(cells, binCell(c, len(of)))
		}
		t.row(cells...)
	}
	p.printf("\n")
	t.render(p)
}

// binWidth is the narrowest round width whose inner bins hold 19 of 20 errors.
func binWidth(logs []float64) float64 {
	width := 0.0
	for _, width = range []float64{0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5} {
		within := 0
		for _, l := range logs {
			if math.Abs(l) <= width*(bins/2) {
				within++
			}
		}
		if 20*within >= 19*len(logs) {
			break
		}
	}
	return width
}

func binned(logs []float64, width float64) [bins]int {
	var counts [bins]int
	for _, l := range logs {
		b := math.Floor(l/width+0.5) + bins/2
		counts[int(min(bins-1, max(0, b)))]++
	}
	return counts
}

func binTitle(b int, width float64) string {
	digits := 0
	if width < 0.01 || b == 0 || b == bins-1 {
		digits = 1
	}
	at := 100 * width * float64(b-bins/2)
	switch b {
	case 0:
		return fmt.Sprintf("<%+.*f %%", digits, at+50*width)
	case bins / 2:
		return "0 %"
	case bins - 1:
		return fmt.Sprintf(">%+.*f %%", digits, at-50*width)
	}
	return fmt.Sprintf("%+.*f %%", digits, at)
}

func binCell(count, of int) string {
	if count == 0 {
		return "."
	}
	return fmt.Sprintf("%.0f %%", 100*float64(count)/float64(of))
}

package results

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

// The elements of a JUnit report that CI systems agree on.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Skipped  int          `xml:"skipped,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Failure *junitMessage `xml:"failure,omitempty"`
		Error   *junitMessage `xml:"error,omitempty"`
		Skipped *junitMessage `xml:"skipped,omitempty"`
		Out     string        `xml:"system-out,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// JUnit writes a report as JUnit XML: a suite a family, a case a family, a part
// of it, a stratum and a place that may have drifted. What has no verdict is
// skipped, with the reason; judged strictly, what has too few points or no law fails.
func JUnit(w io.Writer, r *fit.Report) error {
	var suites []junitSuite
	for _, f := range fit.Families() {
		s := junitSuite{Name: "evenkeel.check." + string(f)}
		for _, row := range r.Rows {
			if row.Family == f {
				s.Cases = append(s.Cases, familyCase(row, r))
			}
		}
		for _, x := range worstFirst(r.Strata, f) {
			s.Cases = append(s.Cases, stratumCase(&x, r))
		}
		suites = append(suites, s)
	}
	suites = append(suites, driftSuite(r.Drift), missingSuite(r.Missing, r.Strict))
	return writeJUnit(w, suites)
}

// JUnitError writes the report of a check that could not judge, so that a job
// which reads only the file does not take its absence for success.
func JUnitError(w io.Writer, err error) error {
	return writeJUnit(w, []junitSuite{{Name: "evenkeel.check", Cases: []junitCase{{
		Class: "check", Name: "check could judge", Error: &junitMessage{Message: err.Error()},
	}}}})
}

func familyCase(row fit.Row, r *fit.Report) junitCase {
	c := junitCase{Class: string(row.Family), Name: fmt.Sprintf("family %s on %s", row.Family, row.On)}
	if row.Part {
		c.Name = fmt.Sprintf("family %s, of which %s", row.Family, row.On)
	}
	if row.Points > 0 {
		c.Out = fmt.Sprintf("%s, %d outside the fitted range; median %s, p90 %s, p95 %s, bias %s, %s inside the 90 %% interval (upper 95 %% bound %s)",
			plural(row.Points, "point"), row.Outside, bounded(row.Median, row.MedianUpper, row.Points), bounded(row.P90, row.P90Upper, row.Points),
			units.Percent(row.P95), signed(-row.Bias), units.Percent(row.Coverage), units.Percent(row.CoverageUpper))
	}
	switch row.Verdict {
	case fit.Fail:
		c.Failure = &junitMessage{Message: strings.Join(row.Broken, "; "), Text: withCoverage(c.Out, r)}
	case fit.Insufficient:
		why := tooFew(row.Points)
		if row.Points == 0 {
			why = fmt.Sprintf("no limit applies: %s outside the fitted range, or of laws that were borrowed or assumed; see the strata", plural(row.Outside, "point"))
		}
		c.undecided(why, r.Strict && !row.Part)
	}
	return c
}

// withCoverage puts the limit of coverage and its reason below a text.
func withCoverage(text string, r *fit.Report) string {
	return strings.TrimSuffix(text+"\n"+coverageText(r.Covered), "\n")
}

// undecided says why a case has no verdict, which a strict check fails for.
func (c *junitCase) undecided(why string, strict bool) {
	if strict {
		c.Failure = &junitMessage{Message: "--strict: " + why}
		return
	}
	c.Skipped = &junitMessage{Message: why}
}

func tooFew(points int) string {
	return fmt.Sprintf("insufficient: %s, a verdict needs %d", plural(points, "point"), fit.MinPoints)
}

func stratumCase(s *fit.CheckedStratum, r *fit.Report) junitCase {
	c := junitCase{Class: string(s.Family), Name: s.String(), Out: stratumNumbers(s)}
	switch s.Verdict {
	case fit.Fail:
		c.Failure = &junitMessage{Message: strings.Join(s.Broken, "; "), Text: withCoverage(limitText(s), r)}
	case fit.Insufficient:
		c.undecided(tooFew(s.Points), r.Strict)
	case fit.Ungated:
		c.Skipped = &junitMessage{Message: "no limit applies"}
		if s.LimitID != "" {
			c.Skipped.Message = limitText(s)
		}
	}
	return c
}

func stratumNumbers(s *fit.CheckedStratum) string {
	text := fmt.Sprintf("%s; median %s, MAPE %s, P95 %s, bias %s, %s inside the 90 %% interval",
		plural(s.Points, "point"), units.Percent(s.Median), units.Percent(s.MAPE), units.Percent(s.P95), signed(s.Bias), units.Percent(s.Coverage))
	if u := s.Upper; u != nil {
		text += fmt.Sprintf("; upper 95 %% bounds: MAPE %s, P95 %s, |bias| %s, inside %s", units.Percent(u.MAPE), units.Percent(u.P95), units.Percent(u.Bias), units.Percent(u.Coverage))
	}
	if f := s.Floor; f != nil {
		text += fmt.Sprintf("; noise of the repeats of %s: MAPE %s", plural(f.Points, "point"), units.Percent(f.MAPE))
	}
	return text
}

func driftSuite(d *fit.DriftReport) junitSuite {
	s := junitSuite{Name: "evenkeel.check.drift"}
	if d == nil {
		return s
	}
	for _, x := range d.Places {
		c := junitCase{Class: "drift", Name: "drift of " + x.On, Out: fmt.Sprintf("%s; %d moved; median shift %s in %s..%s", sharedText(x), x.Moved, shift(x.Shift), shift(x.Lo), shift(x.Hi))}
		switch x.Verdict {
		case fit.Drifted:
			c.Failure = &junitMessage{Message: x.Why + remedy(x.Cause)}
		case fit.Ambiguous:
			c.Skipped = &junitMessage{Message: "ambiguous: " + x.Why}
		}
		s.Cases = append(s.Cases, c)
	}
	return s
}

func missingSuite(missing []string, strict bool) junitSuite {
	s := junitSuite{Name: "evenkeel.check.missing"}
	for _, m := range missing {
		c := junitCase{Class: "missing", Name: m}
		c.undecided("the profile has no law for it", strict)
		s.Cases = append(s.Cases, c)
	}
	return s
}

// writeJUnit counts the cases, leaves empty suites out and writes the document.
func writeJUnit(w io.Writer, suites []junitSuite) error {
	all := junitSuites{Name: "evenkeel check"}
	for _, s := range suites {
		if len(s.Cases) == 0 {
			continue
		}
		for _, c := range s.Cases {
			s.Tests++
			switch {
			case c.Failure != nil:
				s.Failures++
			case c.Error != nil:
				s.Errors++
			case c.Skipped != nil:
				s.Skipped++
			}
		}
		all.Tests, all.Failures, all.Errors, all.Skipped = all.Tests+s.Tests, all.Failures+s.Failures, all.Errors+s.Errors, all.Skipped+s.Skipped
		all.Suites = append(all.Suites, s)
	}
	data, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, xml.Header+string(data)+"\n")
	return err
}

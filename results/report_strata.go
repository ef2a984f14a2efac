package results

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

// mostStrata is how many strata of a family are listed before the list is cut.
const mostStrata = 8

// strataTables lists the strata of every family from the worst on, and counts
// those that a long list leaves out.
func strataTables(p *printer, n *notes, r *fit.Report, most int) {
	if len(r.Strata) == 0 {
		return
	}
	t := newTable(column{title: "stratum", most: 17}, column{title: "on", most: 13}, column{title: "n", number: true},
		column{title: "MAPE\n(95 % bound)", number: true}, column{title: "P95", number: true}, column{title: "bias", number: true},
		column{title: "in 90 %", number: true}, column{title: "noise", number: true}, column{title: "verdict"})
	left := 0
	for _, f := range fit.Families() {
		all := worstFirst(r.Strata, f)
		shown := all[:min(most, len(all))]
		for _, s := range shown {
			t.row(stratumTitle(&s), s.On, fmt.Sprint(s.Points), stratumMAPE(&s), percent(s.P95, s.Points), bias(s.Bias, s.Points),
				percent(s.Coverage, s.Points), stratumFloor(&s), stratumVerdict(n, &s))
		}
		left += len(all) - len(shown)
	}
	p.printf("\n")
	t.render(p)
	p.para("", "noise is what the points' own repeats scatter, the MAPE of a perfect law")
	brokenLimits(p, r)
	if left > 0 {
		p.para("", fmt.Sprintf("strata not listed: %s; to list them: evenkeel check --all", unlisted(r, most)))
	}
}

// worstFirst orders the strata of a family: what failed, then what passed, by
// how near the worst bound is to its limit, then what has no verdict. Parts stand
// below the stratum that they are of, which comes where the worst of them would.
func worstFirst(strata []fit.CheckedStratum, f fit.Family) []fit.CheckedStratum {
	var of []fit.CheckedStratum
	worst := map[string]fit.CheckedStratum{}
	for _, s := range strata {
		if s.Family != f {
			continue
		}
		of = append(of, s)
		if w, ok := worst[wholeOf(s)]; !ok || byVerdict(s, w) < 0 {
			worst[wholeOf(s)] = s
		}
	}
	slices.SortStableFunc(of, func(a, b fit.CheckedStratum) int {
		if wholeOf(a) != wholeOf(b) {
			return byVerdict(worst[wholeOf(a)], worst[wholeOf(b)])
		}
		return cmp.Or(wholeFirst(a)-wholeFirst(b), byVerdict(a, b))
	})
	return of
}

// wholeOf names what a stratum and its parts have in common.
func wholeOf(s fit.CheckedStratum) string {
	return strings.Join([]string{s.On, string(s.Op), s.Band, string(s.Source)}, "|")
}

func wholeFirst(s fit.CheckedStratum) int {
	if s.Part {
		return 1
	}
	return 0
}

// byVerdict puts the worse first; of two alike the order of their names decides, so that
// parts stay with their own.
func byVerdict(a, b fit.CheckedStratum) int {
	place := []fit.Verdict{fit.Fail, fit.Pass, fit.Insufficient, fit.Ungated}
	return cmp.Or(cmp.Compare(slices.Index(place, a.Verdict), slices.Index(place, b.Verdict)), cmp.Compare(b.Excess(), a.Excess()), cmp.Compare(b.MAPE, a.MAPE), cmp.Compare(wholeOf(a), wholeOf(b)))
}

// unlisted counts what the list leaves out, by verdict.
func unlisted(r *fit.Report, most int) string {
	count := map[fit.Verdict]int{}
	for _, f := range fit.Families() {
		all := worstFirst(r.Strata, f)
		for _, s := range all[min(most, len(all)):] {
			count[s.Verdict]++
		}
	}
	var parts []string
	for _, v := range []fit.Verdict{fit.Fail, fit.Pass, fit.Insufficient, fit.Ungated} {
		if count[v] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[v], v))
		}
	}
	return strings.Join(parts, ", ")
}

func stratumTitle(s *fit.CheckedStratum) string {
	title := s.Title()
	if s.Part {
		title = fmt.Sprintf("%s of which %s", title, s.Variant)
	}
	if s.Source != costmodel.Interpolated {
		title += " " + string(s.Source)
	}
	return title
}

func stratumMAPE(s *fit.CheckedStratum) string {
	if s.Upper == nil {
		return units.Percent(s.MAPE)
	}
	return bounded(s.MAPE, s.Upper.MAPE, s.Points)
}

func stratumFloor(s *fit.CheckedStratum) string {
	if s.Floor == nil {
		return none
	}
	return units.Percent(s.Floor.MAPE)
}

func stratumVerdict(n *notes, s *fit.CheckedStratum) string {
	v := string(s.Verdict)
	if s.Verdict == fit.Fail {
		v = "FAIL"
	}
	if s.LimitID == "" || s.Verdict == fit.Insufficient {
		return v
	}
	return v + n.mark(limitText(s))
}

// limitText says which entry of the limits applies, what it allows and why.
func limitText(s *fit.CheckedStratum) string {
	return fmt.Sprintf("limit %s: %s: %s", s.LimitID, boundText(s), s.Reason)
}

func boundText(s *fit.CheckedStratum) string {
	b := s.Limit
	var parts []string
	for _, l := range []struct {
		name  string
		value float64
	}{{"MAPE", b.MAPE}, {"P95", b.P95}, {"|bias|", b.Bias}} {
		if l.value > 0 {
			parts = append(parts, fmt.Sprintf("%s %.3g %%", l.name, 100*l.value))
		}
	}
	if s.Least > 0 {
		parts = append(parts, fmt.Sprintf("at least %.3g %% inside", 100*s.Least))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// brokenLimits names every broken limit with its numbers, however long the list.
func brokenLimits(p *printer, r *fit.Report) {
	for i := range r.Strata {
		if s := &r.Strata[i]; s.Verdict == fit.Fail {
			p.para("FAIL ", fmt.Sprintf("%s: %s (limit %s)", s, strings.Join(s.Broken, "; "), s.LimitID))
		}
	}
}

package results

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Study prints how well laws, and simpler forms beside them, predict shapes
// that were kept from their fit: the median over the laws of every family first,
// then law by law.
func Study(w io.Writer, simulated bool, splits []fit.Split, rows []fit.StudyRow) error {
	p := &printer{w: w}
	p.para("", stamp(simulated)+" study of laws on held-out points")
	p.para("", "errors |predicted / measured - 1| on points that no fit saw, as mean, median and 95th percentile; ours in the first row of each block, simpler forms fitted to the same points below it")
	for _, s := range splits {
		some := slices.DeleteFunc(slices.Clone(rows), func(r fit.StudyRow) bool { return r.Split != s.Name })
		if len(some) == 0 {
			continue
		}
		p.printf("\n")
		p.para("", fmt.Sprintf("%s: %s", s.Name, s.Doc))
		studySummary(p, some)
		p.printf("\n")
		studyTable(p, some)
	}
	return p.err
}

// ours names the form that fit takes, whichever it is for a law.
const ours = "this tool's law"

func formOf(r fit.StudyRow) string {
	if r.Ours {
		return ours
	}
	return r.Form
}

// studySummary gives the median over the laws of each family and form.
func studySummary(p *printer, rows []fit.StudyRow) {
	t := newTable(column{title: "median over laws"}, column{title: "form"}, column{title: "laws", number: true},
		column{title: "mean", number: true}, column{title: "median", number: true}, column{title: "p95", number: true}, column{title: "in 90 %\ninterval", number: true})
	for _, family := range fit.Families() {
		of := slices.DeleteFunc(slices.Clone(rows), func(r fit.StudyRow) bool { return fit.FamilyOf(r.Op) != family })
		var forms []string
		for _, r := range of {
			if f := formOf(r); !slices.Contains(forms, f) {
				forms = append(forms, f)
			}
		}
		for i, form := range forms {
			name := string(family)
			if i > 0 {
				name = ""
			}
			t.row(append([]string{name, form}, medians(of, form)...)...)
		}
	}
	t.render(p)
}

func medians(rows []fit.StudyRow, form string) []string {
	var mape, median, p95, cover []float64
	for _, r := range rows {
		if formOf(r) == form {
			mape, median, p95 = append(mape, r.MAPE), append(median, r.Median), append(p95, r.P95)
			cover = append(cover, r.Coverage)
		}
	}
	cells := []string{fmt.Sprint(len(mape)), units.Percent(stats.Median(mape)), units.Percent(stats.Median(median)), units.Percent(stats.Median(p95)), none}
	if form == ours {
		cells[4] = units.Percent(stats.Median(cover))
	}
	return cells
}

func studyTable(p *printer, rows []fit.StudyRow) {
	t := newTable(column{title: "law", most: 52}, column{title: "form"}, column{title: "fitted", number: true}, column{title: "held", number: true},
		column{title: "mean", number: true}, column{title: "median", number: true}, column{title: "p95", number: true}, column{title: "in 90 %\ninterval", number: true})
	for _, r := range rows {
		name, cover := "", none
		if r.Ours {
			name = strings.TrimSpace(fmt.Sprintf("%s: %s %s", r.On, r.Op, r.Variant))
			cover = units.Percent(r.Coverage)
		}
		t.row(name, r.Form, fmt.Sprint(r.Fitted), fmt.Sprint(r.Held), units.Percent(r.MAPE), units.Percent(r.Median), units.Percent(r.P95), cover)
	}
	t.render(p)
}

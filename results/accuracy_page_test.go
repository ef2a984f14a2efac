package results

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/stats"
)

// AccuracyPage writes the body of the accuracy page in Markdown: what was aimed
// at, for every split the median over the laws of a kind of each form's errors,
// and every law.
func AccuracyPage(w io.Writer, laws []StudiedLaw) error {
	p := &printer{w: w}
	accuracyAims(p, laws)
	accuracyCoverage(p, laws)
	for _, s := range fit.Splits() {
		of := slices.DeleteFunc(slices.Clone(laws), func(l StudiedLaw) bool { return l.Split != s.Name })
		if len(of) == 0 {
			continue
		}
		p.printf("\n## %s\n\nHeld out: %s.\n", splitTitle(s.Name), s.Doc)
		accuracySummary(p, of)
		for _, kind := range accuracyKinds() {
			accuracyLaws(p, kind, ofKind(of, kind))
		}
	}
	return p.err
}

// aim is what the laws of a kind were to reach on a split, set before they were
// written, and what the best earlier study of the same tables had reached.
type aim struct {
	split, kind string
	Errors
	study string
}

func aims() []aim {
	return []aim{
		{"interp", causalAttention, Errors{0.018, 0.011, 0.06}, "1.8 / 1.1 / 6 as a black box, 4.6 with physics"},
		{"some-heads", causalAttention, Errors{0.026, 0.019, 0.08}, "2.9"},
		{"heads", causalAttention, Errors{0.026, 0.019, 0.08}, "none; its own held out {24, 40, 96}"},
		{"longer", causalAttention, Errors{0.030, 0.023, 0.09}, "3.1 to 3.5"},
		{"interp", fullAttention, Errors{0.025, 0.018, 0.085}, "2.6"},
		{"longer", fullAttention, Errors{0.028, 0.022, 0.08}, "2.9"},
		{"interp", matrixProducts, Errors{0.035, 0.022, 0.11}, "3.8"},
		{"longer", matrixProducts, Errors{0.055, 0.040, 0.17}, "6.2"},
		{"interp", libraryNVLink, Errors{0.05, 0.025, 0.17}, "5.8"},
		{"longer", libraryNVLink, Errors{0.10, 0.05, 0.25}, "12 to 30"},
		{"ranks", libraryNVLink, Errors{0.08, 0.06, 0.22}, "9 to 12"},
	}
}

// accuracyAims sets what is reached beside what was aimed at.
func accuracyAims(p *printer, laws []StudiedLaw) {
	p.printf("\n## Against what was aimed at\n\nMAPE / median / P95 in %%, the medians over laws. The aim was set before the laws were written; the study is the best earlier one of the same tables, in Python, with a hold-out of its own.\n\n")
	p.printf("| held out | aim | reached | log-log table | the study |  |\n|---|---|---|---|---|---|\n")
	for _, a := range aims() {
		of := slices.DeleteFunc(ofKind(laws, a.kind), func(l StudiedLaw) bool { return l.Split != a.split })
		got := overLaws(of, ours)
		if got.laws == 0 {
			continue
		}
		p.printf("| %s, %s | %s | **%s** | %s | %s | %s |\n", a.kind, a.split, a.Errors, got.Errors, overLaws(of, "log-log table").Errors, a.study, a.met(got.Errors))
	}
}

// met says in words which of the three numbers are reached, as they are printed.
func (a aim) met(got Errors) string {
	var missed []string
	for i, name := range [...]string{"MAPE", "median", "P95"} {
		if asPrinted(got[i]) > asPrinted(a.Errors[i]) {
			missed = append(missed, name)
		}
	}
	if len(missed) == 0 {
		return "reached"
	}
	return "missed: " + strings.Join(missed, ", ")
}

// asPrinted is an error in percent with the digits that the page shows.
func asPrinted(x float64) float64 {
	v, err := strconv.ParseFloat(strconv.FormatFloat(100*x, 'f', 1, 64), 64)
	if err != nil {
		return x // FormatFloat writes what ParseFloat reads
	}
	return v
}

// String prints the three in percent: "1.8 / 1.1 / 6.0".
func (e Errors) String() string {
	return fmt.Sprintf("%.1f / %.1f / %.1f", 100*e.MAPE(), 100*e.Median(), 100*e.P95())
}

// accuracyCoverage counts the strata whose intervals hold what they promise.
func accuracyCoverage(p *printer, laws []StudiedLaw) {
	strata := coveredStrata(laws)
	if len(strata) == 0 {
		return
	}
	p.printf("\n## Coverage of the 90 %% interval\n\nOf strata with %d held-out points or more: an op on a device in one band of sizes. So few points scatter: of intervals that hold 90 %% of all points, each independent of the others, as many strata as *at best* says would lie between 85 and 95 %%.\n\n", fewestCovered)
	p.printf("| held out | strata | below 85 %% | 85 to 95 %% | at best | above 95 %% | lowest | of all points |\n|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, kind := range accuracyKinds() {
		for _, split := range fit.Splits() {
			of := slices.DeleteFunc(slices.Clone(strata), func(c covered) bool { return c.kind != kind || c.split != split.Name })
			if len(of) > 0 {
				p.printf("| %s, %s | %s |\n", kind, split.Name, strings.Join(coverageCells(of), " | "))
			}
		}
	}
}

func coverageCells(strata []covered) []string {
	var below, within, above, in, held int
	lowest, chance := 1.0, 0.0
	for _, c := range strata {
		chance += c.chance()
		switch lowest = min(lowest, c.share()); {
		case c.share() < leastCoverage:
			below++
		case c.share() > mostCoverage:
			above++
		default:
			within++
		}
		in, held = in+c.in, held+c.held
	}
	return []string{
		strconv.Itoa(len(strata)), strconv.Itoa(below), strconv.Itoa(within), strconv.FormatFloat(chance, 'f', 0, 64), strconv.Itoa(above),
		share(lowest), share(float64(in) / float64(held)),
	}
}

func splitTitle(name string) string {
	switch name {
	case "interp":
		return "Between measured shapes (interp)"
	case "heads":
		return "Head counts never measured (heads)"
	case "some-heads":
		return "Some head counts never measured (some-heads)"
	case "longer":
		return "Longer and larger than measured (longer)"
	case "ranks":
		return "Groups larger than measured (ranks)"
	}
	return name
}

func ofKind(laws []StudiedLaw, kind string) []StudiedLaw {
	return slices.DeleteFunc(slices.Clone(laws), func(l StudiedLaw) bool { return l.Kind() != kind })
}

// accuracySummary is the medians over the laws of every kind, a row a form.
func accuracySummary(p *printer, laws []StudiedLaw) {
	p.printf("\n| median over laws | form | laws | points | MAPE | median | P95 | in 90 %% interval |\n|---|---|---:|---:|---:|---:|---:|---:|\n")
	for _, kind := range accuracyKinds() {
		of := ofKind(laws, kind)
		for i, form := range formsOf(of) {
			m := overLaws(of, form)
			name, in := "", none
			if i == 0 {
				name, in = "**"+kind+"**", share(m.coverage)
			}
			p.printf("| %s | %s | %d | %d | %s | %s | %s | %s |\n", name, formTitle(form), m.laws, m.points, share(m.MAPE()), share(m.Median()), share(m.P95()), in)
		}
	}
}

// formsOf lists the forms that laws were compared in, ours first.
func formsOf(laws []StudiedLaw) []string {
	var forms []string
	for _, l := range laws {
		for f := range l.Forms {
			if !slices.Contains(forms, f) {
				forms = append(forms, f)
			}
		}
	}
	slices.SortFunc(forms, func(a, b string) int {
		return cmp.Or(cmp.Compare(formPlace(a), formPlace(b)), cmp.Compare(a, b))
	})
	return forms
}

func formPlace(form string) int {
	order := []string{ours, coreAlone, "log-log table", "roofline", "a + b FLOPs", "alpha_beta"}
	if i := slices.Index(order, form); i >= 0 {
		return i
	}
	return len(order)
}

// formTitle says in words what a form is called by its formula.
func formTitle(form string) string {
	if form == "alpha_beta" {
		return "alpha + bytes / rate"
	}
	return form
}

// medianLaw is the medians over laws of what one form reaches.
type medianLaw struct {
	Errors
	coverage     float64
	laws, points int
}

func overLaws(laws []StudiedLaw, form string) medianLaw {
	var mape, median, p95, coverage []float64
	m := medianLaw{}
	for _, l := range laws {
		if f, ok := l.Forms[form]; ok {
			mape, median, p95, coverage = append(mape, f.MAPE()), append(median, f.Median()), append(p95, f.P95()), append(coverage, l.Coverage)
			m.laws, m.points = m.laws+1, m.points+l.Held
		}
	}
	if m.laws == 0 {
		return m
	}
	m.coverage = stats.Median(coverage)
	m.Errors = Errors{stats.Median(mape), stats.Median(median), stats.Median(p95)}
	return m
}

// share prints an error with one digit: all of a column's are comparable then.
func share(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// accuracyLaws lists the laws of a kind, folded away under a line.
func accuracyLaws(p *printer, kind string, laws []StudiedLaw) {
	if len(laws) == 0 {
		return
	}
	forms := slices.DeleteFunc(formsOf(laws), func(f string) bool { return f == ours })
	p.printf("\n<details><summary>%s: %s</summary>\n\n| law | fitted | held | MAPE | median | P95 | in 90 %% |", kind, plural(len(laws), "law"))
	for _, f := range forms {
		p.printf(" %s |", formTitle(f))
	}
	p.printf("\n|---|---:|---:|---:|---:|---:|---:|%s\n", strings.Repeat("---:|", len(forms)))
	for _, l := range laws {
		f := l.Forms[ours]
		p.printf("| %s | %d | %d | **%s** | %s | %s | %s |", cell(l.String()), l.Fitted, l.Held, share(f.MAPE()), share(f.Median()), share(f.P95()), share(l.Coverage))
		for _, name := range forms {
			if other, ok := l.Forms[name]; ok {
				p.printf(" %s |", share(other.MAPE()))
			} else {
				p.printf(" %s |", none)
			}
		}
		p.printf("\n")
	}
	p.printf("\n</details>\n")
}

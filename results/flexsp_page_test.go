package results

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/evenkeel/evenkeel/internal/units"
)

// joinFlexSP adds flexsp's plans to the lines of their batches.
func joinFlexSP(t testing.TB, lines []flexLine, rows []flexspRow) {
	t.Helper()
	at := map[string]int{}
	for i, l := range lines {
		at[l.key()] = i
	}
	for _, r := range rows {
		i, known := at[r.key()]
		if !known {
			t.Fatalf("flexsp.csv: %s is not in batches.csv; run docs/flex.sh", r.key())
		}
		if lines[i].Tokens != r.tokens || lines[i].Longest != r.longest {
			t.Fatalf("flexsp.csv: %s is another batch: %d tokens, %d in the longest sequence, and not %d, %d", r.key(), r.tokens, r.longest, lines[i].Tokens, lines[i].Longest)
		}
		lines[i].Time["flexsp"], lines[i].Planning["flexsp"], lines[i].limit = r.time, r.spent, r.limit
	}
}

// flexspLines are the lines that flexsp planned too.
func flexspLines(lines []flexLine) []flexLine {
	var all []flexLine
	for _, l := range lines {
		if _, ok := l.Time["flexsp"]; ok {
			all = append(all, l)
		}
	}
	return all
}

func flexspPage(w io.Writer, lines []flexLine) {
	fmt.Fprint(w, `
### flexsp

flexsp is ours after the paper and its released code: the same micro-batches, buckets
and programme, with HiGHS in the place of SCIP. HiGHS runs as WebAssembly, on one
core, and begins with the best of the released code's homogeneous starts and of some
more that are never worse. The limit is processor time of each programme, so that a
busy machine takes none of it. Programmes that cannot matter are not solved: of
numbers of micro-batches whose lower bound is beyond the best plan. The time of the
plan is as if they had been.

"Not slower" counts the batches where our step is not the slower one; the ratio is
flexsp's step over ours. Processor time is what flexsp took for a batch, its engine's
compilation of the first one included.

| lengths | batches planned | limit | not slower | ratio least, mean, most | processor time median, most |
| --- | --- | --- | --- | --- | --- |
`)
	for _, g := range flexGroups(lines) {
		if g[0].family == "published" {
			flexspPageRow(w, g[0].lengths, g)
		}
	}
	flexspPageRow(w, "all", published(lines))
}

// published are the lines at published coefficients.
func published(lines []flexLine) []flexLine {
	return slices.DeleteFunc(slices.Clone(lines), func(l flexLine) bool { return l.family != "published" })
}

func flexspPageRow(w io.Writer, name string, g []flexLine) {
	planned := flexspLines(g)
	if len(planned) == 0 {
		fmt.Fprintf(w, "| %s | 0 of %d | | | | |\n", name, len(g))
		return
	}
	r := ratios(planned, "flexsp")
	spent := flexQuantiles(planningOf(planned, "flexsp"), 0.5, 1)
	fmt.Fprintf(w, "| %s | %d of %d | %s | %d | %.3f, %.3f, %.3f | %.0f, %.0f s |\n", name, len(planned), len(g), flexspLimits(planned),
		notSlower(r), slices.Min(r), stat.Mean(r, nil), slices.Max(r), spent[0]/1e3, spent[1]/1e3)
}

// notSlower counts the ratios at which ours is not the slower step, but for the
// digits that the tables have.
func notSlower(ratios []float64) int {
	n := 0
	for _, r := range ratios {
		if r >= 1-1e-8 {
			n++
		}
	}
	return n
}

// flexspLimits is the processor time that programmes had, from the least to the most.
func flexspLimits(lines []flexLine) string {
	var all []time.Duration
	for _, l := range lines {
		all = append(all, l.limit)
	}
	least, most := slices.Min(all), slices.Max(all)
	if least == most {
		return least.String()
	}
	return fmt.Sprintf("%v to %v", least, most)
}

// flexspGiven says how many batches of a family flexsp planned, and in what time.
func flexspGiven(lines []flexLine, family string) string {
	of := slices.DeleteFunc(slices.Clone(lines), func(l flexLine) bool { return l.family != family })
	planned := flexspLines(of)
	how := fmt.Sprintf("%d of the %d", len(planned), len(of))
	switch len(planned) {
	case 0:
		return "none of them"
	case len(of):
		how = "all of them"
	}
	return how + ", with " + flexspLimits(planned) + " of processor time for each programme"
}

// flexspStands checks what is claimed over flexsp on the batches that it has
// planned, however many: ours is never the slower one, and of the published ones 5 %
// faster on average.
func flexspStands(t *testing.T, lines []flexLine) {
	t.Helper()
	planned := flexspLines(lines)
	if len(planned) == 0 {
		return
	}
	for _, l := range planned {
		if notSlower(ratios([]flexLine{l}, "flexsp")) == 0 {
			t.Errorf("%s: flexsp takes %v, ours %v", l.key(), l.Time["flexsp"], l.Time["evenkeel"])
		}
	}
	if mean := stat.Mean(ratios(published(planned), "flexsp"), nil); mean < 1.05 {
		t.Errorf("flexsp takes %.3f times ours on average: want 1.05", mean)
	}
}

// A table of any part of the batches makes a page.
func TestFlexSPPageOfAPart(t *testing.T) {
	line := func(batch int, flexsp, ours units.Seconds) flexLine {
		l := flexLine{family: "published", lengths: "w", batch: batch, limit: 10 * time.Second}
		l.Time, l.Planning = map[string]units.Seconds{"evenkeel": ours}, map[string]time.Duration{}
		if flexsp > 0 {
			l.Time["flexsp"], l.Planning["flexsp"] = flexsp, time.Minute
		}
		return l
	}
	for want, lines := range map[string][]flexLine{
		"| all | 0 of 2 | | | | |\n":                                    {line(0, 0, 2), line(1, 0, 3)},
		"| all | 2 of 3 | 10s | 1 | 0.967, 1.033, 1.100 | 60, 60 s |\n": {line(0, 2.2, 2), line(1, 0, 3), line(2, 2.9, 3)},
	} {
		var page bytes.Buffer
		flexspPage(&page, lines)
		if !strings.Contains(page.String(), want) {
			t.Errorf("no line %q in\n%s", want, page.String())
		}
	}
}

// What is written is read again, by setting and batch in whatever order it was made,
// and joins the rows of the same batches.
func TestFlexSPTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flexsp.csv")
	if rows := readFlexSP(t, path); rows != nil {
		t.Errorf("no file: %v", rows)
	}
	var want []flexspRow
	for _, s := range flexSettings()[:2] {
		for i := range 3 {
			want = append(want, flexspRow{s.name, s.lengths, i, 1000, 900, 10 * time.Second, 1.25, 2, 20 * time.Second})
		}
	}
	mixed := slices.Clone(want)
	slices.Reverse(mixed)
	sortFlexSP(mixed)
	writeTable(t, path, flexspHeader(), mixed, flexspRow.fields)
	if got := readFlexSP(t, path); !slices.Equal(got, want) {
		t.Errorf("%v: want %v", got, want)
	}
	line := flexLine{family: "published", setting: want[1].setting, lengths: want[1].lengths, batch: 1}
	line.Tokens, line.Longest, line.Time, line.Planning = 1000, 900, map[string]units.Seconds{}, map[string]time.Duration{}
	lines := []flexLine{line}
	joinFlexSP(t, lines, want[1:2])
	if lines[0].Time["flexsp"] != 1.25 || lines[0].limit != 10*time.Second || len(flexspLines(lines)) != 1 {
		t.Errorf("joined: %+v", lines[0])
	}
	if from, to := flexspRange(t, "3-7"); from != 3 || to != 7 {
		t.Errorf("3-7 is %d to %d", from, to)
	}
	if from, to := flexspRange(t, "5"); from != 5 || to != 5 {
		t.Errorf("5 is %d to %d", from, to)
	}
}

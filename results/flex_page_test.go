package results

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// flexLine is a row with the family and setting it belongs to.
type flexLine struct {
	family, setting, lengths string
	batch                    int
	limit                    time.Duration // processor time of each of flexsp's programmes
	flexRow
}

func (l flexLine) key() string {
	return fmt.Sprintf("%s|%s|%s|%d", l.family, l.setting, l.lengths, l.batch)
}

// readFlex reads the table and adds what flexsp's says of the same batches.
func readFlex(t testing.TB, dir string) []flexLine {
	t.Helper()
	all := readBatches(t, dir)
	joinFlexSP(t, all, readFlexSP(t, filepath.Join(dir, "flexsp.csv")))
	return all
}

// readBatches reads the table, of which rows may be missing.
func readBatches(t testing.TB, dir string) []flexLine {
	t.Helper()
	path := filepath.Join(dir, "batches.csv")
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{}
	for i, name := range lines[0] {
		column[name] = i
	}
	for _, name := range flexHeader() {
		if _, ok := column[name]; !ok {
			t.Fatalf("%s has no column %s; remove it and run docs/flex.sh again", path, name)
		}
	}
	var all []flexLine
	for _, f := range lines[1:] {
		all = append(all, readFlexLine(t, column, f))
	}
	sortFlex(all)
	return all
}

func readFlexLine(t testing.TB, column map[string]int, f []string) flexLine {
	t.Helper()
	number := func(name string) float64 {
		s := f[column[name]]
		if s == "" {
			return 0
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	l := flexLine{family: f[column["family"]], setting: f[column["setting"]], lengths: f[column["lengths"]], batch: int(number("batch"))}
	l.Tokens, l.Longest, l.Micro = units.Tokens(number("length_tokens")), units.Tokens(number("longest_tokens")), int(number("micro_batches"))
	l.Time, l.Planning = map[string]units.Seconds{}, map[string]time.Duration{}
	for _, s := range flexStrategies() {
		if v := number(s + "_s"); v > 0 {
			l.Time[s] = units.Seconds(v)
		}
	}
	l.Bound = units.Seconds(number("lower_bound_s"))
	for _, s := range flexPlanners() {
		if v := number(s + "_planning_s"); v > 0 {
			l.Planning[s] = time.Duration(v * 1e9)
		}
	}
	return l
}

// sortFlex puts lines into the order of the settings.
func sortFlex(lines []flexLine) {
	place := map[string]int{}
	for i, s := range flexSettings() {
		for k := range s.batches {
			place[s.key(k)] = i*1000 + k
		}
	}
	slices.SortStableFunc(lines, func(a, b flexLine) int { return place[a.key()] - place[b.key()] })
}

// TestFlexEvidence makes the comparisons that EVENKEEL_FLEX's folder lacks, all but
// flexsp's, and the page over them. See docs/flex.sh.
func TestFlexEvidence(t *testing.T) {
	dir := os.Getenv("EVENKEEL_FLEX")
	if dir == "" {
		t.Skip("minutes of work; docs/flex.sh runs it")
	}
	m := &flexMaker{path: filepath.Join(dir, "batches.csv"), lines: readBatches(t, dir), have: map[string]bool{}}
	for _, l := range m.lines {
		m.have[l.key()] = true
	}
	t.Run("rows", func(t *testing.T) {
		for _, s := range flexSettings() {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				m.make(t, s)
			})
		}
	})
	var page bytes.Buffer
	flexPage(&page, readFlex(t, dir))
	if err := os.WriteFile(filepath.Join(dir, "README.md"), page.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// flexMaker makes rows that are not there.
type flexMaker struct {
	mu    sync.Mutex
	path  string
	lines []flexLine
	have  map[string]bool // made, or being made
}

// make makes the batches of a setting.
func (m *flexMaker) make(t *testing.T, s flexSetting) {
	var c *groupcost.Costs
	planner := batch.NewPlanner(batch.Options{})
	for i := range s.batches {
		m.mu.Lock()
		done := m.have[s.key(i)]
		m.have[s.key(i)] = true
		m.mu.Unlock()
		if done {
			continue
		}
		if c == nil {
			c = flexCosts(t, s)
		}
		row := planBatch(t, s, c, planner, i)
		row.Bound = s.bound(t, c, i)
		m.add(t, flexLine{family: s.family, setting: s.name, lengths: s.lengths, batch: i, flexRow: row})
	}
}

// add writes the table with one more line.
func (m *flexMaker) add(t testing.TB, l flexLine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, l)
	sortFlex(m.lines)
	writeTable(t, m.path, flexHeader(), m.lines, flexLine.fields)
	fmt.Println(strings.Join(l.fields(), ","))
}

// flexGroups are the lines by family, setting and lengths, in the table's order.
func flexGroups(lines []flexLine) [][]flexLine {
	var all [][]flexLine
	at := map[string]int{}
	for _, l := range lines {
		key := l.family + "|" + l.setting + "|" + l.lengths
		i, known := at[key]
		if !known {
			i = len(all)
			at[key] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], l)
	}
	return all
}

// ratios are the times of a strategy over ours, of the lines that have one.
func ratios(lines []flexLine, names ...string) []float64 {
	var all []float64
	for _, l := range lines {
		best := math.Inf(1)
		for _, n := range names {
			if t, ok := l.Time[n]; ok {
				best = min(best, float64(t))
			}
		}
		if !math.IsInf(best, 1) {
			all = append(all, best/float64(l.Time["evenkeel"]))
		}
	}
	return all
}

// meanLeast prints the mean and the least of some ratios.
func meanLeast(r []float64) string {
	if len(r) == 0 {
		return ""
	}
	return fmt.Sprintf("%.3f (%.3f)", stat.Mean(r, nil), slices.Min(r))
}

// sums is the ratio of the sums of a strategy's times and ours: what a run of all
// these batches gains.
func sums(lines []flexLine, name string) string {
	var theirs, ours float64
	for _, l := range lines {
		if t, ok := l.Time[name]; ok {
			theirs += float64(t)
			ours += float64(l.Time["evenkeel"])
		}
	}
	if ours == 0 {
		return ""
	}
	return fmt.Sprintf("%.3f", theirs/ours)
}

func flexQuantiles(v []float64, at ...float64) []float64 {
	sorted := slices.Clone(v)
	slices.Sort(sorted)
	var out []float64
	for _, q := range at {
		out = append(out, stat.Quantile(q, stat.Empirical, sorted, nil))
	}
	return out
}

func gapsOf(lines []flexLine) []float64 {
	var all []float64
	for _, l := range lines {
		all = append(all, float64(l.Time["evenkeel"]/l.Bound)-1)
	}
	return all
}

func planningOf(lines []flexLine, name string) []float64 {
	var all []float64
	for _, l := range lines {
		if d, ok := l.Planning[name]; ok {
			all = append(all, 1e3*d.Seconds())
		}
	}
	return all
}

// today's strategies, the baselines.
func flexBaselines() []string { return []string{"static", "adaptive", "bfd", "megatron-dynamic-cp"} }

func flexPage(w io.Writer, lines []flexLine) {
	fmt.Fprint(w, `# Batches of unequal sequences

Predicted, not measured: every time here is the evaluator's, of prices that are the
same for all strategies of a row; only planning times are measured, one core for
each strategy. The rows are in [batches.csv](batches.csv), those of flexsp in
[flexsp.csv](flexsp.csv); docs/flex.sh makes what is missing of the former and this
page, docs/flexsp.sh what is missing of the latter, and a test makes some again.

Ratios are the other strategy's step over ours: mean over the batches, and in
parentheses the least. "Run" is the ratio of sums over all batches: what training
on them gains. "Gap" is how far our plan can be from the best possible at most.

## Published coefficients, 64 devices of 30 GiB, batches of 512

FlexSP's coefficients for GPT 7B (Wang et al., ASPLOS 2025) on its two length
distributions: the stand-in for CommonCrawl and GitHub, rebuilt exactly, and
lengths drawn from the published quantiles of its Wikipedia file, which itself is
not to be had. The rows of fcp are its own cost form on its burst generator: one of its
micro-batches of 64 sequences, and four of 128, on 64 ranks. Its static baseline runs buffers
of 131,072 tokens on 16 ranks each, whose rest is one more sequence: that is "padded".

| lengths | batches | run over static | over static | run over static, padded | over adaptive | over megatron-dynamic-cp | over fcp | gap median, P95, most |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
`)
	for _, g := range flexGroups(lines) {
		if f := g[0].family; f != "mixed" && f != "few" {
			flexPublished(w, g)
		}
	}
	flexspPage(w, lines)
	flexPlanning(w, lines)
	flexMixed(w, lines)
	flexFew(w, lines)
}

func flexPublished(w io.Writer, g []flexLine) {
	q := flexQuantiles(gapsOf(g), 0.5, 0.95, 1)
	fmt.Fprintf(w, "| %s, %s | %d | %s | %s | %s | %s | %s | %s | %.1f, %.1f, %.1f %% |\n", g[0].setting, g[0].lengths, len(g), sums(g, "static"), meanLeast(ratios(g, "static")),
		cmp.Or(sums(g, "static-padded"), "-"), meanLeast(ratios(g, "adaptive")), meanLeast(ratios(g, "megatron-dynamic-cp")), meanLeast(ratios(g, "fcp")), 100*q[0], 100*q[1], 100*q[2])
}

func flexPlanning(w io.Writer, lines []flexLine) {
	fmt.Fprint(w, `
### Planning time

Planning time in ms, median and P99 over the batches; on unequal GPUs, here and below, taken
beside other work on the machine:

| lengths | evenkeel | fcp |
| --- | --- | --- |
`)
	for _, g := range flexGroups(lines) {
		if g[0].family == "few" {
			continue // in a table of their own
		}
		fmt.Fprintf(w, "| %s, %s |", g[0].setting, g[0].lengths)
		for _, name := range []string{"evenkeel", "fcp"} {
			if v := planningOf(g, name); len(v) > 0 {
				q := flexQuantiles(v, 0.5, 0.99)
				fmt.Fprintf(w, " %.3g, %.3g |", q[0], q[1])
			} else {
				fmt.Fprint(w, " |")
			}
		}
		fmt.Fprintln(w)
	}
}

func flexMixed(w io.Writer, lines []flexLine) {
	fmt.Fprintf(w, `
## Clusters of unequal GPUs

Laws of the reference profiles, as in whole training steps, links between nodes assumed
from datasheets; the stand-in cut at 192,000 tokens, 512 sequences a batch. "Best of the
others" is the fastest of today's strategies, fcp and, of the batches that it planned,
flexsp, which take all devices as equal and are priced with the devices they get. flexsp was given
%s. "Apart"
plans each type's share by itself, by us, and takes as long as the slowest type, as if types did not have to meet in
every micro-batch for each other's parameters: less than such a plan takes where states are
sharded over all.

| cluster, model | batches | over the best of the others | over flexsp | flexsp's batches | over apart | gap median, most |
| --- | --- | --- | --- | --- | --- | --- |
`, flexspGiven(lines, "mixed"))
	var all []flexLine
	for _, g := range flexGroups(lines) {
		if g[0].family != "mixed" {
			continue
		}
		all = append(all, g...)
		flexMixedRow(w, g[0].setting, g)
	}
	if len(all) > 0 {
		flexMixedRow(w, "all", all)
	}
}

func flexMixedRow(w io.Writer, name string, g []flexLine) {
	q := flexQuantiles(gapsOf(g), 0.5, 1)
	fmt.Fprintf(w, "| %s | %d | %s | %s | %d | %s | %.1f, %.1f %% |\n", name, len(g), meanLeast(ratios(g, asEqual()...)), meanLeast(ratios(g, "flexsp")),
		len(flexspLines(g)), meanLeast(ratios(g, "apart")), 100*q[0], 100*q[1])
}

func flexFew(w io.Writer, lines []flexLine) {
	fmt.Fprintf(w, `
## Few sequences on a few unequal GPUs

The same laws, and batches of 8 to 128 sequences of six distributions, cut at 32,768
tokens, two of each. "serve" is the planner of a training loop; "solve" searches again
at prices that are a little off, as `+"`evenkeel solve --lengths`"+` does. flexsp is one of the
others, and was given %s.
Planning is in ms.

| cluster, model | batches | serve: over the best of the others | over flexsp | gap median, most | planning median, most | solve: over the best | gap median, most | planning median, most | solve over serve: mean, most |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
`, flexspGiven(lines, "few"))
	var all []flexLine
	bySetting := map[string][]flexLine{}
	for _, l := range lines {
		if l.family == "few" {
			all, bySetting[l.setting] = append(all, l), append(bySetting[l.setting], l)
		}
	}
	for _, l := range all {
		if g := bySetting[l.setting]; g != nil {
			flexFewRow(w, l.setting, g)
			bySetting[l.setting] = nil
		}
	}
	if len(all) > 0 {
		flexFewRow(w, "all", all)
	}
}

func flexFewRow(w io.Writer, name string, g []flexLine) {
	solved := slices.Clone(g) // with solve's plan in the place of serve's
	for i := range solved {
		solved[i].Time = maps.Clone(g[i].Time)
		solved[i].Time["evenkeel"] = g[i].Time["thorough"]
	}
	fmt.Fprintf(w, "| %s | %d |", name, len(g))
	for planner, lines := range [][]flexLine{g, solved} {
		q, ms := flexQuantiles(gapsOf(lines), 0.5, 1), flexQuantiles(planningOf(lines, []string{"evenkeel", "thorough"}[planner]), 0.5, 1)
		fmt.Fprintf(w, " %s |", meanLeast(ratios(lines, asEqual()...)))
		if planner == 0 {
			fmt.Fprintf(w, " %s |", meanLeast(ratios(lines, "flexsp")))
		}
		fmt.Fprintf(w, " %.1f, %.1f %% | %.0f, %.0f |", 100*q[0], 100*q[1], ms[0], ms[1])
	}
	var less []float64
	for _, l := range g {
		less = append(less, float64(l.Time["evenkeel"]/l.Time["thorough"]))
	}
	fmt.Fprintf(w, " %.3f, %.3f |\n", stat.Mean(less, nil), slices.Max(less))
}

// asEqual are the strategies that take the devices of a mixed cluster as equal.
func asEqual() []string { return append(flexBaselines(), "fcp", "flexsp") }

// TestFlexEvidenceStands makes some batches of the committed table again: strategies
// that the clock does not stop come to the same times, ours is never the slower one,
// bounds hold, and the page says what the table says.
func TestFlexEvidenceStands(t *testing.T) {
	if testing.Short() {
		t.Skip("plans tens of batches")
	}
	lines := readFlex(t, "evidence/flex")
	if len(lines) == 0 {
		t.Fatal("evidence/flex/batches.csv has no rows")
	}
	byKey := map[string]flexLine{}
	for _, l := range lines {
		byKey[l.key()] = l
		for name, time := range l.Time {
			if name != "apart" && float64(time) < float64(l.Bound)*(1-1e-9) {
				t.Errorf("%s: %s takes %v, below the bound %v", l.key(), name, time, l.Bound)
			}
			apart := name == "apart" && l.family == "few" // its types never meet, which few groups gain by
			if ours := l.Time["evenkeel"]; name != "thorough" && !apart && float64(ours) > float64(time)*(1+1e-9) {
				t.Errorf("%s: %s takes %v, ours %v", l.key(), name, time, ours)
			}
		}
	}
	bounded := map[string]bool{} // families: bounds take a hundred times as long as plans
	for _, s := range flexSettings() {
		if s.family == "mixed" && s.model != "llama-7b" || strings.Count(s.cluster, "+") > 1 || s.family == "few" && s.size != 24 {
			continue
		}
		c, planner := flexCosts(t, s), batch.NewPlanner(batch.Options{})
		want, made := byKey[s.key(0)], flexRow{}
		made = planBatch(t, s, c, planner, 0)
		for _, name := range flexStrategies() {
			if a, b := float64(made.Time[name]), float64(want.Time[name]); math.Abs(a-b) > 1e-6*b {
				t.Errorf("%s: %s takes %v s, the table says %v", s.key(0), name, a, b)
			}
		}
		if !bounded[s.family] {
			bounded[s.family] = true
			if b := s.bound(t, c, 0); b > made.Time["evenkeel"] || b < made.Time["evenkeel"]/2 {
				t.Errorf("%s: evenkeel takes %v, the bound is %v", s.key(0), made.Time["evenkeel"], b)
			}
		}
	}
	flexspStands(t, lines)
	var page bytes.Buffer
	flexPage(&page, lines)
	committed, err := os.ReadFile("evidence/flex/README.md")
	if err != nil || page.String() != string(committed) {
		t.Errorf("the page is not the table's (%v); run docs/flex.sh", err)
	}
}

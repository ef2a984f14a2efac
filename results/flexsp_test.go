package results

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// flexspRow is one batch that flexsp planned. The rows have a table of their own,
// evidence/flex/flexsp.csv: they take minutes each, and do not change with ours.
type flexspRow struct {
	setting, lengths string
	batch            int
	tokens, longest  units.Tokens  // of the batch, to know it again
	limit            time.Duration // processor time of each programme
	time             units.Seconds
	micro            int
	spent            time.Duration // processor time for the plan
}

func (r flexspRow) key() string {
	of := flexSetting{family: "published", name: r.setting, lengths: r.lengths}
	for _, s := range flexSettings() {
		if s.name == r.setting {
			of.family = s.family
		}
	}
	return of.key(r.batch)
}

func flexspHeader() []string {
	return []string{"setting", "lengths", "batch", "length_tokens", "longest_tokens", "limit_cpu_s", "flexsp_s", "micro_batches", "cpu_s"}
}

func (r flexspRow) fields() []string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 9, 64) }
	return []string{
		r.setting, r.lengths, strconv.Itoa(r.batch), strconv.Itoa(int(r.tokens)), strconv.Itoa(int(r.longest)),
		number(r.limit.Seconds()), number(float64(r.time)), strconv.Itoa(r.micro), number(r.spent.Seconds()),
	}
}

// readFlexSP reads the table; none is one without rows.
func readFlexSP(t testing.TB, path string) []flexspRow {
	t.Helper()
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil || !slices.Equal(lines[0], flexspHeader()) {
		t.Fatalf("%s: %v, columns %v: want %v; remove it and run docs/flexsp.sh again", path, err, lines[0], flexspHeader())
	}
	var all []flexspRow
	for _, f := range lines[1:] {
		var v [7]float64
		for i := range v {
			if v[i], err = strconv.ParseFloat(f[2+i], 64); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}
		seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
		all = append(all, flexspRow{f[0], f[1], int(v[0]), units.Tokens(v[1]), units.Tokens(v[2]), seconds(v[3]), units.Seconds(v[4]), int(v[5]), seconds(v[6])})
	}
	return all
}

// sortFlexSP puts rows into the order of the settings.
func sortFlexSP(rows []flexspRow) {
	place := map[string]int{}
	for i, s := range flexSettings() {
		for k := range s.batches {
			place[s.key(k)] = i*1000 + k
		}
	}
	slices.SortFunc(rows, func(a, b flexspRow) int { return cmp.Compare(place[a.key()], place[b.key()]) })
}

// writeTable writes a table, whole or not at all.
func writeTable[R any](t testing.TB, path string, header []string, rows []R, fields func(R) []string) {
	t.Helper()
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	writeRow(t, w, header)
	for _, r := range rows {
		writeRow(t, w, fields(r))
	}
	err := os.WriteFile(path+".part", b.Bytes(), 0o644)
	if err == nil {
		err = os.Rename(path+".part", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// spentByProcess is the processor time of all threads so far.
func spentByProcess(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// flexspRange is the batches that a text such as "0-39" or "7" names.
func flexspRange(t testing.TB, text string) (from, to int) {
	t.Helper()
	first, last, ok := strings.Cut(cmp.Or(text, "0-39"), "-")
	if !ok {
		last = first
	}
	from, err := strconv.Atoi(first)
	to, err2 := strconv.Atoi(last)
	if err := cmp.Or(err, err2); err != nil || from > to {
		t.Fatalf("EVENKEEL_FLEXSP_BATCHES: %q: want a range such as 0-39", text)
	}
	return from, to
}

// TestFlexSPEvidence plans the batches of the published settings and of unequal GPUs by
// flexsp that the table in EVENKEEL_FLEXSP's folder lacks, a batch of every setting before
// the next.
// The table is written after every batch. See docs/flexsp.sh.
func TestFlexSPEvidence(t *testing.T) {
	dir := os.Getenv("EVENKEEL_FLEXSP")
	if dir == "" {
		t.Skip("hours of work; docs/flexsp.sh runs it")
	}
	limit, err := time.ParseDuration(cmp.Or(os.Getenv("EVENKEEL_FLEXSP_TIME"), "10s"))
	if err != nil || limit <= 0 {
		t.Fatalf("EVENKEEL_FLEXSP_TIME: %v, %v: want a time such as 10s", limit, err)
	}
	path := filepath.Join(dir, "flexsp.csv")
	rows := readFlexSP(t, path)
	from, to := flexspRange(t, os.Getenv("EVENKEEL_FLEXSP_BATCHES"))
	for i := from; i <= to; i++ {
		for _, s := range flexSettings() {
			done := slices.ContainsFunc(rows, func(r flexspRow) bool { return r.key() == s.key(i) && r.limit >= limit })
			if s.family == "burst" || i >= s.batches || done || !strings.Contains(s.key(i), os.Getenv("EVENKEEL_FLEXSP_SETTING")) {
				continue
			}
			r, known := alikeFlexSP(t, rows, s, i, limit)
			if !known {
				r = planFlexSP(t, s, i, limit)
			}
			rows = slices.DeleteFunc(rows, func(old flexspRow) bool { return old.key() == r.key() })
			rows = append(rows, r)
			sortFlexSP(rows)
			writeTable(t, path, flexspHeader(), rows, flexspRow.fields)
		}
	}
}

// alikeFlexSP finds the row of a batch with the same lengths under another context
// limit: the same problem, which is not solved twice.
func alikeFlexSP(t testing.TB, rows []flexspRow, s flexSetting, i int, limit time.Duration) (flexspRow, bool) {
	t.Helper()
	lengths := flexBatch(t, s, i)
	for _, o := range flexSettings() {
		if o.family != s.family || o.name != s.name || o.lengths == s.lengths || !slices.Equal(flexBatch(t, o, i), lengths) {
			continue
		}
		at := slices.IndexFunc(rows, func(r flexspRow) bool { return r.key() == o.key(i) && r.limit >= limit })
		if at >= 0 {
			r := rows[at]
			r.lengths = s.lengths
			return r, true
		}
	}
	return flexspRow{}, false
}

// planFlexSP plans one batch, and prints how ours compares.
func planFlexSP(t testing.TB, s flexSetting, i int, limit time.Duration) flexspRow {
	t.Helper()
	p := flexProblem(t, flexCosts(t, s), flexBatch(t, s, i))
	begin := spentByProcess(t)
	plan, err := batch.FlexSP{Limit: limit, Single: true}.Solve(t.Context(), p)
	if err != nil {
		t.Fatalf("%s: %v", s.key(i), err)
	}
	r := flexspRow{s.name, s.lengths, i, 0, slices.Max(p.Lengths), limit, plan.Time, len(plan.Micro), spentByProcess(t) - begin}
	for _, n := range p.Lengths {
		r.tokens += n
	}
	for _, e := range batch.Check(p, plan) {
		t.Fatalf("%s: %v", r.key(), e)
	}
	ours, err := batch.NewPlanner(batch.Options{}).Plan(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	verdict := "ours is faster"
	if ours.Time > plan.Time {
		verdict = "FLEXSP IS FASTER"
	}
	fmt.Printf("%s: flexsp %.6g s, ours %.6g s, ratio %.4f, %.0f s of processor time: %s\n",
		r.key(), float64(plan.Time), float64(ours.Time), float64(plan.Time/ours.Time), r.spent.Seconds(), verdict)
	return r
}

func flexProblem(t testing.TB, c *groupcost.Costs, lengths []units.Tokens) *batch.Problem {
	t.Helper()
	p, err := batch.NewProblem(c, lengths)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

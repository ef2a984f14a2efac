package results

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"gonum.org/v1/gonum/stat"

	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// mixedProblem is one comparison to make.
type mixedProblem struct {
	family  string // "paper", "flops" or "random"
	setting mixedSetting
	model   costmodel.Model
	seqLen  units.Tokens
	nics    int
	network string
}

// key names a problem in the table of comparisons.
func (q mixedProblem) key() string {
	return strings.Join([]string{q.family, q.setting.name, q.model.Name, strconv.Itoa(int(q.seqLen)), strconv.Itoa(q.nics), q.network}, "|")
}

const randomClusters = 500

// mixedProblems are all settings with all models and contexts, with a network
// card a device and with one a node, the pairs of equal FLOP/s, and random
// clusters.
func mixedProblems() []mixedProblem {
	var all []mixedProblem
	for _, s := range mixedSettings() {
		for _, m := range gptLike() {
			for seq := units.Tokens(8 << 10); seq <= 1<<20; seq *= 2 {
				for _, nics := range []int{0, 1} {
					all = append(all, mixedProblem{"paper", s, m, seq, nics, "rdma"})
				}
			}
		}
	}
	models := gptLike()
	for _, pair := range flopPairs() {
		for _, s := range pair {
			for _, m := range models[3:] {
				for seq := units.Tokens(128 << 10); seq <= 1<<20; seq *= 2 {
					all = append(all, mixedProblem{"flops", s, m, seq, 0, "rdma"})
				}
			}
		}
	}
	r := rand.New(rand.NewPCG(5, 500))
	for n := range randomClusters {
		s := randomSetting(r, n)
		m := models[r.IntN(len(models))]
		seq := units.Tokens(8<<10) << r.IntN(8)
		network := []string{"rdma", "rdma_fast"}[r.IntN(2)]
		all = append(all, mixedProblem{"random", s, m, seq, r.IntN(3), network})
	}
	return all
}

// mixedStrategies are the columns of the table: the strategies that every problem is solved
// with, in that order.
func mixedStrategies() []string {
	return []string{"ring", "ulysses", "usp", "usp-subset", "hexiseq", solver.Default}
}

// others are all strategies but ours.
func others() []string {
	return slices.DeleteFunc(mixedStrategies(), func(s string) bool { return s == solver.Default })
}

func mixedHeader() []string {
	h := []string{"family", "setting", "model", "seq_len_tokens", "nics_per_node", "network", "ranks"}
	for _, s := range mixedStrategies() {
		h = append(h, s+"_s")
	}
	for _, s := range others() {
		h = append(h, s+"_in_twos_s")
	}
	return append(h, "side_by_side_s", "todays_side_by_side_s", "lower_bound_s", "recommended", "recommended_s", "planning_s", "infeasible")
}

// fields writes a comparison out, times as simulated, planning as measured.
func (q mixedProblem) fields(r mixedRow) []string {
	f := []string{q.family, q.setting.name, q.model.Name, strconv.Itoa(int(q.seqLen)), strconv.Itoa(q.nics), q.network, strconv.Itoa(r.Ranks)}
	number := func(v float64) string {
		if v == 0 {
			return ""
		}
		return strconv.FormatFloat(v, 'g', 9, 64)
	}
	for _, s := range mixedStrategies() {
		f = append(f, number(float64(r.Time[s])))
	}
	for _, s := range others() {
		f = append(f, number(float64(r.InTwos[s])))
	}
	return append(f, number(float64(r.SideBySide)), number(float64(r.TodaySideBySide)), number(float64(r.Bound)), r.Recommended, number(float64(r.Taken)), number(math.Round(1e4*r.Planning.Seconds())/1e4), r.Infeasible)
}

// readMixed reads the table of comparisons by key; none if there is no file.
func readMixed(t testing.TB, path string) map[string]mixedRow {
	t.Helper()
	rows := map[string]mixedRow{}
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return rows
	}
	if err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(lines[0], mixedHeader()) {
		t.Fatalf("%s has other columns: %v; remove it and run docs/hexiseq.sh again", path, lines[0])
	}
	for _, l := range lines[1:] {
		number := func(s string) float64 {
			if s == "" {
				return 0
			}
			v, err := strconv.ParseFloat(s, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		n := len(mixedStrategies())
		r := mixedRow{Setting: l[1], Model: l[2], SeqLen: units.Tokens(number(l[3])), NICs: int(number(l[4])), Ranks: int(number(l[6])), Time: map[string]units.Seconds{}, InTwos: map[string]units.Seconds{}}
		for i, s := range mixedStrategies() {
			if v := number(l[7+i]); v > 0 {
				r.Time[s] = units.Seconds(v)
			}
		}
		for i, s := range others() {
			if v := number(l[7+n+i]); v > 0 {
				r.InTwos[s] = units.Seconds(v)
			}
		}
		n += len(others())
		r.SideBySide, r.TodaySideBySide = units.Seconds(number(l[7+n])), units.Seconds(number(l[8+n]))
		n += 2
		r.Bound, r.Recommended, r.Taken = units.Seconds(number(l[7+n])), l[8+n], units.Seconds(number(l[9+n]))
		r.Planning, r.Infeasible = time.Duration(number(l[10+n])*1e9), l[11+n]
		rows[strings.Join(l[:6], "|")] = r
	}
	return rows
}

// TestMixedEvidence makes the comparisons that EVENKEEL_MIXED's folder lacks and
// the page over them. See docs/hexiseq.sh.
func TestMixedEvidence(t *testing.T) {
	dir := os.Getenv("EVENKEEL_MIXED")
	if dir == "" {
		t.Skip("minutes of work; docs/hexiseq.sh runs it")
	}
	path := filepath.Join(dir, "comparisons.csv")
	have := readMixed(t, path)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := csv.NewWriter(f)
	if len(have) == 0 {
		writeRow(t, w, mixedHeader())
	}
	p := mixedProfile(t)
	all := mixedProblems()
	for i, q := range all {
		if _, done := have[q.key()]; done {
			continue
		}
		r := compare(t, p, q.setting.name, q.model, q.setting.cluster(q.nics, q.network), q.seqLen, q.nics)
		have[q.key()] = r
		writeRow(t, w, q.fields(r))
		fmt.Printf("%d of %d: %s\n", i+1, len(all), strings.Join(q.fields(r), ","))
	}
	var page bytes.Buffer
	mixedPage(&page, have)
	if err := os.WriteFile(filepath.Join(dir, "README.md"), page.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func writeRow(t testing.TB, w *csv.Writer, fields []string) {
	t.Helper()
	if err := w.Write(fields); err != nil {
		t.Fatal(err)
	}
	if w.Flush(); w.Error() != nil {
		t.Fatal(w.Error())
	}
}

// TestMixedEvidenceStands makes a few comparisons of the committed table again:
// the times are those of the table, ours is never the slower one, and the page
// says what the table says.
func TestMixedEvidenceStands(t *testing.T) {
	dir := filepath.Join("evidence", "hexiseq")
	have := readMixed(t, filepath.Join(dir, "comparisons.csv"))
	all := mixedProblems()
	if len(have) != len(all) {
		t.Errorf("%d comparisons for %d problems; run docs/hexiseq.sh", len(have), len(all))
	}
	var page bytes.Buffer
	mixedPage(&page, have)
	if own := contents(t, filepath.Join(dir, "README.md")); !bytes.Equal(own, page.Bytes()) {
		t.Error("the page does not say what its table says; run docs/hexiseq.sh")
	}
	p := mixedProfile(t)
	for i, q := range all {
		row, ok := have[q.key()]
		if !ok {
			t.Errorf("%s: not in the table; run docs/hexiseq.sh", q.key())
			continue
		}
		for name, at := range row.InTwos {
			if at > row.Time[name] {
				t.Errorf("%s: %s takes %v, and %v in twos where it gains by it", q.key(), name, row.Time[name], at)
			}
		}
		for name, at := range row.Time {
			if ours := row.Time[solver.Default]; ours > at*(1+1e-9) {
				t.Errorf("%s: %v by us, %v by %s", q.key(), ours, at, name)
			}
		}
		if i%60 != 7 || row.Ranks > 32 {
			continue
		}
		again := compare(t, p, q.setting.name, q.model, q.setting.cluster(q.nics, q.network), q.seqLen, q.nics)
		if len(again.Time) != len(row.Time) || again.Recommended != row.Recommended {
			t.Errorf("%s: %v, recommended %q; in the table %v, %q", q.key(), again.Time, again.Recommended, row.Time, row.Recommended)
		}
		for name, at := range row.Time {
			if d := float64(again.Time[name]/at) - 1; math.Abs(d) > 1e-6 {
				t.Errorf("%s: %s takes %v, in the table %v; run docs/hexiseq.sh with comparisons.csv removed", q.key(), name, again.Time[name], at)
			}
		}
		if d := float64(again.SideBySide - row.SideBySide); math.Abs(d) > 1e-6*float64(row.SideBySide) {
			t.Errorf("%s: side by side %v, in the table %v; run docs/hexiseq.sh with comparisons.csv removed", q.key(), again.SideBySide, row.SideBySide)
		}
		for name, at := range row.InTwos {
			if d := float64(again.InTwos[name]/at) - 1; math.Abs(d) > 1e-6 {
				t.Errorf("%s: %s takes %v in twos, in the table %v; run docs/hexiseq.sh with comparisons.csv removed", q.key(), name, again.InTwos[name], at)
			}
		}
	}
}

// todays are the strongest-baseline candidates of the HexiSeq paper.
func todays() []string { return []string{"ring", "ulysses", "usp"} }

// mixedSummary is what a set of comparisons comes to.
type mixedSummary struct {
	problems, infeasible   int
	overToday, overSubset  []float64
	overAll, overHexi      []float64
	overAllInTwos          []float64 // over the strongest of these four with micro-batches in twos, and over hexiseq
	overHexiInTwos         []float64
	gaps                   []float64
	slower, hexiFaster     int       // than any other strategy; than hexiseq by more than rounding
	recommended            int       // problems where solve recommends a plan as fast as ours
	surely                 int       // or another that surely gains over the strongest of these four
	overRecommended        []float64 // of the plan that it recommends, over the strongest of these four
	planning, planningMost float64
}

func summarise(rows []mixedRow) mixedSummary {
	var m mixedSummary
	for _, r := range rows {
		m.problems++
		ours := float64(r.Time[solver.Default])
		if ours == 0 {
			m.infeasible++
			continue
		}
		for to, from := range map[*[]float64][]string{&m.overToday: todays(), &m.overSubset: {"usp-subset"}, &m.overAll: append(todays(), "usp-subset"), &m.overHexi: {"hexiseq"}} {
			if x := r.ratio(from...); !math.IsNaN(x) {
				*to = append(*to, x)
			}
		}
		if x := r.ratioOf(r.InTwos, append(todays(), "usp-subset")...); !math.IsNaN(x) {
			m.overAllInTwos = append(m.overAllInTwos, x)
		}
		if x := r.ratioOf(r.InTwos, "hexiseq"); !math.IsNaN(x) {
			m.overHexiInTwos = append(m.overHexiInTwos, x)
		}
		m.gaps = append(m.gaps, ours/float64(r.Bound)-1)
		taken := float64(r.Taken)
		if taken <= ours*(1+1e-9) {
			m.recommended++
		}
		if x := r.ratio(append(todays(), "usp-subset")...); !math.IsNaN(x) {
			m.overRecommended = append(m.overRecommended, x*ours/taken)
			if x*ours > taken*(1+1e-9) && taken > ours*(1+1e-9) {
				m.surely++
			}
		}
		for name, at := range r.Time {
			if name != solver.Default && ours > float64(at)*(1+1e-9) {
				m.slower++
				break
			}
		}
		if h := r.ratio("hexiseq"); h > 1+1e-3 {
			m.hexiFaster++
		}
		m.planningMost = max(m.planningMost, r.Planning.Seconds())
		m.planning += r.Planning.Seconds()
	}
	return m
}

func meanMax(x []float64) string {
	if len(x) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f / %.2f", stat.Mean(x, nil), slices.Max(x))
}

func quantiles(x []float64) string {
	if len(x) == 0 {
		return "-"
	}
	s := slices.Sorted(slices.Values(x))
	return fmt.Sprintf("%.1f / %.1f / %.1f", 100*stats.Quantile(s, 0.5), 100*stats.Quantile(s, 0.95), 100*s[len(s)-1])
}

// mixedPage writes the page.
func mixedPage(w io.Writer, rows map[string]mixedRow) {
	fmt.Fprint(w, mixedIntroduction)
	all := mixedProblems()
	pick := func(want func(mixedProblem) bool) []mixedRow {
		var out []mixedRow
		for _, q := range all {
			if r, ok := rows[q.key()]; ok && want(q) {
				out = append(out, r)
			}
		}
		return out
	}
	fmt.Fprintf(w, "| problems | how many | evenkeel over the strongest of ring, ulysses, usp: mean / max | over usp-subset | over the strongest of these four | over hexiseq | faster than hexiseq (by 0.1 %% or more) | slower than any | solve recommends it or one as fast | or another that surely gains | what solve recommends over the strongest of these four | gap to the bound, %%: median / P95 / max | planning, s: mean / max |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	line := func(name string, rows []mixedRow) {
		m := summarise(rows)
		n := m.problems - m.infeasible
		fmt.Fprintf(w, "| %s | %d (%d do not fit) | %s | %s | %s | %s | %d of %d | %d | %d of %d | %d | %s | %s | %.2f / %.2f |\n", name, m.problems, m.infeasible, meanMax(m.overToday), meanMax(m.overSubset), meanMax(m.overAll), meanMax(m.overHexi), m.hexiFaster, n, m.slower, m.recommended, n, m.surely, meanMax(m.overRecommended), quantiles(m.gaps), m.planning/float64(max(1, n)), m.planningMost)
	}
	for _, s := range mixedSettings() {
		line(s.name, pick(func(q mixedProblem) bool { return q.family == "paper" && q.setting.name == s.name }))
	}
	physical := func(q mixedProblem) bool {
		return q.family == "paper" && strings.HasPrefix(q.setting.name, "phys") && !strings.HasSuffix(q.model.Name, "70b") && q.seqLen <= 256<<10
	}
	line("8 to 16 GPUs, 3B to 13B, 8k to 256k (the paper's physical range)", pick(physical))
	line("of these with a network card for every GPU", pick(func(q mixedProblem) bool { return physical(q) && q.nics == 0 }))
	line("of these with one a node", pick(func(q mixedProblem) bool { return physical(q) && q.nics == 1 }))
	simulated := func(q mixedProblem) bool {
		return q.family == "paper" && strings.HasPrefix(q.setting.name, "sim") && (strings.HasSuffix(q.model.Name, "70b") || q.model.Name == "gpt-13b") && q.seqLen >= 128<<10
	}
	line("32 to 128 GPUs, 13B and 70B, 128k to 1M (the paper's simulated range)", pick(simulated))
	line("all of the above", pick(func(q mixedProblem) bool { return q.family == "paper" }))
	line("random clusters", pick(func(q mixedProblem) bool { return q.family == "random" }))
	everything := pick(func(q mixedProblem) bool { return q.family != "flops" })
	line("everything", everything)
	fmt.Fprint(w, overlapIntroduction)
	for _, x := range []namedRows{{"8 to 16 GPUs, 3B to 13B, 8k to 256k", pick(physical)}, {"32 to 128 GPUs, 13B and 70B, 128k to 1M", pick(simulated)}, {"everything", everything}} {
		m := summarise(x.rows)
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", x.name, meanMax(m.overAll), meanMax(m.overAllInTwos), meanMax(m.overHexi), meanMax(m.overHexiInTwos))
	}
	sideBySideTable(w, []namedRows{{"8 to 16 GPUs, 3B to 13B, 8k to 256k", pick(physical)}, {"32 to 128 GPUs, 13B and 70B, 128k to 1M", pick(simulated)}, {"everything", everything}})
	flopTable(w, rows)
}

// sideBySideTable sets our plans beside those of a batch of the same sequences.
func sideBySideTable(w io.Writer, sets []namedRows) {
	fmt.Fprint(w, sideBySideIntroduction)
	for _, set := range sets {
		var ratios, faster, overToday []float64
		worth := 0
		for _, r := range set.rows {
			ours := float64(r.Time[solver.Default])
			if ours == 0 {
				continue
			}
			best := ours
			if beside := float64(r.SideBySide); beside > 0 {
				ratios, best = append(ratios, ours/beside), min(ours, beside)
				if ours > 1.05*beside {
					worth++
				}
			}
			faster = append(faster, ours/best)
			today := ours * r.ratio(append(todays(), "usp-subset")...)
			if beside := float64(r.TodaySideBySide); beside > 0 && !(today < beside) {
				today = beside
			}
			if !math.IsNaN(today) {
				overToday = append(overToday, today/best)
			}
		}
		slices.Sort(ratios)
		fmt.Fprintf(w, "| %s | %d of %d | %.2f / %.2f / %.2f | %s | %s |\n", set.name, worth, len(faster), stats.Quantile(ratios, 0.05), stats.Quantile(ratios, 0.5), stats.Quantile(ratios, 0.95), meanMax(faster), meanMax(overToday))
	}
}

// namedRows are comparisons of a line of a table.
type namedRows struct {
	name string
	rows []mixedRow
}

// flopTable sets mixed clusters beside homogeneous ones of as many FLOP/s.
func flopTable(w io.Writer, rows map[string]mixedRow) {
	fmt.Fprint(w, "\n## As many FLOP/s, mixed and homogeneous\n\nOne H100 counts as three A100, as in the paper's simulations 4 and 5. The homogeneous side is the strongest of ring, ulysses and usp there.\n\n| mixed | homogeneous | model | context | evenkeel on the mixed side | best baseline on the homogeneous side | ratio of throughput |\n|---|---|---|---|---|---|---|\n")
	models := gptLike()
	for _, pair := range flopPairs() {
		for _, m := range models[3:] {
			for seq := units.Tokens(128 << 10); seq <= 1<<20; seq *= 2 {
				a, ok := rows[mixedProblem{"flops", pair[0], m, seq, 0, "rdma"}.key()]
				b, both := rows[mixedProblem{"flops", pair[1], m, seq, 0, "rdma"}.key()]
				if !ok || !both || a.Time[solver.Default] == 0 {
					continue
				}
				best := math.Inf(1)
				for _, s := range todays() {
					if v := float64(b.Time[s]); v > 0 {
						best = min(best, v)
					}
				}
				if math.IsInf(best, 1) {
					continue
				}
				fmt.Fprintf(w, "| %s | %s | %s | %v | %v | %v | %.3f |\n", pair[0].name, pair[1].name, m.Name, seq, a.Time[solver.Default], units.Seconds(best), best/float64(a.Time[solver.Default]))
			}
		}
	}
}

const overlapIntroduction = `
## The overlap given to others

Two of the eight sequences may go through the layers at once, one computed while the
other's all-to-alls move (two-batch overlap), and the steps of their rings may take turns.
evenkeel plans with both; the others have no word for it. Here their layouts have it too,
wherever they fit and gain by it.

| problems | evenkeel over the strongest of ring, ulysses, usp, usp-subset: mean / max | these with the overlap | over hexiseq | hexiseq with the overlap |
|---|---|---|---|---|
`

const sideBySideIntroduction = `
## Side by side

All of the above has every sequence on all devices, or those at work. The eight sequences
of a step may as well be trained at the same time, each in a group of devices of its own,
as a plan of a batch has them (package solver/batch; solve tells it where that is faster by
5 % or more, and its lower bound is not of such plans). Groups share a sequence in simpler
ways than evenkeel's layouts do, so that long sequences take longer so; short ones, of which
parameters are gathered once for all eight and messages stay inside nodes, take less. Today's
planners of batches (static, adaptive, best-fit packing, megatron-dynamic-cp) are counted
with today's layouts in the last column.

| problems | side by side is faster by 5 % or more | evenkeel over it: P5 / median / P95 | the faster of both over evenkeel: mean / max | over the fastest of today's, side by side or not: mean / max |
|---|---|---|---|---|
`

const mixedIntroduction = `# Unequal GPUs: evenkeel beside hexiseq and today's layouts

Everything here is PREDICTED: no cluster of this kind was measured. All strategies
are judged by the same simulator (package costmodel) on the same laws: H100 and A100
from the reference profiles (fitted to others' measurements of single kernels and
collectives), A800 and L40S carried over from them by the ratios of their datasheets,
links of A800 (NVLink, 200 GB/s one way), L40S (PCIe 4, 26 GB/s) and between nodes
(RDMA, 25 GB/s a card) by datasheet. Calls take as long as in whole training steps of an
H100 (1.16 times as long as alone in layers, 4.3 in the loss, 1.65 in the optimizer), which
is assumed of the other types. A step is eight sequences, one after the other or, in
evenkeel's plans, in twos (below), with full recomputation, ZeRO-3 whose traffic hides
behind the layers, bf16.
Blocks of keys and values are sent whole, as ring attention does today, but that evenkeel's
chains leave at home what no other group needs of the sequence's end (keep_tail); no
sender passes a block on beyond the last group that needs it. Backward, ring, usp and
usp-subset compute a group's own block first or last, whichever is faster (as
ring-flash-attention and TransformerEngine do).

The compositions are those that the HexiSeq paper (arXiv 2605.07569) states or, where
it does not, proposals: which GPUs share a node, and the counts in sim-1 to sim-3. Its
cost formulas and calibration are unknown, so no ratio here may be set against one of
the paper's; ` + "`hexiseq`" + ` is our reconstruction of its three stages on our simulator.
Swept: five settings, five models (GPT-like 3B, 7B, 13B, 70B, and 70B with eight
key-value heads), contexts from 8k to 1M, a network card for every GPU or one a node;
and 500 random clusters of 2 to 32 GPUs, 1 to 4 types, on either of two networks.

A plan that gains less over the strongest baseline than the laws' intervals could take
away is not recommended by solve; then it takes the fastest layout that evenkeel has seen
whose gain is beyond that doubt (evenkeel-sure), and the baseline where there is none.
Here most of that doubt is of what nobody measured: backward kernels, the borrowed GPU
types and the network, guessed within a factor of 1.4 to 2.2 either way, how long a type
takes to train over its calls alone, within 10 to 15 %, and how much messages slow the
computing beside them: not at all, or by up to 40 %, the most that is published. A guess that several laws rest on, such as how
long a backward kernel takes on either mask, counts once. So three columns say how often
solve recommends evenkeel's plan all the same, or one as fast, how often another that
surely gains, and what the recommended one gains.

Planning is all strategies, one after the other, with the bound beside them on a second
core; results/evidence/bench has it on one. What ` + "`solve --effort`" + ` finds on top is not in
here.

How to redo it: docs/hexiseq.sh (five to fifteen minutes on two cores; other work on the
machine makes planning times longer). Every row is in
comparisons.csv.

`

package results

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/multitask"
)

const taskPageHead = `# Several tasks side by side: evenkeel beside Spindle and what people run today

Everything here is PREDICTED: nothing of this kind was run. All strategies are judged by the
same simulator (package costmodel/multitask): a module is so many identical layers, a run is
some of them on one set of devices, each with whole samples of the batch.

| name | what it is |
| --- | --- |
| sequential | one module after another, on as many of all devices as make it fastest (Megatron-LM, DeepSpeed) |
| distmm-mt | one task after another, its modules side by side |
| spindle-optimus | every task on devices of its own, by marginal gain |
| spindle | Spindle (Wang et al., ASPLOS 2025, arXiv 2409.03365) as published: continuous allocation by bisection, bi-point discretisation, waves |
| evenkeel | ours: no waves, any number of devices, groups of unequal devices with unequal shares |

The bound is one that no plan beats, whatever its shares and with waves or without
(` + "`solver/multitask.Bound`" + `). Spindle's own target, C*, is none: it interpolates numbers of
devices where devices are used in proportion to time, and plans beat it.

How to redo it: docs/spindle.sh (ten to fifteen minutes on one core). Planning times were taken
beside other work on the machine. Every row is in comparisons.csv.

`

// compared is a problem that strategies were compared on.
type compared interface{ key() string }

// comparedCell is rows that are shown together.
type comparedCell[R any] struct {
	title string
	rows  []R
}

// cellsOf groups comparisons in the order of the problems.
func cellsOf[Q compared, R any](problems []Q, rows map[string]R, title func(Q) string) []comparedCell[R] {
	var all []comparedCell[R]
	for _, q := range problems {
		name := title(q)
		r, known := rows[q.key()]
		if name == "" || !known {
			continue
		}
		at := slices.IndexFunc(all, func(c comparedCell[R]) bool { return c.title == name })
		if at < 0 {
			at = len(all)
			all = append(all, comparedCell[R]{title: name})
		}
		all[at].rows = append(all[at].rows, r)
	}
	return all
}

// spread is the median and the 90th percentile (of sixty the 54th) of a ratio over rows.
func (c comparedCell[R]) spread(of func(R) float64) (median, high float64) {
	v := make([]float64, len(c.rows))
	for i, r := range c.rows {
		v[i] = of(r)
	}
	slices.Sort(v)
	return stats.Median(v), v[(9*len(v)+9)/10-1]
}

// ratio is the spread in words.
func (c comparedCell[R]) ratio(of func(R) float64) string {
	median, high := c.spread(of)
	return fmt.Sprintf("%.2f (%.2f)", median, high)
}

func overOf(c comparedCell[taskRow], strategy string, than func(taskRow) units.Seconds) string {
	return c.ratio(func(r taskRow) float64 { return float64(r.Time[strategy] / than(r)) })
}

// today is the fastest of what people run.
func (r taskRow) today() units.Seconds {
	best := units.Seconds(0)
	for _, s := range []string{"sequential", "distmm-mt", "spindle-optimus"} {
		if t := r.Time[s]; t > 0 && (best == 0 || t < best) {
			best = t
		}
	}
	return best
}

// taskPage is the page of results/evidence/multitask.
func taskPage(t testing.TB, rows map[string]taskRow) []byte {
	t.Helper()
	problems := taskProblems(t)
	var b bytes.Buffer
	b.WriteString(taskPageHead)
	b.WriteString("## Made-up sets on equal devices\n\n" +
		"Sixty sets a row, as the reference to Spindle draws them (layers of 12 to 32, T(n) = a + c [n > 1] +\n" +
		"w ceil(batch / n)), harsher than the paper's models. Medians, and in brackets the 90th percentile.\n\n" +
		"| devices, tasks | spindle / C* | spindle / bound | evenkeel / bound | today's best / evenkeel | spindle / evenkeel | planning, ms: spindle, evenkeel |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	bound := func(r taskRow) units.Seconds { return r.Bound }
	ours := func(r taskRow) units.Seconds { return r.Time["evenkeel"] }
	line := func(c comparedCell[taskRow], starred bool) {
		cells := []string{c.title}
		if starred {
			cells = append(cells, overOf(c, "spindle", func(r taskRow) units.Seconds { return r.Continuous }))
		}
		mine, _ := c.spread(func(r taskRow) float64 { return 1e3 * float64(r.Planning) })
		theirs, _ := c.spread(func(r taskRow) float64 { return 1e3 * float64(r.Spindle) })
		cells = append(cells, overOf(c, "spindle", bound), overOf(c, "evenkeel", bound),
			c.ratio(func(r taskRow) float64 { return float64(r.today() / ours(r)) }), overOf(c, "spindle", ours), fmt.Sprintf("%.2g, %.0f", theirs, mine))
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	for _, c := range cellsOf(problems, rows, func(q taskProblem) string {
		if q.family != "drawn" {
			return ""
		}
		return fmt.Sprintf("%ss, %d tasks", strings.TrimPrefix(q.cluster, "1x"), q.of)
	}) {
		line(c, true)
	}
	const header = " | spindle / bound | evenkeel / bound | today's best / evenkeel | spindle / evenkeel | planning, ms: spindle, evenkeel |\n| --- | ---: | ---: | ---: | ---: | ---: |\n"
	b.WriteString("\n## Encoders in ImageBind's sizes, equal GPUs\n\n" +
		"4, 7 and 10 tasks of two encoders each (docs/tasks), by the reference laws of H100 and A100:\n" +
		"kernels as others measured them, backward passes and networks as assumed. A row is the three sets.\n\n| cluster" + header)
	for _, c := range cellsOf(problems, rows, family("equal", func(q taskProblem) string { return q.cluster })) {
		line(c, false)
	}
	b.WriteString("\n## The same on unequal GPUs\n\n" +
		"Sixty clusters drawn of two or three of H100, A100, H200, B200 and RTX PRO 6000, one to three nodes of\n" +
		"four or eight of each. All but evenkeel take devices for equal: they plan as if each were the slowest,\n" +
		"with equal shares, and take the devices of any type first, whichever is fastest. The bound lets\n" +
		"devices of several types be divided at will and exchange nothing.\n\n| tasks" + header)
	byTasks := slices.SortedStableFunc(slices.Values(problems), func(a, b taskProblem) int { return a.of - b.of })
	for _, c := range cellsOf(byTasks, rows, family("mixed", func(q taskProblem) string { return fmt.Sprintf("%d tasks", q.of) })) {
		line(c, false)
	}
	b.WriteString("\n" + taskSummary(problems, rows))
	return b.Bytes()
}

func family(name string, title func(taskProblem) string) func(taskProblem) string {
	return func(q taskProblem) string {
		if q.family != name {
			return ""
		}
		return title(q)
	}
}

// taskSummary counts who is faster.
func taskSummary(problems []taskProblem, rows map[string]taskRow) string {
	all, slower, faster, below, taken := 0, 0, 0, 0, 0
	for _, q := range problems {
		r, known := rows[q.key()]
		if !known {
			continue
		}
		all++
		mine := r.Time["evenkeel"]
		for _, s := range taskStrategies() {
			if t := r.Time[s]; t > 0 && float64(t) < float64(mine)*(1-1e-6) {
				slower++
			}
		}
		if float64(r.Time["spindle"]) > 1.001*float64(mine) {
			faster++
		}
		if float64(r.Time["evenkeel"]) < float64(r.Continuous) {
			below++
		}
		if r.Taken == "evenkeel" {
			taken++
		}
	}
	return fmt.Sprintf("Over all %d problems evenkeel is slower than another strategy %d times, faster than spindle by 0.1 %% or more %d times,\nand below C* %d times. It is what solve recommends %d times.\n", all, slower, faster, below, taken)
}

// The page is what the table says, and the table holds every problem.
func TestTaskPage(t *testing.T) {
	rows := readTasks(t, "evidence/multitask/comparisons.csv")
	for _, q := range taskProblems(t) {
		r, known := rows[q.key()]
		if !known {
			t.Fatalf("no row for %s: run docs/spindle.sh", q.key())
		}
		for s, time := range r.Time {
			if time > 0 && float64(time) < float64(r.Bound)*(1-1e-6) {
				t.Errorf("%s: %s takes %v, less than the bound %v", q.key(), s, time, r.Bound)
			}
			if time > 0 && float64(time) < float64(r.Time["evenkeel"])*(1-1e-6) {
				t.Errorf("%s: %s takes %v, evenkeel %v", q.key(), s, time, r.Time["evenkeel"])
			}
		}
	}
	page, err := os.ReadFile("evidence/multitask/README.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := taskPage(t, rows); !bytes.Equal(got, page) {
		t.Errorf("results/evidence/multitask/README.md is not what comparisons.csv says; docs/spindle.sh writes it again:\n%s", got)
	}
}

// Spindle and its C* as they are rebuilt here reach on the drawn sets what an independent
// rebuild in Python reached: the median of T / C*, of which two digits are known. Fifteen of
// sixteen agree; of the last one ties among parts, which the waves depend on, make 1.0947.
func TestSpindleReachesWhatItsRebuildReached(t *testing.T) {
	const rounded = 0.0054
	want := map[int][4]float64{16: {1.05, 1.09, 1.11, 1.14}, 32: {1.10, 1.12, 1.15, 1.19}, 64: {1.13, 1.17, 1.21, 1.25}, 256: {1.17, 1.26, 1.33, 1.39}}
	for n, medians := range want {
		for i, tasks := range []int{4, 7, 10, 20} {
			var c comparedCell[taskRow]
			for set := range drawnSets {
				c.rows = append(c.rows, taskRow{Bound: units.Seconds(set)})
			}
			median, _ := c.spread(func(r taskRow) float64 { return spindleOverContinuous(t, int(r.Bound), tasks, n) })
			if math.Abs(median-medians[i]) > rounded {
				t.Errorf("%d devices, %d tasks: median T / C* %.4f, want %.2f", n, tasks, median, medians[i])
			}
		}
	}
}

func spindleOverContinuous(t *testing.T, set, tasks, devices int) float64 {
	t.Helper()
	p := taskProblem{"drawn", drawnTasks(set, tasks), set, tasks, fmt.Sprintf("1x%d device", devices)}.problem(t)
	plan, err := multitask.Spindle{}.Solve(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return float64(plan.Time / p.Continuous())
}

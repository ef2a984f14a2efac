package results

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
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
	costs "github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/multitask"
)

// taskProblem is one comparison to make.
type taskProblem struct {
	family  string // "drawn", "equal" or "mixed"
	tasks   *costs.Tasks
	set     int // which of the drawn sets
	of      int // number of tasks
	cluster string
}

func (q taskProblem) key() string {
	return strings.Join([]string{q.family, strconv.Itoa(q.of), strconv.Itoa(q.set), q.cluster}, "|")
}

const drawnSets = 60

// taskProblems are the made-up sets of the reference to Spindle on equal devices, encoders in
// ImageBind's sizes on equal GPUs by the reference laws, and on unequal ones.
func taskProblems(t testing.TB) []taskProblem {
	t.Helper()
	var all []taskProblem
	for _, n := range []int{16, 32, 64, 256} {
		for _, tasks := range []int{4, 7, 10, 20} {
			for set := range drawnSets {
				all = append(all, taskProblem{"drawn", drawnTasks(set, tasks), set, tasks, fmt.Sprintf("1x%d device", n)})
			}
		}
	}
	clips := map[int]*costs.Tasks{}
	for _, n := range []int{4, 7, 10} {
		var c costs.Tasks
		if err := doc.Load(fmt.Sprintf("../docs/tasks/clip-%d.tasks.json", n), &c); err != nil {
			t.Fatal(err)
		}
		clips[n] = &c
	}
	for _, n := range []int{4, 7, 10} {
		for _, device := range []string{"h100_sxm", "a100_sxm"} {
			for _, nodes := range []int{1, 2, 4, 8} {
				all = append(all, taskProblem{"equal", clips[n], 0, n, fmt.Sprintf("%dx8 %s", nodes, device)})
			}
		}
	}
	r := rand.New(rand.NewPCG(9, 28))
	for set := range drawnSets {
		n := []int{4, 7, 10}[r.IntN(3)]
		all = append(all, taskProblem{"mixed", clips[n], set, n, mixedNodes(r)})
	}
	return all
}

// mixedNodes draws a cluster of two or three GPU types, with one to three nodes of four or
// eight of each.
func mixedNodes(r *rand.Rand) string {
	types := []string{"h100_sxm", "a100_sxm", "h200_sxm", "b200_sxm", "rtx_pro_6000_server"}
	r.Shuffle(len(types), func(i, j int) { types[i], types[j] = types[j], types[i] })
	var parts []string
	for _, device := range types[:2+r.IntN(2)] {
		parts = append(parts, fmt.Sprintf("%dx%d %s", 1+r.IntN(3), 4+4*r.IntN(2), device))
	}
	return strings.Join(parts, " + ")
}

// drawnTasks is a set as an independent rebuild of Spindle's planner draws it: what Python's
// random.Random(1000 set + tasks) draws, in this order: per task the batch, and for each of
// its two modules layers, work, fixed part and exchange. Times are in ms there.
func drawnTasks(set, tasks int) *costs.Tasks {
	r := newPython(uint32(1000*set + tasks))
	const ms = 1e-3
	out := &costs.Tasks{Name: "drawn"}
	for k := range tasks {
		batch := []int{32, 64, 128, 256}[r.below(4)]
		for range 2 {
			layers := []int{12, 12, 24, 32}[r.below(4)]
			w := math.Exp(r.uniform(math.Log(0.02), math.Log(1.2)))
			a, c := r.uniform(0.3, 1.2), r.uniform(0, 0.4)
			out.Modules = append(out.Modules, costs.Module{
				Name: fmt.Sprint("m", len(out.Modules)+1), Task: fmt.Sprint("t", k+1), Layers: layers, Batch: batch,
				Curve: &costs.Curve{Fixed: units.Seconds(a * ms), Sync: units.Seconds(c * ms), PerSample: units.Seconds(w * ms)},
			})
		}
	}
	return out
}

// problem prices a comparison.
func (q taskProblem) problem(t testing.TB) *multitask.Problem {
	t.Helper()
	var c *costs.Costs
	var err error
	if q.tasks.Published() {
		cluster, bad := costmodel.ParseCluster(q.cluster)
		if bad != nil {
			t.Fatal(bad)
		}
		c, err = costs.Published(q.tasks, cluster)
	} else {
		profile, job := reference.Job(t, reference.Llama(1), q.cluster, 1024)
		c, err = costs.FromLaws(costmodel.NewPredictor(profile), q.tasks, job.Cluster, costs.Options{DType: job.DType})
	}
	if err != nil {
		t.Fatalf("%s: %v", q.key(), err)
	}
	return &multitask.Problem{Costs: c}
}

// taskRow is the result of a comparison.
type taskRow struct {
	Devices    int
	Time       map[string]units.Seconds // by strategy; 0 where it has no plan
	Continuous units.Seconds
	Bound      units.Seconds
	Planning   units.Seconds // ours
	Spindle    units.Seconds // its planning
	Taken      string        // the strategy whose plan is recommended
}

func taskStrategies() []string {
	var all []string
	for _, s := range multitask.Strategies() {
		all = append(all, s.Name())
	}
	return all
}

func (q taskProblem) solve(t testing.TB) taskRow {
	t.Helper()
	p := q.problem(t)
	begin := time.Now()
	clock := func() units.Seconds { return units.Seconds(time.Since(begin).Seconds()) }
	d, err := multitask.Solve(context.Background(), p, "", clock, nil)
	if err != nil {
		t.Fatalf("%s: %v", q.key(), err)
	}
	r := taskRow{Devices: p.Devices(), Time: map[string]units.Seconds{}, Continuous: p.Continuous(), Bound: multitask.Bound(p), Taken: d.Strategy}
	for _, c := range d.Compared {
		r.Time[c.Strategy] = c.Time
		switch c.Strategy {
		case multitask.Evenkeel{}.Name():
			r.Planning = c.Took
		case multitask.Spindle{}.Name():
			r.Spindle = c.Took
		}
	}
	return r
}

func taskHeader() []string {
	h := []string{"family", "tasks", "set", "cluster", "devices"}
	for _, s := range taskStrategies() {
		h = append(h, s+"_s")
	}
	return append(h, "continuous_s", "lower_bound_s", "recommended", "planning_s", "spindle_planning_s")
}

func (q taskProblem) fields(r taskRow) []string {
	number := func(v units.Seconds, digits int) string { return strconv.FormatFloat(float64(v), 'g', digits, 64) }
	f := []string{q.family, strconv.Itoa(q.of), strconv.Itoa(q.set), q.cluster, strconv.Itoa(r.Devices)}
	for _, s := range taskStrategies() {
		f = append(f, number(r.Time[s], 9))
	}
	return append(f, number(r.Continuous, 9), number(r.Bound, 9), r.Taken, number(r.Planning, 3), number(r.Spindle, 3))
}

// tableRows are the lines of a table of comparisons that a script makes, without the header;
// none if there is no file.
func tableRows(t testing.TB, path, script string, header []string) [][]string {
	t.Helper()
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
	if !slices.Equal(lines[0], header) {
		t.Fatalf("%s has other columns: %v; remove it and run %s again", path, lines[0], script)
	}
	return lines[1:]
}

// fields reads the fields of a line one after the other.
type fields struct {
	t    testing.TB
	line []string
}

func (f *fields) text() string {
	v := f.line[0]
	f.line = f.line[1:]
	return v
}

func (f *fields) seconds() units.Seconds {
	f.t.Helper()
	text := f.text()
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		f.t.Fatalf("%q, before %v: %v", text, f.line, err)
	}
	return units.Seconds(v)
}

// times are those of strategies.
func (f *fields) times(strategies []string) map[string]units.Seconds {
	f.t.Helper()
	of := map[string]units.Seconds{}
	for _, s := range strategies {
		of[s] = f.seconds()
	}
	return of
}

// appendRows adds to a table of comparisons the rows of problems that it lacks. row makes one.
func appendRows[Q compared, R any](t testing.TB, path string, header []string, known map[string]R, problems []Q, row func(Q) ([]string, string)) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := csv.NewWriter(file)
	if len(known) == 0 {
		if err := w.Write(header); err != nil {
			t.Fatal(err)
		}
	}
	for i, q := range problems {
		if _, ok := known[q.key()]; ok {
			continue
		}
		line, said := row(q)
		if err := w.Write(line); err != nil {
			t.Fatal(err)
		}
		w.Flush()
		fmt.Printf("%d: %s%s\n", i, q.key(), said)
	}
	if w.Flush(); w.Error() != nil {
		t.Fatal(w.Error())
	}
}

// readTasks reads the table of comparisons by key; none if there is no file.
func readTasks(t testing.TB, path string) map[string]taskRow {
	t.Helper()
	rows := map[string]taskRow{}
	for _, l := range tableRows(t, path, "docs/spindle.sh", taskHeader()) {
		f := fields{t, l[4:]}
		r := taskRow{Devices: int(f.seconds()), Time: f.times(taskStrategies()), Continuous: f.seconds(), Bound: f.seconds(), Taken: f.text(), Planning: f.seconds(), Spindle: f.seconds()}
		rows[strings.Join(l[:4], "|")] = r
	}
	return rows
}

// TestTasksEvidence makes the table and the page of results/evidence/multitask; see
// docs/spindle.sh.
func TestTasksEvidence(t *testing.T) {
	out := os.Getenv("EVENKEEL_TASKS")
	if out == "" {
		t.Skip("set EVENKEEL_TASKS to a folder, or run docs/spindle.sh: it takes minutes")
	}
	path := filepath.Join(out, "comparisons.csv")
	appendRows(t, path, taskHeader(), readTasks(t, path), taskProblems(t), func(q taskProblem) ([]string, string) { return q.fields(q.solve(t)), "" })
	if err := doc.WriteAtomic(filepath.Join(out, "README.md"), taskPage(t, readTasks(t, path))); err != nil {
		t.Fatal(err)
	}
}

// python is CPython's random.Random: the Mersenne Twister MT19937 (Matsumoto and Nishimura,
// 1998), seeded by an array of one word.
type python struct {
	state [624]uint32
	at    int
}

func newPython(seed uint32) *python {
	p := &python{at: 624}
	s := &p.state
	s[0] = 19650218
	for i := 1; i < len(s); i++ {
		s[i] = 1812433253*(s[i-1]^s[i-1]>>30) + uint32(i)
	}
	i := 1
	for range len(s) {
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*1664525) + seed
		if i++; i >= len(s) {
			s[0], i = s[len(s)-1], 1
		}
	}
	for range len(s) - 1 {
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*1566083941) - uint32(i)
		if i++; i >= len(s) {
			s[0], i = s[len(s)-1], 1
		}
	}
	s[0] = 1 << 31
	return p
}

func (p *python) word() uint32 {
	if s := &p.state; p.at >= len(s) {
		for i := range s {
			y := s[i]&(1<<31) | s[(i+1)%len(s)]&(1<<31-1)
			s[i] = s[(i+397)%len(s)] ^ y>>1
			if y&1 == 1 {
				s[i] ^= 0x9908b0df
			}
		}
		p.at = 0
	}
	y := p.state[p.at]
	p.at++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

func (p *python) uniform(lo, hi float64) float64 {
	a, b := p.word()>>5, p.word()>>6
	return lo + (hi-lo)*(float64(a)*67108864+float64(b))/9007199254740992
}

// below is random.choice's index among n: as many bits as n has, until they are below it.
func (p *python) below(n int) int {
	bits := 0
	for v := n; v > 0; v >>= 1 {
		bits++
	}
	for {
		if k := int(p.word() >> (32 - bits)); k < n {
			return k
		}
	}
}

package results

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

// pipelineProblem is one comparison to make.
type pipelineProblem struct {
	family  string // "published", "equal" or "mixed"
	model   string
	cluster string
	context units.Tokens
	batch   int
	seed    int
}

func (q pipelineProblem) key() string {
	return strings.Join([]string{q.family, q.model, q.cluster, strconv.Itoa(int(q.context)), strconv.Itoa(q.batch), strconv.Itoa(q.seed)}, "|")
}

// pipelineProblems are batches by FlexSP's published coefficients of a model of 13 billion
// parameters, on four stages, with little memory and with more; and by the reference laws, on
// equal GPUs and on unequal ones.
func pipelineProblems() []pipelineProblem {
	var all []pipelineProblem
	for _, gb := range []int{72, 40} {
		for _, context := range []units.Tokens{48 << 10, 96 << 10, 192 << 10} {
			for seed := 100; seed < 104; seed++ {
				all = append(all, pipelineProblem{"published", "13B", fmt.Sprintf("4x8 device of %d GB", gb), context, 512, seed})
			}
		}
	}
	for _, of := range []struct {
		model, cluster string
		batch          int
	}{
		{"8B", "2x8 h100_sxm", 256},
		{"8B", "2x8 a100_sxm", 256},
		{"13B", "4x8 h100_sxm", 512},
		{"13B", "4x8 a100_sxm", 512},
		{"70B", "8x8 h100_sxm", 512},
		{"70B", "8x8 a100_sxm", 512},
	} {
		for _, context := range []units.Tokens{48 << 10, 96 << 10, 192 << 10} {
			for seed := 100; seed < 102; seed++ {
				all = append(all, pipelineProblem{"equal", of.model, of.cluster, context, of.batch, seed})
			}
		}
	}
	r := rand.New(rand.NewPCG(11, 28))
	for seed := range 40 {
		model := []string{"8B", "13B"}[r.IntN(2)]
		all = append(all, pipelineProblem{"mixed", model, mixedNodes(r), []units.Tokens{48 << 10, 96 << 10, 192 << 10}[r.IntN(3)], 256, seed})
	}
	return all
}

// lengths have the median 1,000 and a standard deviation of the logarithm of 1.7, are cut at
// the context and rounded up to a multiple of 64.
func (q pipelineProblem) lengths(t testing.TB) []units.Tokens {
	t.Helper()
	d, err := workload.ParseDistribution(fmt.Sprintf("lognormal:median=1000,sd=1.7,seed=%d", q.seed))
	if err != nil {
		t.Fatal(err)
	}
	lengths := d.Lengths(q.batch)
	for i := range lengths {
		lengths[i] = (min(lengths[i], q.context) + 63) / 64 * 64
	}
	return lengths
}

// pipelineModel is a model in the sizes of Llama.
func pipelineModel(name string) costmodel.Model {
	m := reference.Llama(32)
	switch name {
	case "8B":
		m.Vocab = 128256
	case "13B":
		m = reference.Llama(40)
		m.Hidden, m.FFN, m.QHeads, m.KVHeads, m.HeadDim = 5120, 13824, 40, 40, 128
	case "70B":
		m = reference.Llama(80)
		m.Hidden, m.FFN, m.QHeads, m.KVHeads, m.HeadDim, m.Vocab = 8192, 28672, 64, 8, 128, 128256
	}
	return m
}

// problem prices a comparison; the job is nil where there are no laws.
func (q pipelineProblem) problem(t testing.TB) (*pipeline.Problem, *costmodel.Predictor, *costmodel.Job) {
	t.Helper()
	if q.family == "published" {
		gb, err := strconv.Atoi(strings.Fields(q.cluster)[3])
		if err != nil {
			t.Fatal(err)
		}
		// As an independent rebuild has them; memory by textbook estimates.
		c, err := costs.Published{
			Devices: 32, PerNode: 8, Layers: 40, SquareToken: 9.2852e-9, Token: 0.3060189e-3, Hidden: 5120, KVWidth: 5120,
			TokenBytes: 34 * 5120 * 40, LogitBytes: 6 * 32000, ElementBytes: 2, StateBytes: 16 * 13e9, Capacity: units.Bytes(gb) * 1e9,
		}.Costs(q.lengths(t))
		if err != nil {
			t.Fatal(err)
		}
		return &pipeline.Problem{Costs: c, Stages: 4}, nil, nil
	}
	profile, job := reference.Job(t, pipelineModel(q.model), q.cluster, 1024)
	job.OverlapZero = true
	predictor := costmodel.NewPredictor(profile)
	c, err := costs.FromLaws(predictor, job, q.lengths(t))
	if err != nil {
		t.Fatalf("%s: %v", q.key(), err)
	}
	return &pipeline.Problem{Costs: c}, predictor, &job
}

// pipelineRow is the result of a comparison. Times are 0 where there is no plan.
type pipelineRow struct {
	Devices    int
	Time       map[string]units.Seconds // by strategy
	Bound      units.Seconds
	Planning   units.Seconds // ours
	InfiniPipe units.Seconds // its planning
	Taken      string        // the strategy whose plan is recommended
	Stages     int           // of our plan
	// The same batch in groups of devices side by side, without a pipeline: the fastest of
	// what people run, FlexSP and ours.
	Adaptive, FlexSP, Groups units.Seconds
}

func pipelineStrategies() []string {
	var all []string
	for _, s := range pipeline.Strategies() {
		all = append(all, s.Name())
	}
	return all
}

func (q pipelineProblem) solve(t testing.TB) pipelineRow {
	t.Helper()
	p, predictor, job := q.problem(t)
	begin := time.Now()
	clock := func() units.Seconds { return units.Seconds(time.Since(begin).Seconds()) }
	d, err := pipeline.Solve(context.Background(), p, "", clock, nil)
	if err != nil {
		t.Fatalf("%s: %v", q.key(), err)
	}
	r := pipelineRow{Devices: p.Devices(), Time: map[string]units.Seconds{}, Bound: pipeline.Bound(p), Taken: d.Strategy}
	for _, c := range d.Compared {
		r.Time[c.Strategy] = c.Time
		switch c.Strategy {
		case pipeline.Evenkeel{}.Name():
			r.Planning = c.Took
		case pipeline.InfiniPipe{}.Name():
			r.InfiniPipe = c.Took
		}
	}
	plan, err := pipeline.Evenkeel{}.Solve(context.Background(), p)
	if err != nil {
		t.Fatalf("%s: %v", q.key(), err)
	}
	r.Stages = len(plan.Stages)
	if job != nil {
		q.groups(t, &r, p, predictor, *job)
	}
	return r
}

// groups plans the same batch in groups side by side, by the same laws.
func (q pipelineProblem) groups(t testing.TB, r *pipelineRow, p *pipeline.Problem, predictor *costmodel.Predictor, job costmodel.Job) {
	t.Helper()
	c, err := groupcost.FromLaws(context.Background(), predictor, job, groupcost.Options{})
	if err != nil {
		return // no group has room for the states
	}
	b := flexProblem(t, c, p.Lengths)
	// FlexSP takes minutes on larger clusters, and was made for equal devices.
	settings := batch.Settings{Longest: q.context, Fast: q.family != "equal" || q.model != "13B", ProgramTime: 2 * time.Second}
	for _, s := range batch.Strategies(settings) {
		plan, err := s.Solve(context.Background(), b)
		if err != nil {
			continue
		}
		switch {
		case s.Name() == "flexsp":
			r.FlexSP = plan.Time
		case s.Name() == "evenkeel":
			r.Groups = plan.Time
		case s.Claims().Baseline && (r.Adaptive == 0 || plan.Time < r.Adaptive):
			r.Adaptive = plan.Time
		}
	}
}

func pipelineHeader() []string {
	h := []string{"family", "model", "cluster", "context_tokens", "batch", "seed", "devices"}
	for _, s := range pipelineStrategies() {
		h = append(h, s+"_s")
	}
	return append(h, "lower_bound_s", "groups_today_s", "groups_flexsp_s", "groups_evenkeel_s", "recommended", "stages", "planning_s", "infinipipe_planning_s")
}

func (q pipelineProblem) fields(r pipelineRow) []string {
	number := func(v units.Seconds, digits int) string { return strconv.FormatFloat(float64(v), 'g', digits, 64) }
	f := append(strings.Split(q.key(), "|"), strconv.Itoa(r.Devices))
	for _, s := range pipelineStrategies() {
		f = append(f, number(r.Time[s], 9))
	}
	f = append(f, number(r.Bound, 9), number(r.Adaptive, 9), number(r.FlexSP, 9), number(r.Groups, 9))
	return append(f, r.Taken, strconv.Itoa(r.Stages), number(r.Planning, 3), number(r.InfiniPipe, 3))
}

// readPipelines reads the table of comparisons by key; none if there is no file.
func readPipelines(t testing.TB, path string) map[string]pipelineRow {
	t.Helper()
	rows := map[string]pipelineRow{}
	for _, l := range tableRows(t, path, "docs/infinipipe.sh", pipelineHeader()) {
		f := fields{t, l[6:]}
		r := pipelineRow{Devices: int(f.seconds()), Time: f.times(pipelineStrategies()), Bound: f.seconds(), Adaptive: f.seconds(), FlexSP: f.seconds(), Groups: f.seconds(), Taken: f.text()}
		r.Stages, r.Planning, r.InfiniPipe = int(f.seconds()), f.seconds(), f.seconds()
		rows[strings.Join(l[:6], "|")] = r
	}
	return rows
}

// TestPipelinesEvidence makes the table and the page of results/evidence/pipeline; see
// docs/infinipipe.sh.
func TestPipelinesEvidence(t *testing.T) {
	out := os.Getenv("EVENKEEL_PIPELINES")
	if out == "" {
		t.Skip("set EVENKEEL_PIPELINES to a folder, or run docs/infinipipe.sh: it takes minutes")
	}
	path := filepath.Join(out, "comparisons.csv")
	appendRows(t, path, pipelineHeader(), readPipelines(t, path), pipelineProblems(), func(q pipelineProblem) ([]string, string) {
		r := q.solve(t)
		return q.fields(r), fmt.Sprintf(": evenkeel %v, infinipipe %v, bound %v", r.Time["evenkeel"], r.Time["infinipipe"], r.Bound)
	})
	if err := doc.WriteAtomic(filepath.Join(out, "README.md"), pipelinePage(readPipelines(t, path))); err != nil {
		t.Fatal(err)
	}
}

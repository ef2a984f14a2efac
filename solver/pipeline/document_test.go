package pipeline

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// soundDocument has the plan of soundPlan beside a baseline that takes twice as long, one
// that takes four times as long, an equal plan and strategies without one. No plan takes less
// than half its time.
func soundDocument(t testing.TB) *Document {
	t.Helper()
	p, plan := soundPlan(t)
	account, err := p.Account(plan)
	if err != nil {
		t.Fatal(err)
	}
	took := func(times units.Seconds, today bool) *recommend.Plan {
		return &recommend.Plan{Baseline: today, Time: times * plan.Time}
	}
	attempts := []recommend.Attempt{
		{Strategy: "today", Baseline: true, Plan: took(2, true)},
		{Strategy: "before", Baseline: true, Plan: took(4, true)},
		{Strategy: "late", Published: true, Err: context.DeadlineExceeded},
		{Strategy: "illegal", Err: errors.New("not here")},
		{Strategy: "same", Published: true, Plan: took(1, false)},
		{Strategy: "ours", Plan: &recommend.Plan{Time: plan.Time, Step: account}},
	}
	found, err := recommend.Compare(attempts, plan.Time/2, "")
	if err != nil {
		t.Fatal(err)
	}
	return &Document{
		Header: doc.Header{Schema: Schema, Tool: "test"}, Name: "two nodes", Prices: "laws", Simulated: true, Lengths: p.Lengths, Layers: p.Layers,
		Devices: []string{"a", "a", "b", "b"}, Strategy: attempts[found.Chosen].Strategy, Plan: *plan, Bound: plan.Time / 2, Gap: 1,
		Memory: p.Memory(plan), Compared: found.Candidates, Notes: []string{"a note"},
	}
}

func TestADocumentComesBack(t *testing.T) {
	d := soundDocument(t)
	d.StagesOf, d.Inputs = "a.plan.json", []doc.Input{{Path: "a.plan.json", SHA256: strings.Repeat("0", 64)}}
	data, err := doc.Encode(d)
	if err != nil {
		t.Fatal(err)
	}
	var back Document
	if err := doc.Decode("x", data, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, &back); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// What was read is checked by the prices as what was made.
	p, _ := soundPlan(t)
	if found := Check(p.Costs, &back.Plan); len(found) > 0 {
		t.Errorf("%v", found)
	}
}

func TestADocumentNamesItsCandidates(t *testing.T) {
	d := soundDocument(t)
	if c := d.Chosen(); c == nil || c.Strategy != "ours" || c != &d.Compared[5] {
		t.Errorf("chosen: %+v", c)
	}
	if c := d.Baseline(); c == nil || c.Strategy != "today" || c != &d.Compared[0] {
		t.Errorf("baseline: %+v", c)
	}
	d.Compared = d.Compared[2:4]
	if c, b := d.Chosen(), d.Baseline(); c != nil || b != nil {
		t.Errorf("of none: %+v, %+v", c, b)
	}
	d.Compared = nil
	if err := d.Validate(); err != nil { // documents need not list any
		t.Error(err)
	}
}

// Each break is one thing wrong with a document, and what Validate must say of it; what is
// wrong with its plan and shows without prices is among them.
func TestADocumentNamesWhatIsWrong(t *testing.T) {
	sound := soundDocument(t)
	if err := sound.Validate(); err != nil {
		t.Fatal(err)
	}
	refuses := func(want string, damage func(*Document)) {
		t.Helper()
		d := *sound
		d.Plan = *deep(&sound.Plan)
		d.Lengths, d.Devices, d.Memory = append([]units.Tokens(nil), d.Lengths...), append([]string(nil), d.Devices...), append([]costs.Memory(nil), d.Memory...)
		d.Compared = append([]recommend.Candidate(nil), d.Compared...)
		damage(&d)
		if err := d.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	for _, x := range withoutPrices() {
		refuses(x.want, func(d *Document) { x.do(&d.Plan) })
	}
	inf, nan := units.Seconds(math.Inf(1)), units.Seconds(math.NaN())
	for want, damage := range map[string]func(*Document){
		"considered[5].interval.lo_s: 0 s, beside a hi_s of":    func(d *Document) { d.Compared[5].Interval.Lo = 0 },
		"considered[0].strategy: empty":                         func(d *Document) { d.Compared[0].Strategy = "" },
		"considered[2].planning_s: -1 s: want a time of 0":      func(d *Document) { d.Compared[2].Took = -1 },
		"lengths_tokens: 0: want 1 to 1048576 sequences":        func(d *Document) { d.Lengths = nil },
		"lengths_rows: 1: want one for each of":                 func(d *Document) { d.Rows = []int{0} },
		"lengths_tokens: 1048577: want 1 to 1048576 sequences":  func(d *Document) { d.Lengths = make([]units.Tokens, 1<<20+1) },
		"lengths_tokens[1]: 0: want 1 to 2147483647":            func(d *Document) { d.Lengths[1] = 0 },
		"lengths_tokens[2]: 2147483648: want 1 to 2147483647":   func(d *Document) { d.Lengths[2] = 1 << 31 },
		"chunks: have 10000 of the 10001 tokens of sequence 1":  func(d *Document) { d.Lengths[1]++ },
		"layers: 0: want 1 to 4096":                             func(d *Document) { d.Layers = 0 },
		"layers: 4097: want 1 to 4096":                          func(d *Document) { d.Layers = 4097 },
		"stages: have 3 layers: the model has 4":                func(d *Document) { d.Layers = 4 },
		"devices[2]: empty":                                     func(d *Document) { d.Devices[2] = "" },
		`stages_of: "a.plan.json": want one of inputs`:          func(d *Document) { d.StagesOf = "a.plan.json" },
		"stages[1].ranks: 3: there are 3 devices":               func(d *Document) { d.Devices = d.Devices[:3] },
		"stages[0].ranks: 0: there are 0 devices":               func(d *Document) { d.Devices = nil },
		"memory: of 1 stages: want 2":                           func(d *Document) { d.Memory = d.Memory[1:] },
		"memory[0]: want bytes of 0 or more":                    func(d *Document) { d.Memory[0].States = -1 },
		"memory[1]: want bytes of 0 or more":                    func(d *Document) { d.Memory[1].Activations = -1 },
		"memory[1]: want bytes of 0":                            func(d *Document) { d.Memory[1].Capacity = -1 },
		"memory[0]: 2 B: want at most what plans may fill, 1 B": func(d *Document) { d.Memory[0].States, d.Memory[0].Activations, d.Memory[0].Capacity = 1, 1, 1 },
		"lower_bound_s: -1 s: want a time of at most step_s, ":  func(d *Document) { d.Bound = -1 },
		"lower_bound_s: +Inf":                                   func(d *Document) { d.Bound = inf },
		"lower_bound_s: NaN":                                    func(d *Document) { d.Bound = nan },
		"lower_bound_s: ":                                       func(d *Document) { d.Bound = 1.01 * d.Time },
		"gap: 0: step_s over lower_bound_s - 1 is 1":            func(d *Document) { d.Gap = 0 },
		"gap: 1: step_s over lower_bound_s - 1 is 3":            func(d *Document) { d.Bound /= 2 },
		"gap: NaN": func(d *Document) { d.Gap = math.NaN() },

		"taken: true: the numbers recommend":                           func(d *Document) { d.Taken = true },
		"considered[5].strategy: \"ours\": is chosen":                  func(d *Document) { d.Strategy = "other" },
		"considered: none of them is chosen":                           func(d *Document) { d.Compared = d.Compared[:5] },
		"considered[5].step_s: 2 s: the plan, which is chosen, takes ": func(d *Document) { d.Compared[5].Time = 2 },
		"considered[0].step_s: 1 ns: less than lower_bound_s, ":        func(d *Document) { d.Compared[0].Time = 1e-9 },
		"considered[0].gap: 7: step_s over":                            func(d *Document) { d.Compared[0].Gap = 7 },
	} {
		refuses(want, damage)
	}
}

// FuzzDocument: a document that is taken can be written, and is the same when it is read
// again; and whatever it says, the checker comes to an end.
func FuzzDocument(f *testing.F) {
	// A plan of published prices, for reading the laws takes a fuzzer's workers long.
	p := batchOf(f, published(4, 0), 9000, 500, 8000)
	p.Stages = 2
	plan, err := Seq1F1B{}.Solve(f.Context(), p)
	if err != nil {
		f.Fatal(err)
	}
	data, err := doc.Encode(&Document{
		Header: doc.Header{Schema: Schema, Tool: "test"}, Name: "n", Prices: "p", Lengths: p.Lengths, Layers: p.Layers, Devices: []string{"a", "a", "a", "b"},
		Strategy: "s", Plan: *plan, Bound: plan.Time / 2, Gap: 1, Memory: p.Memory(plan), Notes: []string{},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"schema":"evenkeel.pipelineplan/v1","tool":"t","created":"","name":"n","prices":"p","lengths_tokens":[5,2],"layers":1,"devices":["d"],"strategy":"s","stages":[{"ranks":[0],"layers":1}],"chunks":[{"sequence":0,"slice_tokens":3},{"sequence":0,"context_tokens":3,"slice_tokens":2,"whole":[1]}],"recomputed_layers":[[0,1]],"orders":[[{"chunk":0,"start_s":0,"end_s":1},{"chunk":1,"start_s":1,"end_s":2},{"chunk":1,"backward":true,"start_s":2,"end_s":3},{"chunk":0,"backward":true,"start_s":3,"end_s":4}]],"step_s":4,"lower_bound_s":4,"gap":0,"memory":[{"states_bytes":0,"activations_bytes":0,"capacity_bytes":0}],"considered":[{"strategy":"s","verdict":"chosen","why":"w","step_s":4,"gap":0,"speedup_vs_baseline":0}],"notes":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var d, back Document
		if doc.Decode("x", data, &d) != nil {
			return
		}
		first, err := doc.Encode(&d)
		if err != nil {
			t.Fatal(err)
		}
		if err := doc.Decode("x", first, &back); err != nil {
			t.Fatal(err)
		}
		if again, err := doc.Encode(&back); err != nil || string(again) != string(first) {
			t.Fatalf("%v\n%s\n%s", err, first, again)
		}
		m := costs.Published{Devices: max(1, len(d.Devices)), PerNode: 8, Layers: d.Layers, Token: 1e-6}
		c, err := m.Costs(d.Lengths)
		if err != nil {
			t.Fatal(err)
		}
		Check(c, &d.Plan)
		// What a document may say can be simulated, if its stages do not wait for each other.
		if err := c.Simulate(&d.Plan); err != nil && !strings.Contains(err.Error(), "wait for each other") {
			t.Fatalf("%v: %s", err, first)
		}
	})
}

// A document may hold the job that its prices are of, which is that of its plan then.
func TestADocumentHoldsItsJob(t *testing.T) {
	d := soundDocument(t)
	if d.Priced() {
		t.Error("a document without a job is said to have one")
	}
	_, job := reference.Job(t, reference.Llama(d.Layers), "1x2 h100_sxm + 1x2 a100_sxm", slices.Max(d.Lengths))
	for r, x := range job.Cluster.Ranks() {
		d.Devices[r] = x.Device
	}
	d.Job = job
	if err := d.Validate(); err != nil || !d.Priced() {
		t.Fatal(err)
	}
	data, err := doc.Encode(d)
	if err != nil {
		t.Fatal(err)
	}
	var back Document
	if err := doc.Decode("x", data, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.Job, back.Job); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for want, damage := range map[string]func(*Document){
		"job.dtype: \"\": want":    func(d *Document) { d.Job.DType = "" },
		"job.model.layers: ":       func(d *Document) { d.Job.Model.Layers++ },
		"job.seq_len_tokens: ":     func(d *Document) { d.Job.SeqLen-- },
		"job.seq_len_tokens: 0":    func(d *Document) { d.Job.SeqLen = 0 },
		"job.cluster: 5 devices: ": func(d *Document) { d.Job.Cluster = clusterOf(t, "1x2 h100_sxm + 1x3 a100_sxm") },
		"job.cluster: its rank 0 is ": func(d *Document) {
			d.Job.Cluster = clusterOf(t, "1x2 a100_sxm + 1x2 h100_sxm")
		},
	} {
		now := *d
		damage(&now)
		if err := now.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func clusterOf(t testing.TB, text string) costmodel.Cluster {
	t.Helper()
	_, job := reference.Job(t, reference.Llama(8), text, 1)
	return job.Cluster
}

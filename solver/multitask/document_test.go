package multitask_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	costs "github.com/evenkeel/evenkeel/costmodel/multitask"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/multitask"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// towersDocument has the plan of towers beside a baseline that takes twice as long, one
// that takes four times as long, an equal plan and strategies without one. No plan takes less
// than half its time.
func towersDocument(t testing.TB, waves bool) *multitask.Document {
	t.Helper()
	c := towers(t)
	p := towersPlan(t, c, waves)
	account, err := c.Account(p)
	if err != nil {
		t.Fatal(err)
	}
	took := func(times units.Seconds, today bool) *recommend.Plan {
		return &recommend.Plan{Baseline: today, Time: times * p.Time}
	}
	attempts := []recommend.Attempt{
		{Strategy: "today", Baseline: true, Plan: took(2, true)},
		{Strategy: "before", Baseline: true, Plan: took(4, true)},
		{Strategy: "late", Published: true, Err: context.DeadlineExceeded},
		{Strategy: "illegal", Err: errors.New("not here")},
		{Strategy: "same", Published: true, Plan: took(1, false)},
		{Strategy: "ours", Plan: &recommend.Plan{Time: p.Time, Step: account}},
	}
	found, err := recommend.Compare(attempts, p.Time/2, "")
	if err != nil {
		t.Fatal(err)
	}
	d := &multitask.Document{
		Header: doc.Header{Schema: multitask.Schema, Tool: "test"}, Name: "towers", Prices: "laws", Modules: c.Tasks.Modules,
		Strategy: attempts[found.Chosen].Strategy, Plan: *p, Bound: p.Time / 2, Gap: 1, Memory: c.Memory(p), Compared: found.Candidates, Notes: []string{"a note"},
	}
	for _, pool := range c.Pools {
		d.Devices = append(d.Devices, multitask.PoolEntry(pool))
	}
	return d
}

func TestADocumentComesBack(t *testing.T) {
	for _, waves := range []bool{false, true} {
		d := towersDocument(t, waves)
		data, err := doc.Encode(d)
		if err != nil {
			t.Fatal(err)
		}
		var back multitask.Document
		if err := doc.Decode("x", data, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(d, &back); diff != "" {
			t.Errorf("waves %t (-want +got)\n%s", waves, diff)
		}
		// What was read is checked by the prices as what was made.
		if found := multitask.Check(towers(t), &back.Plan); len(found) > 0 {
			t.Errorf("waves %t: %v", waves, found)
		}
	}
}

func TestADocumentNamesItsCandidates(t *testing.T) {
	d := towersDocument(t, false)
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

// Each break is one thing wrong with a document, and what Validate must say of it.
func TestADocumentNamesWhatIsWrong(t *testing.T) {
	for want, damage := range map[string]func(*multitask.Document){
		"modules: 0: want 1 to 1000":                          func(d *multitask.Document) { d.Modules = nil },
		"modules[0] (text).batch_samples: missing or 0: want": func(d *multitask.Document) { d.Modules[0].Batch = 0 },
		"runs: 2 layers of both: it has 3":                    func(d *multitask.Document) { d.Modules[2].Layers = 3 },
		"devices[1].device: empty":                            func(d *multitask.Document) { d.Devices[1].Device = "" },
		"devices: none":                                       func(d *multitask.Document) { d.Devices = nil },
		"devices: ranks are not 0 to 3, each once":            func(d *multitask.Document) { d.Devices[1].Ranks[0][1] = 2 },
		"devices: ranks are not 0 to 4, each once":            func(d *multitask.Document) { d.Devices[1].Ranks = append(d.Devices[1].Ranks, []int{-1}) },
		"runs[1].ranks: 3 after 2: want rising ranks of 0":    func(d *multitask.Document) { d.Devices[1].Ranks[0] = d.Devices[1].Ranks[0][:1] },
		"runs[0].samples: 9 on 2 of 2 ranks":                  func(d *multitask.Document) { d.Runs[0].Samples[0] = 5 },
		"rank 1 is busy with runs[0] until":                   func(d *multitask.Document) { moveBy(&d.Runs[0], d.Runs[2].Start-1e-6) },
		"runs[1].wave: 1: want 0":                             func(d *multitask.Document) { d.Runs[1].Wave = 1 },
		"step_s: 0 s: the last run ends at":                   func(d *multitask.Document) { d.Time = 0 },
		"memory: of 3 ranks: the devices are 4":               func(d *multitask.Document) { d.Memory = d.Memory[1:] },
		"memory[3]: want bytes of 0 or more":                  func(d *multitask.Document) { d.Memory[3].Activations = -1 },
		"memory[1]: want bytes":                               func(d *multitask.Document) { d.Memory[1].Capacity = -1 },
		"memory[2]: 2 B: want at most what plans may fill, 1 B": func(d *multitask.Document) {
			d.Memory[2].States, d.Memory[2].Activations, d.Memory[2].Capacity = 1, 1, 1
		},
		"memory[0]: want bytes":                       func(d *multitask.Document) { d.Memory[0].States = -1 },
		"lower_bound_s: -1 s: want a time of at most": func(d *multitask.Document) { d.Bound = -1 },
		"lower_bound_s: +Inf":                         func(d *multitask.Document) { d.Bound = units.Seconds(math.Inf(1)) },
		"lower_bound_s: NaN":                          func(d *multitask.Document) { d.Bound = units.Seconds(math.NaN()) },
		"lower_bound_s: ":                             func(d *multitask.Document) { d.Bound = 1.01 * d.Time },
		"gap: 0: step_s over lower_bound_s - 1 is 1":  func(d *multitask.Document) { d.Gap = 0 },
		"gap: 1: step_s over lower_bound_s - 1 is 3":  func(d *multitask.Document) { d.Bound /= 2 },
		"gap: NaN": func(d *multitask.Document) { d.Gap = math.NaN() },

		"taken: true: the numbers recommend":                             func(d *multitask.Document) { d.Taken = true },
		"considered[5].strategy: \"ours\": is chosen":                    func(d *multitask.Document) { d.Strategy = "other" },
		"considered: none of them is chosen":                             func(d *multitask.Document) { d.Compared = d.Compared[:5] },
		"considered[5].verdict: considered[4] is chosen already":         func(d *multitask.Document) { d.Compared[4].Verdict, d.Compared[4].Strategy = recommend.Chosen, "ours" },
		"considered[3].verdict: \"fast\": want chosen, equal, ~, slower": func(d *multitask.Document) { d.Compared[3].Verdict = "fast" },
		"considered[0].verdict: \"equal\": takes":                        func(d *multitask.Document) { d.Compared[0].Verdict = recommend.Equal },
		"considered[5].step_s: 2 s: the plan, which is chosen, takes ":   func(d *multitask.Document) { d.Compared[5].Time = 2 },
		"considered[0].step_s: 1 ns: less than lower_bound_s, ":          func(d *multitask.Document) { d.Compared[0].Time = 1e-9 },
		"considered[0].step_s: 0 s: want a time above 0":                 func(d *multitask.Document) { d.Compared[0].Time = 0 },
		"considered[0].gap: 7: step_s over":                              func(d *multitask.Document) { d.Compared[0].Gap = 7 },
		"considered[4].speedup_vs_baseline: 100: the times give":         func(d *multitask.Document) { d.Compared[4].Speedup = 100 },
		"considered[5].interval.mid_s: 60 s":                             func(d *multitask.Document) { d.Compared[5].Interval = costmodel.Estimate{Lo: 60, Mid: 60, Hi: 60} },
		"considered[5].interval.lo_s: 0 s, beside a hi_s of 1.50 s":      func(d *multitask.Document) { d.Compared[5].Interval = costmodel.Estimate{Mid: 1, Hi: 1.5} },
		"considered[2].strategy: empty":                                  func(d *multitask.Document) { d.Compared[2].Strategy = "" },
		"considered[0].planning_s: -1 s: want":                           func(d *multitask.Document) { d.Compared[0].Took = -1 },
		"considered[2].gain_error_s: -1 s":                               func(d *multitask.Document) { d.Compared[2].GainError = -1 },
	} {
		t.Run(want, func(t *testing.T) {
			d := towersDocument(t, false)
			damage(d)
			if err := d.Validate(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("want %q, got %v", want, err)
			}
		})
	}
}

// FuzzDocument: a document that is taken can be written, and is the same when it is read
// again.
func FuzzDocument(f *testing.F) {
	f.Add([]byte(`{"schema":"evenkeel.taskplan/v1","tool":"t","created":"","name":"n","prices":"p","modules":[{"name":"m","task":"t","layers":1,"batch_samples":2,"curve":{"fixed_s":1,"sync_s":0,"sample_s":0}}],"devices":[{"device":"d","ranks":[[0]]}],"strategy":"s","runs":[{"module":0,"layers":1,"ranks":[0],"samples":[2],"start_s":0,"end_s":1}],"step_s":1,"lower_bound_s":1,"gap":0,"memory":[{"states_bytes":0,"activations_bytes":0,"capacity_bytes":0}],"considered":[{"strategy":"s","verdict":"chosen","why":"w","step_s":1,"gap":0,"speedup_vs_baseline":0},{"strategy":"z","verdict":"not legal","why":"w","gap":0,"speedup_vs_baseline":0}],"notes":[]}`))
	f.Add([]byte(`{"schema":"evenkeel.taskplan/v1","tool":"t","created":"2026-01-01T00:00:00Z","name":"n","prices":"p","modules":[{"name":"m","task":"t","layers":2,"batch_samples":2,"curve":{"fixed_s":1,"sync_s":0,"sample_s":0}},{"name":"k","task":"t","layers":1,"batch_samples":2,"after":["m"],"curve":{"fixed_s":1,"sync_s":0,"sample_s":0}}],"devices":[{"device":"d","ranks":[[0,2]]},{"device":"e","ranks":[[1]]}],"strategy":"s","waves":true,"runs":[{"module":0,"layers":2,"ranks":[0,1],"samples":[1,1],"start_s":0,"end_s":2},{"module":1,"layers":1,"ranks":[2],"samples":[2],"wave":1,"start_s":2,"end_s":3}],"step_s":3,"lower_bound_s":1.5,"gap":1,"memory":[{"states_bytes":7,"activations_bytes":9,"capacity_bytes":0},{"states_bytes":7,"activations_bytes":9,"capacity_bytes":0},{"states_bytes":7,"activations_bytes":9,"capacity_bytes":0}],"considered":[],"notes":["a"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var d, back multitask.Document
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
		checked(t, &d)
	})
}

// checked has a document's plan judged by published prices of its modules, if they have any:
// whatever a document says, the checker comes to an end.
func checked(t *testing.T, d *multitask.Document) {
	tasks := &costs.Tasks{Modules: d.Modules}
	cluster, err := costmodel.ParseCluster("1x4 any")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := costs.Published(tasks, cluster); err == nil {
		multitask.Check(c, &d.Plan)
	}
}

package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	costs "github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/multitask"
	"github.com/google/go-cmp/cmp"
)

// madeTasks is a plan of two encoders and a decoder that needs one of them, on three ranks:
// the first encoder's layers are run in two places, and rank 1 has none of the second.
func madeTasks() *multitask.Document {
	shape := costs.Shape{SeqLen: 12, Hidden: 32, FFN: 64, QHeads: 4}
	decoder := costs.Shape{SeqLen: 20, Hidden: 48, FFN: 64, QHeads: 6, KVHeads: 2, Causal: true, GatedMLP: true}
	d := &multitask.Document{
		Name: "three modules", Prices: "by hand", Strategy: "evenkeel",
		Modules: []costs.Module{
			{Name: "sees", Task: "a", Layers: 3, Batch: 4, Shape: &shape},
			{Name: "hears", Task: "b", Layers: 1, Batch: 5, Shape: &shape},
			{Name: "says", Task: "a", Layers: 2, Batch: 4, After: []string{"sees"}, Shape: &decoder},
		},
		Devices: []multitask.PoolEntry{{Device: "torch_cpu:1", Ranks: [][]int{{0, 2}}}, {Device: "torch_cpu:2", Ranks: [][]int{{1}}}},
		Options: costs.Options{DType: op.F32, Recompute: costmodel.RecomputeNone},
		Plan: costs.Plan{
			Runs: []costs.Run{
				{Module: 0, Layers: 2, Ranks: []int{0, 1}, Samples: []int{1, 3}, End: 2},
				{Module: 1, Layers: 1, Ranks: []int{2}, Samples: []int{5}, End: 1},
				{Module: 0, Layers: 1, Ranks: []int{1, 2}, Samples: []int{2, 2}, Start: 2, End: 3},
				{Module: 2, Layers: 2, Ranks: []int{0}, Samples: []int{4}, Start: 3, End: 6},
			},
			Time: 6,
		},
		Bound: 3, Gap: 1, Memory: make([]costs.Memory, 3), Notes: []string{},
	}
	d.Schema, d.Tool, d.Created = multitask.Schema, "evenkeel test", "2026-01-31T12:00:00Z"
	return d
}

// tasksFile writes that plan, with a change.
func tasksFile(t *testing.T, change func(*multitask.Document)) string {
	t.Helper()
	d := madeTasks()
	if change != nil {
		change(d)
	}
	data, err := json.Marshal(d) // doc.Save would refuse what is wrong
	path := filepath.Join(t.TempDir(), "x.tasks.json")
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func loadTasks(t *testing.T, change func(*multitask.Document)) *Plan {
	t.Helper()
	plans, err := LoadPlans([]string{tasksFile(t, change)})
	if err != nil {
		t.Fatal(err)
	}
	return plans[0]
}

// Ranks are given the models of modules, the devices and the runs, and nothing of how they were found.
func TestAPlanOfTasksIsHandedToRanks(t *testing.T) {
	p, d := loadTasks(t, nil), madeTasks()
	if !p.Tasks() || p.Batch() || p.Several() || loadPipeline(t, nil).Tasks() || p.Job.DType != op.F32 || p.Strategy != "evenkeel" || len(p.Ranks) != 3 || p.Ranks[1].Device != "torch_cpu:2" || p.Ranks[2].Device != "torch_cpu:1" {
		t.Errorf("%+v", p)
	}
	if diff := cmp.Diff(&TasksRun{Modules: d.Modules, Options: d.Options, Plan: d.Plan}, p.tasks); diff != "" || p.tasks.Layers() != 3 {
		t.Error(diff)
	}
	for _, want := range []string{
		`{"schema":"evenkeel.taskplan/v1","job":{"dtype":"f32","recompute":"none"},"ranks":[{"rank":0,"device":"torch_cpu:1"},{"rank":1,"device":"torch_cpu:2"},{"rank":2,`,
		`{"name":"sees","task":"a","layers":3,"batch_samples":4,"seq_len_tokens":12,"model":{`, `"after":["sees"],"seq_len_tokens":20,"causal":true,"model":{`,
		`"hidden":48,"ffn":64,"q_heads":6,"kv_heads":2,"head_dim":8,`, `"layer_norm":true,"position_rows":12`,
		`"runs":[{"module":0,"layers":2,"ranks":[0,1],"samples":[1,3],`,
	} {
		if !bytes.Contains(p.raw, []byte(want)) {
			t.Errorf("no %s in %s", want, p.raw)
		}
	}
	for _, none := range []string{"considered", "lower_bound_s", "memory", "curve"} {
		if bytes.Contains(p.raw, []byte(none)) {
			t.Errorf("ranks are given %q", none)
		}
	}
}

func TestWrongPlansOfTasksAreRefusedWithTheField(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*multitask.Document)
		want   string
	}{
		"version": {func(d *multitask.Document) { d.Schema = "evenkeel.taskplan/v9" }, "evenkeel.taskplan/v9 was written by evenkeel"},
		"curves": {func(d *multitask.Document) {
			for i := range d.Modules {
				d.Modules[i].Shape, d.Modules[i].Curve = nil, &costs.Curve{PerSample: 1}
			}
		}, "modules[0] (sees).shape: missing: its time is a curve"},
		"before":    {func(d *multitask.Document) { d.Options = costs.Options{} }, "dtype: missing: a plan from before it was written down; make it again"},
		"dtype":     {func(d *multitask.Document) { d.DType = "f64" }, `dtype: "f64": want f32, bf16, f16 or fp8`},
		"recompute": {func(d *multitask.Document) { d.Recompute = "some" }, `recompute: "some": want none or full`},
		"a rank":    {func(d *multitask.Document) { d.Runs[1].Ranks[0] = 3 }, "runs[1]"},
		"samples":   {func(d *multitask.Document) { d.Runs[1].Samples[0] = 4 }, "runs[1]"},
		"layers":    {func(d *multitask.Document) { d.Runs[3].Layers = 1 }, "says"},
	} {
		path := tasksFile(t, c.change)
		_, err := LoadPlans([]string{path})
		if err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", name, err, c.want)
		}
	}
}

// What a run's options do not go with, or the replayed layer.
func TestTasksRunWholeLayers(t *testing.T) {
	p := loadTasks(t, nil)
	if err := p.runnable(PartsLayer, nil); err != nil {
		t.Error(err)
	}
	var wrong *OptionError
	if err := p.runnable(PartsAttention, nil); !errors.As(err, &wrong) || wrong.Option != "parts" || !strings.Contains(wrong.Want, "layer, for the modules of "+p.Path) {
		t.Error(err)
	}
	if err := p.runnable(PartsLayer, []units.Tokens{12}); !errors.As(err, &wrong) || wrong.Option != "docs" {
		t.Error(err)
	}
	for want, change := range map[string]func(*multitask.Document){
		"simulated: true":                     func(d *multitask.Document) { d.Simulated = true },
		`job.dtype: "fp8"`:                    func(d *multitask.Document) { d.DType = op.FP8 },
		"modules[2] (says).shape.head_dim: 9": func(d *multitask.Document) { d.Modules[2].Shape.HeadDim = 9 },
	} {
		if err := loadTasks(t, change).runnable(PartsLayer, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for layers, want := range map[int]string{UsualLayers: "", 3: "", 2: "layers: 2: want 3, the most that a module of "} {
		config := Config{Plans: []*Plan{p}, Layers: layers}
		if layers == UsualLayers {
			config.Layers = config.usualLayers()
		}
		if err := config.asMany(); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%d layers: %v, want %q", layers, err, want)
		}
	}
}

// Plans of the same modules share a run, and no others.
func TestTasksShareARun(t *testing.T) {
	p := loadTasks(t, nil)
	other := loadTasks(t, func(d *multitask.Document) { d.Runs[0].Samples = []int{2, 2} })
	staged := loadPipeline(t, nil)
	if err := alike(p, other); err != nil {
		t.Error(err)
	}
	wider := loadTasks(t, func(d *multitask.Document) {
		d.Modules[1].Shape = &costs.Shape{SeqLen: 12, Hidden: 64, FFN: 64, QHeads: 4}
	})
	elsewhere := loadTasks(t, func(d *multitask.Document) { d.Devices[1].Device = "torch_cpu:4" })
	half := loadTasks(t, func(d *multitask.Document) { d.DType = op.BF16 })
	again := loadTasks(t, func(d *multitask.Document) { d.Recompute = costmodel.RecomputeFull })
	same := *staged
	same.Ranks = p.Ranks
	for _, c := range []struct {
		a, b *Plan
		want string
	}{
		{p, wider, "modules[1] (hears): not that of " + p.Path},
		{p, elsewhere, "ranks[1].device"},
		{p, half, "job.dtype"},
		{p, &same, "modules: 0 of them, " + p.Path + " has 3"},
		{&same, p, "modules: 3 of them, "},
	} {
		if err := alike(c.a, c.b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	if err := alike(p, again); err != nil {
		t.Error(err)
	}
}

// tasksHeader is of that plan.
func tasksHeader() *Header {
	h, d := madeHeader(), madeTasks()
	h.Docs, h.Layers, h.Repeats, h.Numerics, h.Exact = nil, 3, 1, h.Numerics[:1], h.Exact[:1]
	h.Ranks = append(h.Ranks, Rank{Rank: 2, Host: "here", Device: "torch_cpu:1", Threads: 1})
	h.Plans = []PlanRun{{
		Path: "x.tasks.json", SHA256: h.Plans[0].SHA256, Strategy: "evenkeel", Micro: 4, DType: op.F32,
		Tasks: &TasksRun{Modules: d.Modules, Options: d.Options, Plan: d.Plan},
	}}
	return h
}

// tasked changes the tasks of a header.
func tasked(change func(*TasksRun)) func(*Header, *Span) {
	return func(h *Header, _ *Span) { change(h.Plans[0].Tasks) }
}

// mixed adds the plan of another header.
func mixed(h, other *Header) {
	n, e := h.Numerics[0], h.Exact[0]
	n.Plan, e.Plan = 1, 1
	h.Plans, h.Numerics, h.Exact = append(h.Plans, other.Plans[0]), append(h.Numerics, n), append(h.Exact, e)
}

func TestATraceOfTasksReadsBackAndKeepsToItsRuns(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Header, *Span)
		want   string
	}{
		"good":        {func(*Header, *Span) {}, ""},
		"wait":        {func(_ *Header, s *Span) { s.Op = StageWait }, ""},
		"early wait":  {func(_ *Header, s *Span) { s.Op, s.MB, s.Layer, s.Dir = StageWait, 0, 1, Forward }, `op: "stage_wait": of layer 1: want it before the pass, at layer 0`},
		"its rank":    {func(_ *Header, s *Span) { s.MB, s.Layer = 3, 1 }, "rank: 1: run 3 is on [0]"},
		"its layer":   {func(_ *Header, s *Span) { s.Layer = 1 }, "layer: 1: run 2 has layers 2 to 2 of its module"},
		"a later one": {func(_ *Header, s *Span) { s.MB = 0 }, "layer: 2: run 0 has layers 0 to 1 of its module"},
		"its op":      {func(_ *Header, s *Span) { s.Op = A2AIn }, `op: "a2a_in": runs of tasks have none`},
		"forward sum": {func(_ *Header, s *Span) { s.Op, s.Dir = GradWait, Forward }, `op: "grad_wait": of layer 2, fwd, on 2 ranks: want it backward`},
		"late sum":    {func(_ *Header, s *Span) { s.Op, s.MB, s.Layer = GradWait, 0, 1 }, `op: "grad_wait": of layer 1, bwd, on 2 ranks: want it backward at the run's first layer, 0`},
		"sum of one":  {func(_ *Header, s *Span) { s.Op, s.Rank, s.MB, s.Layer = GradWait, 2, 1, 0 }, `op: "grad_wait": of layer 0, bwd, on 1 ranks`},
		"sums": {func(h *Header, _ *Span) {
			h.Numerics[0].Exchange = &ExchangeNumerics{Sum: 1e-7, Limit: 1e-5, DType: op.F32}
		}, ""},
		"wrong sums": {func(h *Header, _ *Span) {
			h.Numerics[0].Exchange = &ExchangeNumerics{Sum: 1e-4, Limit: 1e-5, DType: op.F32}
		}, "numerics[0].exchange.sum: 0.0001: want 0 to the limit"},
		"their type":   {func(h *Header, _ *Span) { h.Numerics[0].Exchange = &ExchangeNumerics{Limit: 1e-5, DType: op.FP8} }, `numerics[0].exchange.dtype: "fp8"`},
		"samples":      {func(h *Header, _ *Span) { h.Numerics[0].Layer.Samples, h.Numerics[0].Layer.OfSamples = 9, 8 }, "numerics[0].layer.samples: 9: want 0 to of_samples, 8"},
		"gradients":    {func(_ *Header, s *Span) { s.Op = GradWait }, ""},
		"weights":      {func(h *Header, _ *Span) { h.Numerics[0].Layer.DW = h.Numerics[0].Layer.Limit }, ""},
		"wrong":        {func(h *Header, _ *Span) { h.Numerics[0].Layer.DW = 2 * h.Numerics[0].Layer.Limit }, "numerics[0].layer.dw: "},
		"mb":           {func(_ *Header, s *Span) { s.MB = 4 }, "mb: 4: want 0 to 3"},
		"waves":        {tasked(func(x *TasksRun) { x.Runs[1].Wave = 1 }), "plans[0].tasks.runs[1].wave: 1"},
		"layer":        {func(_ *Header, s *Span) { s.Layer = 3 }, "layer: 3: want 0 to 2"},
		"step":         {func(_ *Header, s *Span) { s.Step = 1 }, "step: 1: want 0 to 0"},
		"again":        {func(_ *Header, s *Span) { s.Dir, s.Again = Forward, true }, "again: true: only a forward pass is run again, and only with recomputation"},
		"meet":         {func(_ *Header, s *Span) { s.Op = Meet }, `op: "meet": ranks meet after micro-batches`},
		"elsewhere":    {func(h *Header, s *Span) { *h, s.Op, s.MB, s.Layer = *pipelineHeader(), GradWait, 0, 0 }, `op: "grad_wait": gradients are added up of tasks and whole steps alone`},
		"parts":        {func(h *Header, _ *Span) { h.Parts = PartsAttention }, `parts, layers: "attention", 3: plan 0 is of tasks`},
		"layers":       {func(h *Header, _ *Span) { h.Layers = 4 }, `parts, layers: "layer", 4: plan 0 is of tasks`},
		"mixed":        {func(h *Header, _ *Span) { mixed(h, pipelineHeader()) }, "plans[1].tasks: of tasks are all plans of a run or none"},
		"mixed too":    {func(h *Header, s *Span) { *h = *pipelineHeader(); s.Layer, s.MB = 0, 0; mixed(h, tasksHeader()) }, "plans[1].tasks: of tasks are all plans of a run or none"},
		"few mb":       {func(h *Header, _ *Span) { h.Plans[0].Micro = 2 }, "plans[0].micro_batches: 2: want as many as there are runs, 4"},
		"a batch":      {func(h *Header, _ *Span) { h.Plans[0].Batch = true }, "plans[0].tasks: there are some, and batch"},
		"a model":      {func(h *Header, _ *Span) { h.Plans[0].Model = &madeTrained().Model }, "plans[0].model: of tasks each module has its own"},
		"dtype":        {func(h *Header, _ *Span) { h.Plans[0].DType = op.BF16 }, `plans[0].dtype: "bf16": want that of tasks, "f32"`},
		"a job":        {func(h *Header, _ *Span) { h.Plans[0].Job.SeqLen = 5 }, "plans[0].job, layout: only of a plan of one sequence"},
		"no dtype":     {func(h *Header, _ *Span) { h.Plans[0].DType, h.Plans[0].Tasks.DType = "", "" }, `plans[0].tasks.dtype: ""`},
		"recompute":    {tasked(func(x *TasksRun) { x.Recompute = "" }), `plans[0].tasks.recompute: ""`},
		"a name":       {tasked(func(x *TasksRun) { x.Modules[1].Name = "sees" }), "plans[0].tasks.modules[1].name"},
		"a rank":       {tasked(func(x *TasksRun) { x.Runs[1].Ranks[0] = 3 }), "plans[0].tasks.runs[1].ranks[0]: 3: want rising ranks of 0 to 2"},
		"batch":        {tasked(func(x *TasksRun) { x.Runs[1].Samples[0] = 4 }), "plans[0].tasks.runs[1].samples: 4 together: want batch_samples of hears, 5"},
		"order":        {tasked(func(x *TasksRun) { x.Runs[3], x.Runs[2] = x.Runs[2], x.Runs[3] }), "plans[0].tasks.runs[2].module: says begins before"},
		"layers of it": {tasked(func(x *TasksRun) { x.Runs[3].Layers = 1 }), "plans[0].tasks.runs: 1 of the 2 layers of says are in none"},
		"curves": {tasked(func(x *TasksRun) {
			for i := range x.Modules {
				x.Modules[i].Shape, x.Modules[i].Curve = nil, &costs.Curve{PerSample: 1}
			}
			x.Options = costs.Options{DType: op.F32, Recompute: costmodel.RecomputeNone}
		}), "a curve was not run"},
	} {
		path, h := filepath.Join(t.TempDir(), "x.trace.jsonl"), tasksHeader()
		h.Numerics[0].Layer = &LayerNumerics{Limit: 1e-4}
		s := Span{Rank: 1, Layer: 2, MB: 2, Dir: Backward, Op: Attn, T0NS: 5, DurNS: 9}
		c.change(h, &s)
		err := WriteTrace(path, h, func(span func(*Span) error, step func(*Step) error) error {
			err := span(&s)
			for r := range h.Ranks {
				err = errors.Join(err, step(&Step{Rank: r, DurNS: 90}))
			}
			return err
		})
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %s", name, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Fatal(name, err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ReadTrace(path, bytes.NewReader(data), Visitor{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tasksHeader().Plans, back.Plans); diff != "" || back.Plans[0].Of(back) != 3 {
			t.Error(name, diff)
		}
	}
}

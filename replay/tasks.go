package replay

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	costs "github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/multitask"
	"github.com/go-json-experiment/json"
)

// tasksKind begins the schemas of plans of tasks, of any version.
const tasksKind = "evenkeel.taskplan/"

// TasksRun is modules of several tasks, and what of them was run where.
type TasksRun struct {
	Modules []costs.Module `json:"modules"`
	costs.Options
	costs.Plan
}

// Layers are the most that a module has.
func (t *TasksRun) Layers() int {
	n := 0
	for _, m := range t.Modules {
		n = max(n, m.Layers)
	}
	return n
}

// tasksHead is a plan of tasks as the rank program reads it.
type tasksHead struct {
	Schema  string        `json:"schema"`
	Job     costs.Options `json:"job"`
	Ranks   []partRank    `json:"ranks"`
	Modules []moduleHead  `json:"modules"`
	Runs    []costs.Run   `json:"runs"`
}

// moduleHead is a module with the model of its layers.
type moduleHead struct {
	Name   string          `json:"name"`
	Task   string          `json:"task"`
	Layers int             `json:"layers"`
	Batch  int             `json:"batch_samples"`
	After  []string        `json:"after,omitempty"`
	SeqLen units.Tokens    `json:"seq_len_tokens"`
	Causal bool            `json:"causal,omitzero"`
	Model  costmodel.Model `json:"model"`
}

// readTasks fills a plan from a document of tasks.
func (p *Plan) readTasks(data []byte) error {
	var d multitask.Document
	if err := doc.Decode(p.Path, data, &d); err != nil {
		return err
	}
	for i, m := range d.Modules {
		if m.Shape == nil {
			return fmt.Errorf("%s: modules[%d] (%s).shape: missing: its time is a curve, of which no layer can be run; state shapes, and plan on a profile", p.Path, i, m.Name)
		}
	}
	if d.DType == "" {
		return fmt.Errorf("%s: dtype: missing: a plan from before it was written down; make it again: evenkeel solve --tasks", p.Path)
	}
	p.Header, p.Strategy, p.Simulated = d.Header, d.Strategy, d.Simulated
	p.Job = costmodel.Job{DType: d.DType, Recompute: d.Recompute}
	devices := 0
	for _, pool := range d.Devices {
		for _, node := range pool.Ranks {
			devices += len(node)
		}
	}
	if devices > costmodel.MaxRanks {
		return fmt.Errorf("%s: devices: %d: want at most %d", p.Path, devices, costmodel.MaxRanks)
	}
	p.Ranks = make([]solver.PlanRank, devices)
	for _, pool := range d.Devices {
		for _, node := range pool.Ranks {
			for _, r := range node {
				p.Ranks[r] = solver.PlanRank{Rank: r, Device: pool.Device, Group: -1}
			}
		}
	}
	p.tasks = &TasksRun{Modules: d.Modules, Options: d.Options, Plan: d.Plan}
	head := tasksHead{Schema: d.Schema, Job: d.Options, Ranks: p.bare(), Runs: d.Runs}
	for _, m := range d.Modules {
		head.Modules = append(head.Modules, moduleHead{
			Name: m.Name, Task: m.Task, Layers: m.Layers, Batch: m.Batch, After: m.After,
			SeqLen: m.Shape.SeqLen, Causal: m.Shape.Causal, Model: m.Model(),
		})
	}
	var err error
	p.raw, err = json.Marshal(head)
	return err
}

// runnableTasks refuses modules that the rank program does not do.
func (p *Plan) runnableTasks() error {
	for i, m := range p.tasks.Modules {
		if err := replayable(m.Model()); err != nil {
			return fmt.Errorf("%s: modules[%d] (%s).shape.%w", p.Path, i, m.Name, err)
		}
	}
	return nil
}

// sameTasks says what keeps two plans of tasks from running in the same processes.
func sameTasks(a, b *Plan) error {
	if modules(a) != modules(b) {
		return fmt.Errorf("modules: %d of them, %s has %d", modules(b), a.Path, modules(a))
	}
	for i := range modules(a) {
		if x := b.tasks.Modules[i]; !x.Same(a.tasks.Modules[i]) {
			return fmt.Errorf("modules[%d] (%s): not that of %s", i, x.Name, a.Path)
		}
	}
	return nil
}

// modules is how many a plan of tasks has, and 0 of another.
func modules(p *Plan) int {
	if p.tasks == nil {
		return 0
	}
	return len(p.tasks.Modules)
}

// validSpan says what of a span cannot be of the run that it names.
func (t *TasksRun) validSpan(s *Span) error {
	run, first := &t.Runs[s.MB], 0
	for _, x := range t.Runs[:s.MB] {
		if x.Module == run.Module {
			first += x.Layers
		}
	}
	last := first + run.Layers - 1
	_, has := slices.BinarySearch(run.Ranks, s.Rank)
	begins := map[Dir]int{Forward: first, Backward: last}[s.Dir]
	switch {
	case !has:
		return fmt.Errorf("rank: %d: run %d is on %v", s.Rank, s.MB, run.Ranks)
	case s.Layer < first || s.Layer > last:
		return fmt.Errorf("layer: %d: run %d has layers %d to %d of its module", s.Layer, s.MB, first, last)
	case !slices.Contains([]SpanOp{StageWait, LinearIn, Attn, LinearOut, GradWait}, s.Op):
		return fmt.Errorf("op: %q: runs of tasks have none", s.Op)
	case s.Op == StageWait && s.Layer != begins:
		return fmt.Errorf("op: %q: of layer %d: want it before the pass, at layer %d", s.Op, s.Layer, begins)
	case s.Op == GradWait && (s.Dir != Backward || s.Layer != first || len(run.Ranks) == 1):
		return fmt.Errorf("op: %q: of layer %d, %s, on %d ranks: want it backward at the run's first layer, %d, where there are several", s.Op, s.Layer, s.Dir, len(run.Ranks), first)
	}
	return nil
}

// validTasks checks the tasks of a trace.
func (p *PlanRun) validTasks(ranks int) error {
	x := p.Tasks
	switch {
	case p.Batch || p.Pipeline != nil || p.Groups != nil:
		return fmt.Errorf("tasks: there are some, and batch, pipeline or groups are not of them: want one of these")
	case p.Zero != "" || p.OverlapZero || p.LeftOut != nil:
		return fmt.Errorf("zero, overlap_zero, left_out_ranks: only of a plan of batches, and this is of tasks")
	case p.Model != nil:
		return fmt.Errorf("model: of tasks each module has its own")
	case p.DType != x.DType:
		return fmt.Errorf("dtype: %q: want that of tasks, %q", string(p.DType), string(x.DType))
	case p.Micro != len(x.Runs):
		return fmt.Errorf("micro_batches: %d: want as many as there are runs, %d", p.Micro, len(x.Runs))
	case p.Job.SeqLen != 0 || len(p.Layout.Shards) > 0 || len(p.Layout.Groups) > 0:
		return fmt.Errorf("job, layout: only of a plan of one sequence, and this is of tasks")
	}
	tasks := costs.Tasks{Modules: x.Modules}
	if err := tasks.Validate(); err != nil {
		return fmt.Errorf("tasks.%w", err)
	}
	if tasks.Published() {
		return fmt.Errorf("tasks.modules[0].shape: missing: a curve was not run")
	}
	if err := x.Options.Validate(); err != nil {
		return fmt.Errorf("tasks.%w", err)
	}
	if err := x.Plan.Validate(&tasks, ranks); err != nil {
		return fmt.Errorf("tasks.%w", err)
	}
	return nil
}

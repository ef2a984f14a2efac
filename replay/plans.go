package replay

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/go-json-experiment/json/jsontext"
)

// Plan is a plan document as it was read, to be handed to the ranks as it is. Of
// a plan of batches or of a pipeline, solver.Plan has the ranks' devices and the model
// and precision of the job alone, of batches its ZeRO stage too; of a plan of tasks not the
// model.
type Plan struct {
	solver.Plan
	Path    string
	SHA256  string
	raw     jsontext.Value
	micro   [][]part     // of a plan of batches
	leftOut []int        // ranks that a plan of batches trains without
	stages  *PipelineRun // of a plan of a pipeline
	tasks   *TasksRun    // of a plan of tasks
}

// Batch says that it is a plan of batches.
func (p *Plan) Batch() bool { return p.micro != nil }

// Several says that it is a plan of several sequences, which has a step of its own: of
// batches or of a pipeline.
func (p *Plan) Several() bool { return p.Batch() || p.stages != nil }

// Tasks says that it is a plan of several tasks.
func (p *Plan) Tasks() bool { return p.tasks != nil }

// LoadPlans reads plans and refuses those that no ranks can run, each by itself
// and all in one run: another schema, tokens or heads that nobody or two ranks
// have, ranks that are not the cluster's; plans for other devices, another
// model's layer or another precision than the first. Errors name file and field.
func LoadPlans(paths []string) ([]*Plan, error) { return LoadPlansOf(paths, nil) }

// LoadPlansOf is LoadPlans for plans of batches and pipelines too (documents of
// solver/batch and solver/pipeline): these train what is given, and are refused where
// nothing is.
func LoadPlansOf(paths []string, of *Trained) ([]*Plan, error) {
	var plans []*Plan
	for _, path := range paths {
		p, err := loadPlan(path, of)
		if err != nil {
			return nil, err
		}
		if len(plans) > 0 {
			if err := alike(plans[0], p); err != nil {
				return nil, fmt.Errorf("%s: %w; plans of one run share their ranks: replay it by itself", path, err)
			}
		}
		plans = append(plans, p)
	}
	if len(plans) == 0 {
		return nil, errors.New("no plan is given; name one that evenkeel solve wrote")
	}
	return plans, nil
}

func loadPlan(path string, of *Trained) (*Plan, error) {
	data, err := readPlan(path)
	if err != nil {
		return nil, err
	}
	p := &Plan{Path: path, SHA256: doc.HashBytes(data), raw: jsontext.Value(data)}
	schema, err := doc.SchemaOf(data)
	switch {
	case err == nil && schema == solver.PlanSchemaV1:
		return nil, fmt.Errorf("%s: schema: %q: a plan from before all-to-all groups, want %q; make it again: evenkeel solve", path, schema, solver.PlanSchema)
	case err == nil && strings.HasPrefix(schema, batchKind):
		return p, p.readBatch(data, of)
	case err == nil && strings.HasPrefix(schema, pipelineKind):
		return p, p.readPipeline(data, of)
	case err == nil && strings.HasPrefix(schema, tasksKind):
		return p, p.readTasks(data)
	}
	if err := doc.Decode(path, data, &p.Plan); err != nil {
		return nil, err
	}
	return p, p.raw.Compact() // one line
}

func readPlan(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no such file; name a plan that evenkeel solve wrote", path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, doc.MaxDocument+1))
	if errors.Is(err, syscall.EISDIR) {
		return nil, fmt.Errorf("%s: is a folder; name a plan that evenkeel solve wrote", path)
	}
	if err == nil && len(data) > doc.MaxDocument {
		err = fmt.Errorf("%s: more than %d bytes, which no plan has", path, doc.MaxDocument)
	}
	return data, err
}

// alike says what keeps two plans from running in the same processes.
func alike(a, b *Plan) error {
	if len(a.Ranks) != len(b.Ranks) {
		return fmt.Errorf("ranks: %d of them, %s has %d", len(b.Ranks), a.Path, len(a.Ranks))
	}
	for i := range a.Ranks {
		if x, y := a.Ranks[i].Device, b.Ranks[i].Device; x != y {
			return fmt.Errorf("ranks[%d].device: %q, %s has %q", i, y, a.Path, x)
		}
	}
	if a.Job.DType != b.Job.DType {
		return fmt.Errorf("job.dtype: %q, %s has %q", b.Job.DType, a.Path, a.Job.DType)
	}
	if err := sameTasks(a, b); a.Tasks() || err != nil {
		return err
	}
	if a.Several() && b.TwoBatch || a.TwoBatch && b.Several() {
		return fmt.Errorf("two_batch_overlap: %v, %s has %v, and one of them is a plan of several sequences, whose steps have micro-batches of their own", b.TwoBatch, a.Path, a.TwoBatch)
	}
	x, y := layerOf(a.Job.Model), layerOf(b.Job.Model)
	if x != y {
		return fmt.Errorf("job.model: a layer of %s, %s has %s", describe(y), a.Path, describe(x))
	}
	return nil
}

// layerOf is a model as far as it decides what a layer computes.
func layerOf(m costmodel.Model) costmodel.Model {
	m.Name, m.Layers, m.Vocab, m.TiedEmbeddings, m.VocabBias, m.MaxLen, m.PositionRows = "", 0, 0, false, false, 0, min(m.PositionRows, 1)
	return m
}

// listed are lengths as --docs has them, in tokens; of many the first few.
func listed(docs []units.Tokens) string {
	const few = 8
	var all []string
	for i, n := range docs {
		if i == few {
			return fmt.Sprintf("%s and %d more", strings.Join(all, ","), len(docs)-few)
		}
		all = append(all, strconv.FormatInt(int64(n), 10))
	}
	return strings.Join(all, ",")
}

func describe(m costmodel.Model) string {
	return fmt.Sprintf("%d query and %d key and value heads of %d, hidden %d, MLP %d", m.QHeads, m.KVHeads, m.HeadDim, m.Hidden, m.FFN)
}

// runnable refuses what the rank program does not do, in the fields of a plan.
func (p *Plan) runnable(parts string, docs []units.Tokens) error {
	if p.Simulated {
		return fmt.Errorf("%s: simulated: true: its devices exist only on a simulated backend; plan on a profile of devices that were measured", p.Path)
	}
	if (p.Several() || p.Tasks()) && len(docs) > 0 {
		return optionError("docs", listed(docs), fmt.Sprintf("none, for %s says itself what is packed", p.Path))
	}
	if validDocs(docs, p.Job.SeqLen) != nil {
		return optionError("docs", listed(docs), fmt.Sprintf("lengths from 1 that sum up to the %d tokens of %s", int64(p.Job.SeqLen), p.Path))
	}
	if p.Job.DType == op.FP8 {
		return fmt.Errorf("%s: job.dtype: %q: replay computes in f32, bf16 and f16; plan with --dtype bf16", p.Path, p.Job.DType)
	}
	if parts == PartsStep && (p.stages != nil || p.TwoBatch || p.Tasks()) {
		left, of := PartsLoss, "a pipeline"
		switch {
		case p.Tasks():
			left, of = PartsLayer, "tasks"
		case p.TwoBatch:
			left, of = PartsLayer, "micro-batches in twos (two_batch_overlap)"
		}
		return optionError("parts", parts, fmt.Sprintf("%s, for whole steps are run of batches and of one micro-batch of one sequence, and %s is of %s", left, p.Path, of))
	}
	if parts == PartsStep && p.Batch() && p.Job.Zero == "" {
		return optionError("parts", parts, fmt.Sprintf("%s, for %s does not say what is sharded (zero): it is from before plans of batches did, or of a published cost model; plan again with fitted laws", PartsLoss, p.Path))
	}
	if parts == PartsLoss && (p.TwoBatch || p.Tasks()) {
		return optionError("parts", parts, fmt.Sprintf("%s, for of tasks and of plans with two_batch_overlap, such as %s, layers alone are run", PartsLayer, p.Path))
	}
	if parts == PartsAttention && p.stages != nil {
		return optionError("parts", parts, fmt.Sprintf("%s, for the stages of %s send each other the results of whole layers", PartsLayer, p.Path))
	}
	if parts == PartsAttention && p.Tasks() {
		return optionError("parts", parts, fmt.Sprintf("%s, for the modules of %s hand on the results of whole layers", PartsLayer, p.Path))
	}
	if parts == PartsAttention {
		return nil
	}
	if p.Tasks() {
		return p.runnableTasks()
	}
	if err := replayable(p.Job.Model); err != nil {
		return fmt.Errorf("%s: job.model.%w; replay its attention alone: --parts attention", p.Path, err)
	}
	return nil
}

// replayable says what of a model the replayed layer does not have.
func replayable(m costmodel.Model) error {
	switch turned := m.RotaryDim; {
	case m.Activation != "":
		return fmt.Errorf("activation: %q: the replayed layer has silu with a gate and gelu without", m.Activation)
	case m.PositionRows == 0 && turned == 0 && m.HeadDim%2 != 0:
		return fmt.Errorf("head_dim: %d: the replayed layer turns pairs, want an even number", m.HeadDim)
	case m.PositionRows == 0 && (turned < 0 || turned > m.HeadDim || turned%2 != 0):
		return fmt.Errorf("rotary_dim: %d: the replayed layer turns pairs, want an even number up to head_dim", turned)
	}
	return nil
}

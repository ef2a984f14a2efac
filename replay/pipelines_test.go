package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	pipelines "github.com/evenkeel/evenkeel/solver/pipeline"
	"github.com/google/go-cmp/cmp"
)

// madePipeline is a plan of two layers on three ranks, of which ranks 0 and 2 have the
// first one and rank 1 the second: a sequence in two slices, with a short one behind the
// second, and one alone.
func madePipeline() *pipelines.Document {
	order := func(of ...pipeline.Op) []pipeline.Op {
		for i := range of {
			of[i].Start, of[i].End = units.Seconds(i), units.Seconds(i+1)
		}
		return of
	}
	d := &pipelines.Document{
		Name: "three ranks", Prices: "by hand", Lengths: []units.Tokens{60, 1, 40}, Layers: 2, Devices: []string{"torch_cpu:1", "torch_cpu:2", "torch_cpu:1"}, Strategy: "evenkeel",
		Plan: pipeline.Plan{
			Stages:    []pipeline.Stage{{Ranks: []int{0, 2}, Layers: 1}, {Ranks: []int{1}, Layers: 1}},
			Chunks:    []pipeline.Chunk{{Sequence: 0, Slice: 40}, {Sequence: 0, Context: 40, Slice: 20, Whole: []int{1}}, {Sequence: -1, Whole: []int{2}}},
			Recompute: [][]int{{1, 0, 0}, {0, 0, 1}},
			Orders: [][]pipeline.Op{
				order(pipeline.Op{}, pipeline.Op{Chunk: 1}, pipeline.Op{Chunk: 2}, pipeline.Op{Chunk: 1, Backward: true}, pipeline.Op{Backward: true}, pipeline.Op{Chunk: 2, Backward: true}),
				order(pipeline.Op{}, pipeline.Op{Chunk: 1}, pipeline.Op{Chunk: 1, Backward: true}, pipeline.Op{Backward: true}, pipeline.Op{Chunk: 2}, pipeline.Op{Chunk: 2, Backward: true}),
			},
			Time: 6,
		},
		Bound: 3, Gap: 1, Memory: make([]pipeline.Memory, 2), Notes: []string{},
	}
	d.Schema, d.Tool, d.Created = pipelines.Schema, "evenkeel test", "2026-01-31T12:00:00Z"
	return d
}

// pipelineFile writes that plan, with a change.
func pipelineFile(t *testing.T, change func(*pipelines.Document)) string {
	t.Helper()
	d := madePipeline()
	if change != nil {
		change(d)
	}
	data, err := json.Marshal(d) // doc.Save would refuse what is wrong
	path := filepath.Join(t.TempDir(), "x.pipeline.json")
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func loadPipeline(t *testing.T, change func(*pipelines.Document)) *Plan {
	t.Helper()
	plans, err := LoadPlansOf([]string{pipelineFile(t, change)}, madeTrained())
	if err != nil {
		t.Fatal(err)
	}
	return plans[0]
}

// Ranks are given the model, the devices and the plan, and nothing of how it was found.
func TestAPlanOfAPipelineIsHandedToRanks(t *testing.T) {
	p, d := loadPipeline(t, nil), madePipeline()
	if p.Batch() || p.stages == nil || !p.Several() || loadBatch(t, nil).stages != nil || p.Job.DType != op.F32 || p.Strategy != "evenkeel" || len(p.SHA256) != 64 || len(p.Ranks) != 3 || p.Ranks[1].Device != "torch_cpu:2" || p.Ranks[1].Group != -1 {
		t.Errorf("%+v", p)
	}
	if diff := cmp.Diff(&PipelineRun{Lengths: d.Lengths, Layers: 2, Plan: d.Plan}, p.stages); diff != "" {
		t.Error(diff)
	}
	var got map[string]any
	if err := json.Unmarshal(p.raw, &got); err != nil {
		t.Fatal(err)
	}
	keys := []string{"chunks", "job", "layers", "lengths_tokens", "orders", "ranks", "recomputed_layers", "schema", "stages", "step_s"}
	for key := range got {
		if !slices.Contains(keys, key) {
			t.Errorf("ranks are given %q", key)
		}
	}
	for _, want := range []string{
		`"schema":"evenkeel.pipelineplan/v1"`, `"dtype":"f32"`, `"q_heads":4`, `"ranks":[{"rank":0,"device":"torch_cpu:1"},{"rank":1,"device":"torch_cpu:2"},{"rank":2,`,
		`"lengths_tokens":[60,1,40],"layers":2,"stages":[{"ranks":[0,2],"layers":1},{"ranks":[1],"layers":1}]`, `{"sequence":0,"context_tokens":40,"slice_tokens":20,"whole":[1]}`,
		`{"sequence":-1,"whole":[2]}`, `"recomputed_layers":[[1,0,0],[0,0,1]]`, `{"chunk":1,"backward":true,`,
	} {
		if !bytes.Contains(p.raw, []byte(want)) {
			t.Errorf("no %s in %s", want, p.raw)
		}
	}
	if asked := (&run{config: &Config{Plans: []*Plan{p, loadBatch(t, nil)}}}).request(seat{}); len(asked.Batches) != 2 || asked.Batches[0] != nil || asked.Batches[1] == nil {
		t.Errorf("%+v", asked.Batches)
	}
}

func TestWrongPlansOfPipelinesAreRefusedWithTheField(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pipelines.Document)
		of     func(*Trained)
		want   string
	}{
		"layers":     {nil, func(of *Trained) { of.Model.Layers = 3 }, "layers: 2: the model has 3: name the config.json that the plan was made for"},
		"heads":      {nil, func(of *Trained) { of.Model.QHeads, of.Model.KVHeads = 3, 1 }, "stages[0].ranks: 2 of them share each layer's heads, and the model has 3 query heads"},
		"model":      {nil, func(of *Trained) { of.Model.HeadDim = 0 }, "the model: head_dim"},
		"window":     {nil, func(of *Trained) { of.Model.MaxLen = 50 }, "lengths_tokens[0]: 60: the model attends fully up to 50 tokens"},
		"dtype":      {nil, func(of *Trained) { of.DType = "i8" }, `the dtype: "i8": want f32, bf16 or f16`},
		"fp8":        {nil, func(of *Trained) { of.DType = op.FP8 }, `the dtype: "fp8": want f32, bf16 or f16`},
		"version":    {func(d *pipelines.Document) { d.Schema = "evenkeel.pipelineplan/v9" }, nil, "evenkeel.pipelineplan/v9 was written by evenkeel"},
		"twice":      {func(d *pipelines.Document) { d.Chunks[2].Whole = []int{2, 1} }, nil, "chunks[2]: has tokens 0 to 1 of sequence 1"},
		"device":     {func(d *pipelines.Document) { d.Devices = d.Devices[:2] }, nil, "stages[0].ranks: 2: there are 2 devices"},
		"no devices": {func(d *pipelines.Document) { d.Devices = nil }, nil, "stages[0].ranks: 0: there are 0 devices"},
		"two passes": {func(d *pipelines.Document) { d.Orders[0][1] = d.Orders[0][0] }, nil, "orders[0]"},
		"they wait": {func(d *pipelines.Document) { // each stage by itself can
			d.Orders[0], d.Orders[1] = d.Orders[1], d.Orders[0]
		}, nil, "orders: stages wait for each other: stage 0 for chunk 1"},
	} {
		path, of := pipelineFile(t, c.change), madeTrained()
		if c.of != nil {
			c.of(of)
		}
		_, err := LoadPlansOf([]string{path}, of)
		if err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", name, err, c.want)
		}
	}
	path := pipelineFile(t, nil)
	var none *NoModelError
	if _, err := LoadPlans([]string{path}); !errors.As(err, &none) || !strings.Contains(err.Error(), path+`: schema: "evenkeel.pipelineplan/v1": such a plan does not hold the model that it trains; name its config.json: --model`) {
		t.Error(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, torn := range [][]byte{data[:len(data)-9], data[:len(data)/2]} {
		if err := os.WriteFile(path, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadPlansOf([]string{path}, madeTrained()); err == nil || !strings.HasPrefix(err.Error(), path) {
			t.Error(err)
		}
	}
}

// What a run's options do not go with, or the replayed layer.
func TestPipelinesRunWholeLayersOfTheirOwnSequences(t *testing.T) {
	p := loadPipeline(t, nil)
	if err := p.runnable(PartsLayer, nil); err != nil {
		t.Error(err)
	}
	var wrong *OptionError
	if err := p.runnable(PartsAttention, nil); !errors.As(err, &wrong) || wrong.Option != "parts" || !strings.Contains(wrong.Want, "layer, for the stages of "+p.Path) {
		t.Error(err)
	}
	if err := p.runnable(PartsLoss, nil); err != nil {
		t.Error(err)
	}
	if err := loadBatch(t, nil).runnable(PartsLoss, nil); err != nil {
		t.Error(err)
	}
	twos := *loadBatch(t, nil)
	twos.TwoBatch = true
	for _, p := range []*Plan{&twos, loadTasks(t, nil)} {
		if err := p.runnable(PartsLoss, nil); !errors.As(err, &wrong) || wrong.Option != "parts" || !strings.Contains(wrong.Want, "layers alone are run") {
			t.Error(err)
		}
	}
	if err := p.runnable(PartsLayer, []units.Tokens{101}); !errors.As(err, &wrong) || wrong.Option != "docs" || !strings.Contains(wrong.Want, "none, for "+p.Path) {
		t.Error(err)
	}
	if err := loadPipeline(t, func(d *pipelines.Document) { d.Simulated = true }).runnable(PartsLayer, nil); err == nil || !strings.Contains(err.Error(), "simulated: true: its devices exist only on a simulated backend") {
		t.Error(err)
	}
	odd := madeTrained()
	odd.Model.Activation = "relu"
	plans, err := LoadPlansOf([]string{p.Path}, odd)
	if err != nil {
		t.Fatal(err)
	}
	if err := plans[0].runnable(PartsLayer, nil); err == nil || !strings.Contains(err.Error(), `job.model.activation: "relu"`) {
		t.Error(err)
	}
}

// Plans of all kinds share a run if they share ranks, layer and precision; none of several
// sequences goes beside two_batch_overlap.
func TestPipelinesShareARun(t *testing.T) {
	p, batch := loadPipeline(t, nil), loadBatch(t, nil)
	if err := alike(p, batch); err == nil || !strings.Contains(err.Error(), `ranks[1].device: "torch_cpu:1", `+p.Path+` has "torch_cpu:2"`) {
		t.Error(err)
	}
	other := loadPipeline(t, func(d *pipelines.Document) { d.Devices = []string{"torch_cpu:1", "torch_cpu:1", "torch_cpu:2"} })
	if err := errors.Join(alike(other, batch), alike(batch, other)); err != nil {
		t.Error(err)
	}
	twos := *other
	twos.stages, twos.TwoBatch = nil, true
	for _, err := range []error{alike(other, &twos), alike(&twos, other)} {
		if err == nil || !strings.Contains(err.Error(), "two_batch_overlap: ") {
			t.Error(err)
		}
	}
}

// A pipeline runs all its layers: unless told otherwise when it is alone, and plans beside it have
// to be told to.
func TestPipelinesRunAllLayers(t *testing.T) {
	p, batch := loadPipeline(t, nil), loadBatch(t, nil)
	for _, c := range []struct {
		plans  []*Plan
		layers int
		usual  int
		want   string
	}{
		{[]*Plan{p, p}, UsualLayers, 2, ""},
		{[]*Plan{p}, 2, 2, ""},
		{[]*Plan{batch, p}, 2, 1, ""},
		{[]*Plan{batch}, 7, 1, ""},
		{[]*Plan{p}, 1, 2, "layers: 1: want 2, for " + p.Path},
		{[]*Plan{p, batch}, UsualLayers, 1, "layers: 1: want 2, for " + p.Path},
	} {
		config := Config{Plans: c.plans, Layers: c.layers}
		if got := config.usualLayers(); got != c.usual {
			t.Errorf("%d plans: %d layers, want %d", len(c.plans), got, c.usual)
		}
		if config.Layers == UsualLayers {
			config.Layers = config.usualLayers()
		}
		if err := config.asMany(); (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%d layers of %d plans: %v, want %q", c.layers, len(c.plans), err, c.want)
		}
	}
}

// pipelineHeader is of that plan.
func pipelineHeader() *Header {
	h, d := madeHeader(), madePipeline()
	h.Docs, h.Repeats, h.Numerics, h.Exact = nil, 1, h.Numerics[:1], h.Exact[:1]
	h.Ranks = append(h.Ranks, Rank{Rank: 2, Host: "here", Device: "torch_cpu:1", Threads: 1})
	h.Plans = []PlanRun{{
		Path: "x.pipeline.json", SHA256: h.Plans[0].SHA256, Strategy: "evenkeel", Micro: 3, Model: &madeTrained().Model, DType: op.F32,
		Pipeline: &PipelineRun{Lengths: d.Lengths, Layers: d.Layers, Plan: d.Plan},
	}}
	return h
}

// withLoss makes a header one of a run with the loss.
func withLoss(h *Header) {
	h.Parts, h.LossChunk = PartsLoss, 8
	for i := range h.Numerics {
		h.Numerics[i].Loss = &LossNumerics{DX: 1e-7, Limit: 1e-5, Rows: 12}
	}
}

// staged changes the pipeline of a header.
func staged(change func(*PipelineRun)) func(*Header, *Span) {
	return func(h *Header, _ *Span) { change(h.Plans[0].Pipeline) }
}

func TestATraceOfAPipelineReadsBackAndKeepsToItsChunks(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Header, *Span)
		want   string
	}{
		"good":          {func(*Header, *Span) {}, ""},
		"wait":          {func(_ *Header, s *Span) { s.Again, s.Op, s.Step = false, StageWait, 0 }, ""},
		"backward":      {func(_ *Header, s *Span) { s.Again, s.Dir, s.Op = false, Backward, A2AOut }, ""},
		"mb":            {func(_ *Header, s *Span) { s.MB = 3 }, "mb: 3: want 0 to 2"},
		"below":         {func(_ *Header, s *Span) { s.MB = -1 }, "mb: -1: want 0 to 2"},
		"layer":         {func(_ *Header, s *Span) { s.Layer = 2 }, "layer: 2: want 0 to 1"},
		"step":          {func(_ *Header, s *Span) { s.Step = 2 }, "step: 2: want 0 to 1"},
		"heads":         {func(_ *Header, s *Span) { s.Chunk = 1 }, "chunk: 1: want 0 to 0"},
		"again":         {func(_ *Header, s *Span) { s.Dir = Backward }, "again: true: only a forward pass"},
		"meet":          {func(_ *Header, s *Span) { s.Again, s.Dir, s.Op = false, Backward, Meet }, `op: "meet": ranks meet after micro-batches`},
		"elsewhere":     {func(h *Header, s *Span) { *h, s.Op, s.MB, s.Layer, s.Again = *batchHeader(), StageWait, 0, 0, false }, `op: "stage_wait": of a pipeline's stages, or runs of tasks`},
		"loss":          {func(h *Header, s *Span) { withLoss(h); s.Again, s.Op, s.Step = false, Loss, 0 }, ""},
		"no loss":       {func(_ *Header, s *Span) { s.Again, s.Op, s.Step = false, Loss, 0 }, `op: "loss": no loss was run`},
		"loss chunk":    {func(h *Header, _ *Span) { withLoss(h); h.LossChunk = 0 }, "loss_chunk_tokens: 0: want 1 to"},
		"idle chunk":    {func(h *Header, _ *Span) { h.LossChunk = 1 }, "loss_chunk_tokens: 1: want 1 to"},
		"wrong loss":    {func(h *Header, _ *Span) { withLoss(h); h.Numerics[0].Loss.DX = 1 }, "numerics[0].loss.dx: 1: want 0 to the limit"},
		"stray loss":    {func(h *Header, _ *Span) { h.Numerics[0].Loss = &LossNumerics{Limit: 1} }, "numerics[0].loss: true: want it where parts is loss"},
		"unchecked":     {func(h *Header, _ *Span) { withLoss(h); h.Numerics[0].Loss = nil }, "numerics[0].loss: false: want it where parts is loss"},
		"loss again":    {func(h *Header, s *Span) { withLoss(h); s.Op, s.Step = Loss, 0 }, `op: "loss": of layer 1, fwd: want it behind the forward pass`},
		"early loss":    {func(h *Header, s *Span) { withLoss(h); s.Again, s.Op, s.Step, s.Layer = false, Loss, 0, 0 }, `op: "loss": of layer 0, fwd`},
		"an exchange":   {func(h *Header, _ *Span) { h.Numerics[0].Exchange = &ExchangeNumerics{Limit: 1, DType: op.F32} }, "numerics[0].exchange: gradients are added up of tasks and whole steps alone"},
		"in twos":       {func(h *Header, _ *Span) { *h = *madeHeader(); h.Plans[1].Layout.TwoBatch = true; withLoss(h) }, `parts: "loss": the micro-batches of plan 1 go in twos`},
		"no mb":         {func(h *Header, _ *Span) { h.Plans[0].Micro = 0 }, "plans[0].micro_batches: 0: want 1 to"},
		"few mb":        {func(h *Header, _ *Span) { h.Plans[0].Micro = 2 }, "plans[0].micro_batches: 2: want as many as there are chunks, 3"},
		"a batch":       {func(h *Header, _ *Span) { h.Plans[0].Batch = true }, "plans[0].pipeline: there is one, and batch is true"},
		"groups":        {func(h *Header, _ *Span) { h.Plans[0].Groups = [][]GroupRun{{}, {}, {}} }, "plans[0].groups: only of a plan of batches"},
		"no model":      {func(h *Header, _ *Span) { h.Plans[0].Model = nil }, "plans[0].model: missing"},
		"bad model":     {func(h *Header, _ *Span) { h.Plans[0].Model.KVHeads = 3 }, "plans[0].model."},
		"dtype":         {func(h *Header, _ *Span) { h.Plans[0].DType = "" }, `plans[0].dtype: ""`},
		"a job":         {func(h *Header, _ *Span) { h.Plans[0].Job.SeqLen = 5 }, "plans[0].job, layout: only of a plan of one sequence"},
		"docs":          {func(h *Header, _ *Span) { h.Docs = []units.Tokens{5} }, "docs_tokens[0]: 5"},
		"a bare model":  {func(h *Header, _ *Span) { h.Plans[0].Pipeline = nil }, "plans[0].model, dtype, groups: only of a plan of batches or a pipeline"},
		"layers":        {staged(func(x *PipelineRun) { x.Layers = 3 }), "plans[0].pipeline.layers: 3: want the model's 2"},
		"no length":     {staged(func(x *PipelineRun) { x.Lengths[1] = 0 }), "plans[0].pipeline.lengths_tokens[1]: 0: want 1 to"},
		"a long one":    {staged(func(x *PipelineRun) { x.Lengths[1] = maxTokens + 1 }), "plans[0].pipeline.lengths_tokens[1]: "},
		"tokens":        {staged(func(x *PipelineRun) { x.Lengths[0] = 61 }), "plans[0].pipeline.chunks: 1 of the 61 tokens of sequence 0 are in none"},
		"a rank":        {staged(func(x *PipelineRun) { x.Stages[1].Ranks[0] = 3 }), "plans[0].pipeline.stages[1].ranks[0]: 3: want rising ranks of 0 to 2"},
		"few layers":    {staged(func(x *PipelineRun) { x.Stages = x.Stages[:1] }), "plans[0].pipeline.stages: have 1 layers: want the model's 2"},
		"recomputation": {staged(func(x *PipelineRun) { x.Recompute[1][2] = 2 }), "plans[0].pipeline.recomputed_layers[1][2]: 2: want 0 to the stage's 1"},
		"an order":      {staged(func(x *PipelineRun) { x.Orders[0] = x.Orders[0][1:] }), "plans[0].pipeline.orders[0]: 5 passes: want 2 of each of 3 chunks"},
		"they wait":     {staged(func(x *PipelineRun) { x.Orders[0], x.Orders[1] = x.Orders[1], x.Orders[0] }), "plans[0].pipeline.orders: stages wait for each other"},
		"uneven heads": {func(h *Header, _ *Span) {
			h.Plans[0].Model.QHeads, h.Plans[0].Model.KVHeads = 3, 1
		}, "plans[0].pipeline.stages[0].ranks: 2 of them: want a divisor of the model's 3 query heads"},
	} {
		path, h := filepath.Join(t.TempDir(), "x.trace.jsonl"), pipelineHeader()
		s := Span{Rank: 1, Layer: 1, MB: 2, Dir: Forward, Again: true, Step: 1, Op: A2AOut, T0NS: 5, DurNS: 9}
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
		if diff := cmp.Diff(pipelineHeader().Plans, back.Plans); diff != "" || back.Plans[0].Of(back) != 2 {
			t.Error(name, diff)
		}
		if !bytes.Contains(data, []byte(`"pipeline":{"lengths_tokens":[60,1,40],"layers":2,"stages":[{`)) || bytes.Contains(data, []byte(`"job"`)) || bytes.Contains(data, []byte(`"batch"`)) {
			t.Errorf("%.900s", data)
		}
	}
	if h := madeHeader(); h.Plans[0].Of(h) != 1 {
		t.Error("a plan of one sequence does not run the header's layers")
	}
}

// A run of a pipeline has the header of one.
func TestARunOfAPipelineSaysSo(t *testing.T) {
	c, pids := fakeConfig(t, "well")
	p := loadPipeline(t, nil)
	c.Layers = UsualLayers
	c.Plans, c.Inputs = []*Plan{p}, []doc.Input{{Path: "x.pipeline.json", SHA256: p.SHA256}, {Path: "config.json", SHA256: p.SHA256}}
	if err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	nobodyLives(t, pids)
	f, err := os.Open(c.Out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := ReadTrace(c.Out, f, Visitor{})
	if err != nil {
		t.Fatal(err)
	}
	want := pipelineHeader().Plans[0]
	want.SHA256 = p.SHA256
	if diff := cmp.Diff(want, h.Plans[0]); diff != "" || len(h.Ranks) != 3 || h.Ranks[1].Threads != 2 {
		t.Errorf("%s %+v", diff, h.Ranks)
	}
}

// FuzzPipelinePlan: what is taken is a plan for the model, and no stages wait for each other.
func FuzzPipelinePlan(f *testing.F) {
	data, err := json.Marshal(madePipeline())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &Plan{Path: "x"}
		if p.readPipeline(data, madeTrained()) != nil {
			return
		}
		run := PlanRun{Micro: len(p.stages.Chunks), Model: &p.Job.Model, DType: p.Job.DType, Pipeline: p.stages}
		if err := run.validate(min(len(p.Ranks), costmodel.MaxRanks)); err != nil {
			t.Error(err)
		}
	})
}

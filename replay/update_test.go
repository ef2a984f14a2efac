package replay

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// stepHeader is of whole steps of two plans, by both stages that matter.
func stepHeader() *Header {
	h := madeHeader()
	h.Parts, h.LossChunk, h.Layers, h.Repeats = PartsStep, 8, 2, 1
	h.Plans[0].Job.Zero = costmodel.Zero0
	for i := range h.Plans {
		n := &h.Numerics[i]
		n.Loss = &LossNumerics{DX: 1e-7, Limit: 1e-5, Rows: 12}
		n.Exchange = &ExchangeNumerics{Sum: 1e-7, Limit: 1e-5, DType: op.F32, Kind: op.KindAllReduce}
		n.Update = &UpdateNumerics{Params: 1e-6, Limit: 1e-3, Parameters: h.Plans[i].Job.Model.Params()}
	}
	return h
}

func TestATraceOfWholeStepsKeepsToThem(t *testing.T) {
	span := func(o SpanOp, d Dir) func(*Header, *Span) {
		return func(_ *Header, s *Span) { s.Op, s.Dir = o, d }
	}
	for name, c := range map[string]struct {
		change func(*Header, *Span)
		want   string
	}{
		"lookup":        {span(Embed, Forward), ""},
		"its gradient":  {span(Embed, Backward), ""},
		"parameters":    {span(ParamWait, Forward), ""},
		"gradients":     {span(GradWait, Backward), ""},
		"optimizer":     {span(Optimizer, Backward), ""},
		"scattered":     {func(h *Header, _ *Span) { h.Numerics[1].Exchange.Kind = op.KindReduceScatter }, ""},
		"not scattered": {func(h *Header, _ *Span) { h.Numerics[0].Exchange.Kind = op.KindReduceScatter }, `numerics[0].exchange.kind: "reduce_scatter": want all_reduce, or reduce_scatter where the optimizer is sharded`},
		"no kind":       {func(h *Header, _ *Span) { h.Numerics[1].Exchange.Kind = "" }, `numerics[1].exchange.kind: ""`},
		"no exchange":   {func(h *Header, _ *Span) { h.Numerics[1].Exchange = nil }, "numerics[1].exchange: missing: want it where several ranks are at work, as 2 are"},
		"one rank": {func(h *Header, _ *Span) {
			x := &h.Plans[1].Layout
			x.Shards = []costmodel.Shard{{Segments: []costmodel.Segment{{Start: 0, End: 256}}}, {}}
			x.Groups = x.Groups[:1]
		}, "numerics[1].exchange: there is one: want none where one rank is at work"},
		"no update":   {func(h *Header, _ *Span) { h.Numerics[1].Update = nil }, "numerics[1].update: missing"},
		"wrong":       {func(h *Header, _ *Span) { h.Numerics[1].Update.Params = 1 }, "numerics[1].update.params: 1: want 0 to the limit 0.001"},
		"too few":     {func(h *Header, _ *Span) { h.Numerics[1].Update.Parameters-- }, "numerics[1].update.parameters: "},
		"of 1 layer":  {func(h *Header, _ *Span) { h.Layers = 1 }, "numerics[0].update.parameters: "},
		"no loss":     {func(h *Header, _ *Span) { h.Numerics[0].Loss = nil }, "numerics[0].loss: false: want it where parts is loss or step"},
		"no chunk":    {func(h *Header, _ *Span) { h.LossChunk = 0 }, "loss_chunk_tokens: 0: want 1 to"},
		"a batch":     {func(h *Header, _ *Span) { b := batchHeader(); h.Plans[0], h.Docs = b.Plans[0], nil }, `plans[0].zero, groups: "", `},
		"a pipeline":  {func(h *Header, _ *Span) { *h = *pipelineHeader(); withLoss(h); h.Parts = PartsStep }, `parts: "step": plan 0 is neither a batch nor one micro-batch of one sequence`},
		"two batches": {func(h *Header, _ *Span) { h.Plans[1].Micro = 2 }, `parts: "step": plan 1 is neither a batch nor one micro-batch of one sequence`},
		"in twos":     {func(h *Header, _ *Span) { h.Plans[1].Layout.TwoBatch = true }, `parts: "step": the micro-batches of plan 1 go in twos`},
		"late":        {func(_ *Header, s *Span) { s.Layer = 1 }, `op: "embed": of layer 1, fwd: want it at the first layer, and not again`},
		"early":       {span(Optimizer, Forward), `op: "optimizer": of layer 0, fwd: want it backward, at the first layer`},
		"elsewhere":   {func(h *Header, s *Span) { *h, s.Op = *madeHeader(), Optimizer }, `op: "optimizer": of whole steps alone, and parts is layer`},
		"stray update": {func(h *Header, _ *Span) {
			x := stepHeader().Numerics[0].Update
			*h = *madeHeader()
			h.Numerics[0].Update = x
		}, "numerics[0].update: of whole steps alone, and parts is layer"},
	} {
		path, h := filepath.Join(t.TempDir(), "x.trace.jsonl"), stepHeader()
		s := Span{Dir: Forward, Op: Embed, T0NS: 5, DurNS: 9}
		c.change(h, &s)
		err := WriteTrace(path, h, func(span func(*Span) error, step func(*Step) error) error {
			err := span(&s)
			for p := range h.Plans {
				for r := range h.Ranks {
					err = errors.Join(err, step(&Step{Plan: p, Rank: r, DurNS: 90}))
				}
			}
			return err
		})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// Whole steps are of all layers of the model unless it is said, and of plans of one sequence or
// of batches that say what is sharded.
func TestWholeStepsAreOfOneSequenceOrABatch(t *testing.T) {
	var wrong *OptionError
	for _, c := range []struct {
		of   *Plan
		want string
		kind string
	}{{loadPipeline(t, nil), PartsLoss, "a pipeline"}, {loadTasks(t, nil), PartsLayer, "tasks"}} {
		if err := c.of.runnable(PartsStep, nil); !errors.As(err, &wrong) || wrong.Option != "parts" || !strings.HasPrefix(wrong.Want, c.want+", for whole steps are run of batches and of one micro-batch of one sequence") || !strings.HasSuffix(wrong.Want, " is of "+c.kind) {
			t.Error(err)
		}
	}
	old := loadBatch(t, nil)
	if err := old.runnable(PartsStep, nil); !errors.As(err, &wrong) || !strings.HasPrefix(wrong.Want, PartsLoss+", for ") || !strings.Contains(wrong.Want, "does not say what is sharded") {
		t.Error(err)
	}
	if old.Job.Zero = costmodel.Zero1; old.runnable(PartsStep, nil) != nil {
		t.Error(old.runnable(PartsStep, nil))
	}
	config, _ := fakeConfig(t, "well")
	config.Parts, config.LossChunk, config.Layers = PartsStep, 64, UsualLayers
	layers := config.Plans[0].Job.Model.Layers
	if err := config.validate(); err != nil || config.Layers != layers || layers < 2 {
		t.Errorf("%d layers of %d: %v", config.Layers, layers, err)
	}
	config.Layers = layers + 1
	if err := config.validate(); !errors.As(err, &wrong) || wrong.Option != "layers" || !strings.HasPrefix(wrong.Want, "at most the ") {
		t.Error(err)
	}
	config.Layers, config.Plans[1].Job.Model.Layers = UsualLayers, layers+7
	if err := config.validate(); !errors.As(err, &wrong) || wrong.Option != "layers" || !strings.HasPrefix(wrong.Want, "how many to run: the model of ") {
		t.Error(err)
	}
	config.Layers, config.Plans[1].TwoBatch = layers, true
	if err := config.validate(); !errors.As(err, &wrong) || wrong.Option != "parts" || !strings.HasPrefix(wrong.Want, PartsLayer) {
		t.Error(err)
	}
	config.Layers, config.Plans[0] = UsualLayers, loadTasks(t, nil)
	if err := config.validate(); !errors.As(err, &wrong) || wrong.Option != "parts" {
		t.Error(err)
	}
}

// batchStepHeader is of whole steps of a plan of batches, of one by one of three ranks.
func batchStepHeader() *Header {
	h := batchHeader()
	h.Parts, h.LossChunk, h.Layers = PartsStep, 8, 2
	h.Ranks = append(h.Ranks, h.Ranks[1])
	h.Ranks[2].Rank = 2
	x, n := &h.Plans[0], &h.Numerics[0]
	x.Zero, x.OverlapZero, x.LeftOut = costmodel.Zero1, true, []int{2}
	model := *x.Model
	model.Layers = 2
	n.Loss = &LossNumerics{DX: 1e-7, Limit: 1e-5, Rows: 12}
	n.Exchange = &ExchangeNumerics{Sum: 1e-7, Limit: 1e-5, DType: op.F32, Kind: op.KindReduceScatter}
	n.Update = &UpdateNumerics{Params: 1e-6, Limit: 1e-3, Parameters: model.Params()}
	return h
}

func TestATraceOfWholeStepsOfABatchKeepsToThem(t *testing.T) {
	plan := func(change func(*PlanRun)) func(*Header, *Span) {
		return func(h *Header, _ *Span) { change(&h.Plans[0]) }
	}
	span := func(o SpanOp, micro int) func(*Header, *Span) {
		return func(_ *Header, s *Span) { s.Op, s.Dir, s.MB = o, Backward, micro }
	}
	for name, c := range map[string]struct {
		change func(*Header, *Span)
		want   string
	}{
		"as it is":      {func(*Header, *Span) {}, ""},
		"meets":         {span(Meet, 1), ""},
		"meets at last": {span(Meet, 2), `op: "meet": after micro-batch 2, the last`},
		"updates":       {span(Optimizer, 2), ""},
		"early":         {span(Optimizer, 1), `op: "optimizer": of micro-batch 1: want it behind the last, 2`},
		"gradients":     {span(GradWait, 0), ""},
		"no stage":      {plan(func(x *PlanRun) { x.Zero = "" }), `plans[0].zero, groups: "", 3: missing`},
		"no groups":     {plan(func(x *PlanRun) { x.Groups = nil }), `plans[0].zero, groups: "zero1", 0: missing`},
		"stage":         {plan(func(x *PlanRun) { x.Zero = "zero4" }), `plans[0].zero: "zero4": want zero0`},
		"whole":         {plan(func(x *PlanRun) { x.Zero = costmodel.Zero0 }), `numerics[0].exchange.kind: "reduce_scatter": want all_reduce`},
		"a stranger":    {plan(func(x *PlanRun) { x.LeftOut = []int{3} }), "plans[0].left_out_ranks[0]: 3: want ranks from 0 to 2 that rise"},
		"out of order":  {plan(func(x *PlanRun) { x.LeftOut = []int{2, 2} }), "plans[0].left_out_ranks[1]: 2: want"},
		"nobody":        {plan(func(x *PlanRun) { x.LeftOut = []int{0, 1, 2} }), "plans[0].left_out_ranks: all 3"},
		"at work":       {plan(func(x *PlanRun) { x.LeftOut = []int{1} }), "plans[0].groups[0][0].ranks[0]: 1: want rising ranks from 0 to 2, none in two groups or left out"},
		"one is left": {func(h *Header, _ *Span) {
			h.Plans[0].LeftOut, h.Plans[0].Groups = []int{1, 2}, [][]GroupRun{{madeGroup(0)}, {}, {}}
		}, "numerics[0].exchange: there is one: want none where one rank is at work"},
		"one sequence": {func(h *Header, _ *Span) { *h = *stepHeader(); h.Plans[0].Zero = costmodel.Zero1 }, "plans[0].zero, overlap_zero, left_out_ranks: only of a plan of batches"},
		"tasks":        {func(h *Header, _ *Span) { *h = *tasksHeader(); h.Plans[0].Zero = "zero9" }, "plans[0].zero, overlap_zero, left_out_ranks: only of a plan of batches, and this is of tasks"},
		"a pipeline":   {func(h *Header, _ *Span) { *h = *pipelineHeader(); h.Plans[0].LeftOut = []int{0} }, "plans[0].zero, overlap_zero, left_out_ranks: only of a plan of batches, and this is of a pipeline"},
		"too few":      {func(h *Header, _ *Span) { h.Numerics[0].Update.Parameters-- }, "numerics[0].update.parameters: "},
	} {
		path, h := filepath.Join(t.TempDir(), "x.trace.jsonl"), batchStepHeader()
		s := Span{Dir: Forward, Op: Embed, T0NS: 5, DurNS: 9}
		c.change(h, &s)
		err := WriteTrace(path, h, func(span func(*Span) error, step func(*Step) error) error {
			err := span(&s)
			for r := range h.Ranks {
				err = errors.Join(err, step(&Step{Rank: r, DurNS: 90}))
			}
			return err
		})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// What ranks need to know of a batch's exchange reaches them, and the trace.
func TestTheStageOfABatchReachesRanksAndTrace(t *testing.T) {
	p := loadBatch(t, func(d *batch.Document) { d.Zero, d.OverlapZero = costmodel.Zero2, true })
	if head := string(p.raw); !strings.Contains(head, `"zero":"zero2","overlap_zero":true`) || strings.Contains(head, "left_out_ranks") {
		t.Error(head)
	}
	if x := p.run(); x.Zero != costmodel.Zero2 || !x.OverlapZero || x.LeftOut != nil {
		t.Errorf("%+v", x)
	}
	x := PlanRun{Batch: true, DType: op.BF16}
	if zero, dtype := x.Stage(); zero != costmodel.Zero3 || dtype != op.BF16 {
		t.Error(zero, dtype)
	}
}

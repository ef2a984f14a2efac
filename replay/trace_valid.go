package replay

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Bounds that no true trace comes near.
const (
	maxRepeats = 1 << 20
	maxLayers  = 1 << 16
	maxNS      = int64(1e16) // four months
)

// Validate implements doc.Document: the first field that is missing, out of
// range or at odds with another.
func (h *Header) Validate() error {
	switch {
	case h.Backend != "gloo" && h.Backend != "nccl":
		return fmt.Errorf("backend: %q: want gloo or nccl", h.Backend)
	case !slices.Contains([]string{ModeCPU, ModeOneGPU, ModeNCCL}, h.Mode):
		return fmt.Errorf("mode: %q: want %s, %s or %s", h.Mode, ModeCPU, ModeOneGPU, ModeNCCL)
	case (h.Mode == ModeNCCL) != (h.Backend == "nccl"):
		return fmt.Errorf("mode: %q: cannot be with backend %s", h.Mode, h.Backend)
	case !slices.Contains(allParts(), h.Parts):
		return fmt.Errorf("parts: %q: want %s", h.Parts, strings.Join(allParts(), ", "))
	case WithLoss(h.Parts) && (h.LossChunk < 1 || h.LossChunk > maxTokens), !WithLoss(h.Parts) && h.LossChunk != 0:
		return fmt.Errorf("loss_chunk_tokens: %d: want 1 to %d where parts is %s or %s, else none", int64(h.LossChunk), int64(maxTokens), PartsLoss, PartsStep)
	case h.Layers < 1 || h.Layers > maxLayers:
		return fmt.Errorf("layers: %d: want 1 to %d", h.Layers, maxLayers)
	case h.Kernel == "":
		return fmt.Errorf("kernel: missing")
	case h.Repeats < 1 || h.Repeats > maxRepeats:
		return fmt.Errorf("repeats: %d: want 1 to %d", h.Repeats, maxRepeats)
	case h.Warmup < 0 || h.Warmup > maxRepeats:
		return fmt.Errorf("warmup: %d: want 0 to %d", h.Warmup, maxRepeats)
	case len(h.Ranks) == 0 || len(h.Ranks) > costmodel.MaxRanks:
		return fmt.Errorf("ranks: %d of them: want 1 to %d", len(h.Ranks), costmodel.MaxRanks)
	case len(h.Plans) == 0:
		return fmt.Errorf("plans: none of them: a trace is of at least one plan")
	}
	return h.validLists()
}

func (h *Header) validLists() error {
	for i, r := range h.Ranks {
		if err := r.validate(i); err != nil {
			return fmt.Errorf("ranks[%d].%w", i, err)
		}
	}
	for i := range h.Plans {
		if err := h.Plans[i].validate(len(h.Ranks)); err != nil {
			return fmt.Errorf("plans[%d].%w", i, err)
		}
		if (h.Plans[i].Tasks == nil) != (h.Plans[0].Tasks == nil) {
			return fmt.Errorf("plans[%d].tasks: of tasks are all plans of a run or none, and plan 0 is otherwise", i)
		}
		if x := h.Plans[i].Tasks; x != nil && (h.Parts != PartsLayer || h.Layers != x.Layers()) {
			return fmt.Errorf("parts, layers: %q, %d: plan %d is of tasks, whose modules hand on the results of whole layers, all %d of them: want %s, %d", h.Parts, h.Layers, i, x.Layers(), PartsLayer, x.Layers())
		}
		if WithLoss(h.Parts) && h.Plans[i].Layout.TwoBatch {
			return fmt.Errorf("parts: %q: the micro-batches of plan %d go in twos, of which layers alone are run: want %s", h.Parts, i, PartsLayer)
		}
		if x := &h.Plans[i]; h.Parts == PartsStep && (x.Pipeline != nil || x.Micro != 0 && !x.Batch) {
			return fmt.Errorf("parts: %q: plan %d is neither a batch nor one micro-batch of one sequence, of which alone whole steps are run: want %s or %s", h.Parts, i, PartsLoss, PartsLayer)
		}
		if x := &h.Plans[i]; h.Parts == PartsStep && x.Batch && (x.Zero == "" || x.Groups == nil) {
			return fmt.Errorf("plans[%d].zero, groups: %q, %d: missing: a whole step of a batch is exchanged by a ZeRO stage, and trained in groups", i, string(x.Zero), len(x.Groups))
		}
		if h.Parts == PartsAttention && h.Plans[i].Pipeline != nil {
			return fmt.Errorf("parts: %q: plan %d is a pipeline, whose stages send each other the results of whole layers: want %s", h.Parts, i, PartsLayer)
		}
		if err := validDocs(h.Docs, h.Plans[i].Job.SeqLen); err != nil {
			return err
		}
	}
	return h.validChecks()
}

func allParts() []string { return []string{PartsLayer, PartsLoss, PartsStep, PartsAttention} }

func (r Rank) validate(at int) error {
	switch {
	case r.Rank != at:
		return fmt.Errorf("rank: %d: ranks are listed in order, want %d", r.Rank, at)
	case r.Device == "":
		return fmt.Errorf("device: missing")
	case r.Threads < 0 || r.Threads > costmodel.MaxRanks:
		return fmt.Errorf("threads: %d: want 0, where it is not a processor, to %d", r.Threads, costmodel.MaxRanks)
	}
	for i, c := range r.Cores {
		if c < 0 {
			return fmt.Errorf("cores[%d]: %d: want the number of a core", i, c)
		}
	}
	return nil
}

func (p *PlanRun) validate(ranks int) error {
	if p.Tasks != nil {
		return p.validTasks(ranks)
	}
	if p.Batch || p.Pipeline != nil {
		return p.validSeveral(ranks)
	}
	if p.Model != nil || p.DType != "" || p.Groups != nil {
		return fmt.Errorf("model, dtype, groups: only of a plan of batches or a pipeline, and batch is false")
	}
	if p.Zero != "" || p.OverlapZero || p.LeftOut != nil {
		return fmt.Errorf("zero, overlap_zero, left_out_ranks: only of a plan of batches, and batch is false")
	}
	if p.Micro != 0 && p.Micro != 2 {
		return fmt.Errorf("micro_batches: %d: want 2 where micro-batches go in twos, or none, of a plan of one sequence", p.Micro)
	}
	if err := p.Job.Validate(); err != nil {
		return fmt.Errorf("job.%w", err)
	}
	if err := p.Layout.Validate(p.Job.SeqLen, ranks, p.Job.Model.QHeads); err != nil {
		return fmt.Errorf("layout.%w", err)
	}
	return nil
}

// maxMicro is beyond the micro-batches of any step.
const maxMicro = 1 << 20

func (p *PlanRun) validSeveral(ranks int) error {
	switch {
	case p.Micro < 1 || p.Micro > maxMicro:
		return fmt.Errorf("micro_batches: %d: want 1 to %d", p.Micro, maxMicro)
	case p.Batch && p.Pipeline != nil:
		return fmt.Errorf("pipeline: there is one, and batch is true: want one or the other")
	case p.Model == nil:
		return fmt.Errorf("model: missing: a plan of several sequences has none in a job")
	case !p.DType.Computes():
		return fmt.Errorf("dtype: %q: want f32, bf16, f16 or fp8", string(p.DType))
	case p.Job.SeqLen != 0 || len(p.Layout.Shards) > 0 || len(p.Layout.Groups) > 0:
		return fmt.Errorf("job, layout: only of a plan of one sequence, and this is of several")
	}
	if err := p.Model.Validate(); err != nil {
		return fmt.Errorf("model.%w", err)
	}
	if p.Pipeline != nil {
		if p.Zero != "" || p.OverlapZero || p.LeftOut != nil {
			return fmt.Errorf("zero, overlap_zero, left_out_ranks: only of a plan of batches, and this is of a pipeline")
		}
		return p.validPipeline(ranks)
	}
	switch p.Zero {
	case "", costmodel.Zero0, costmodel.Zero1, costmodel.Zero2, costmodel.Zero3:
	default:
		return fmt.Errorf("zero: %q: want zero0, zero1, zero2 or zero3", string(p.Zero))
	}
	for i, r := range p.LeftOut {
		if r < 0 || r >= ranks || i > 0 && r <= p.LeftOut[i-1] {
			return fmt.Errorf("left_out_ranks[%d]: %d: want ranks from 0 to %d that rise", i, r, ranks-1)
		}
	}
	if len(p.LeftOut) == ranks {
		return fmt.Errorf("left_out_ranks: all %d: want some that train", ranks)
	}
	return p.validGroups(ranks)
}

// most are the micro-batches of a step, and the ring steps that a span may tell;
// again: forward passes may be run a second time.
func (p *PlanRun) most(ranks int) (micro, steps int, again bool) {
	if p.Pipeline != nil { // an all-to-all in is step 0, one out step 1
		return p.Micro, 1, true
	}
	if p.Tasks != nil {
		return p.Micro, 0, p.Tasks.Recompute == costmodel.RecomputeFull
	}
	if p.Batch { // a ring has no more groups than ranks
		return p.Micro, ranks, true
	}
	return max(1, p.Micro, p.Job.Accumulate), len(p.Layout.Groups), p.Job.Recompute == costmodel.RecomputeFull
}

func validDocs(docs []units.Tokens, seqLen units.Tokens) error {
	var sum units.Tokens
	for i, n := range docs {
		if n < 1 || n > seqLen {
			return fmt.Errorf("docs_tokens[%d]: %d: want 1 to the sequence's %d tokens", i, int64(n), int64(seqLen))
		}
		if sum += n; sum > seqLen {
			break
		}
	}
	if len(docs) > 0 && sum != seqLen {
		return fmt.Errorf("docs_tokens: %d tokens in all, or more: the sequence has %d", int64(sum), int64(seqLen))
	}
	return nil
}

// validChecks: numerics and counts of every plan, in order.
func (h *Header) validChecks() error {
	if len(h.Numerics) != len(h.Plans) {
		return fmt.Errorf("numerics: %d of them: want one for each of %d plans", len(h.Numerics), len(h.Plans))
	}
	if len(h.Exact) != len(h.Plans) {
		return fmt.Errorf("exact: %d of them: want one for each of %d plans", len(h.Exact), len(h.Plans))
	}
	for i := range h.Plans {
		if err := h.Numerics[i].validate(i); err != nil {
			return fmt.Errorf("numerics[%d].%w", i, err)
		}
		if x := h.Numerics[i]; (x.Loss != nil) != WithLoss(h.Parts) {
			return fmt.Errorf("numerics[%d].loss: %v: want it where parts is %s or %s, and nowhere else", i, x.Loss != nil, PartsLoss, PartsStep)
		}
		if err := h.validUpdate(i); err != nil {
			return fmt.Errorf("numerics[%d].%w", i, err)
		}
		if err := h.Exact[i].validate(i); err != nil {
			return fmt.Errorf("exact[%d].%w", i, err)
		}
	}
	return nil
}

// validUpdate: what was checked of a plan's exchange of gradients and of its update.
func (h *Header) validUpdate(plan int) error {
	n, of := &h.Numerics[plan], &h.Plans[plan]
	if h.Parts != PartsStep {
		switch {
		case n.Exchange != nil && of.Tasks == nil:
			return fmt.Errorf("exchange: gradients are added up of tasks and whole steps alone")
		case n.Exchange != nil && n.Exchange.Kind != "":
			return fmt.Errorf("exchange.kind: %q: of whole steps alone", n.Exchange.Kind)
		case n.Update != nil:
			return fmt.Errorf("update: of whole steps alone, and parts is %s", h.Parts)
		}
		return nil
	}
	zero, _ := of.Stage()
	model, ranks := of.Job.Model, 0
	for _, g := range of.Layout.Groups {
		ranks += len(g)
	}
	if of.Batch {
		model, ranks = *of.Model, len(h.Ranks)-len(of.LeftOut)
	}
	model.Layers = h.Layers
	switch x := n.Exchange; {
	case x == nil && ranks > 1:
		return fmt.Errorf("exchange: missing: want it where several ranks are at work, as %d are", ranks)
	case x == nil:
	case ranks == 1:
		return fmt.Errorf("exchange: there is one: want none where one rank is at work")
	case x.Kind != op.KindAllReduce && (x.Kind != op.KindReduceScatter || zero == costmodel.Zero0):
		return fmt.Errorf("exchange.kind: %q: want %s, or %s where the optimizer is sharded", x.Kind, op.KindAllReduce, op.KindReduceScatter)
	}
	if n.Update == nil {
		return fmt.Errorf("update: missing: want it where parts is %s", PartsStep)
	}
	if want := model.Params(); n.Update.Parameters != want {
		return fmt.Errorf("update.parameters: %d: want the model's %d", n.Update.Parameters, want)
	}
	return nil
}

func (n *Numerics) validate(plan int) error {
	switch {
	case n.Plan != plan:
		return fmt.Errorf("plan: %d: plans are listed in order, want %d", n.Plan, plan)
	case n.Reference != "dense" && n.Reference != "sampled":
		return fmt.Errorf("reference: %q: want dense or sampled", n.Reference)
	case n.Rows < 0:
		return fmt.Errorf("rows: %d: must not be negative", n.Rows)
	}
	if n.Loss != nil {
		if err := within(n.Loss.Limit, []namedError{{"dx", n.Loss.DX}, {"dw", n.Loss.DW}}); err != nil {
			return fmt.Errorf("loss.%w", err)
		}
	}
	if n.Exchange != nil {
		if err := within(n.Exchange.Limit, []namedError{{"sum", n.Exchange.Sum}}); err != nil {
			return fmt.Errorf("exchange.%w", err)
		}
		if !n.Exchange.DType.Runs() {
			return fmt.Errorf("exchange.dtype: %q: want f32, bf16 or f16", string(n.Exchange.DType))
		}
	}
	if n.Update != nil {
		if err := within(n.Update.Limit, []namedError{{"params", n.Update.Params}}); err != nil {
			return fmt.Errorf("update.%w", err)
		}
	}
	errs := []namedError{{"out", n.Out}, {"dq", n.DQ}, {"dk", n.DK}, {"dv", n.DV}}
	if err := within(n.Limit, errs); err != nil || n.Layer == nil {
		return err
	}
	if l := n.Layer; l.Samples < 0 || l.OfSamples < l.Samples {
		return fmt.Errorf("layer.samples: %d: want 0 to of_samples, %d", l.Samples, l.OfSamples)
	}
	if err := within(n.Layer.Limit, []namedError{{"out", n.Layer.Out}, {"dx", n.Layer.DX}, {"dw", n.Layer.DW}}); err != nil {
		return fmt.Errorf("layer.%w", err)
	}
	return nil
}

type namedError struct {
	name  string
	value float64
}

// within: a run whose errors are above the limit writes no trace.
func within(limit float64, errs []namedError) error {
	if !(limit > 0) || limit > 1 {
		return fmt.Errorf("limit: %g: want above 0, at most 1", limit)
	}
	for _, e := range errs {
		if !(e.value >= 0) || e.value > limit || math.IsInf(e.value, 0) {
			return fmt.Errorf("%s: %g: want 0 to the limit %g", e.name, e.value, limit)
		}
	}
	return nil
}

func (e *ExactCounts) validate(plan int) error {
	switch {
	case e.Plan != plan:
		return fmt.Errorf("plan: %d: plans are listed in order, want %d", e.Plan, plan)
	case e.Messages < 0:
		return fmt.Errorf("messages: %d: must not be negative", e.Messages)
	case e.Bytes < 0:
		return fmt.Errorf("bytes: %d: must not be negative", int64(e.Bytes))
	case e.FLOPs < 0:
		return fmt.Errorf("flops: %d: must not be negative", e.FLOPs)
	}
	return nil
}

// where is what spans and steps have in common.
func (h *Header) where(block, plan, rank int, ns int64) error {
	switch {
	case block < 0 || block >= h.Repeats:
		return outOf("block", block, h.Repeats)
	case plan < 0 || plan >= len(h.Plans):
		return outOf("plan", plan, len(h.Plans))
	case rank < 0 || rank >= len(h.Ranks):
		return outOf("rank", rank, len(h.Ranks))
	case ns < 0 || ns > maxNS:
		return fmt.Errorf("dur_ns: %d: want 0 to %d", ns, maxNS)
	}
	return nil
}

func (h *Header) validSpan(s *Span) error {
	if err := h.where(s.Block, s.Plan, s.Rank, s.DurNS); err != nil {
		return err
	}
	of := &h.Plans[s.Plan]
	micro, steps, again := of.most(len(h.Ranks))
	switch {
	case s.Layer < 0 || s.Layer >= of.Of(h):
		return outOf("layer", s.Layer, of.Of(h))
	case s.MB < 0 || s.MB >= micro:
		return outOf("mb", s.MB, micro)
	case s.Dir != Forward && s.Dir != Backward:
		return fmt.Errorf("dir: %q: want %s or %s", s.Dir, Forward, Backward)
	case s.Again && (s.Dir != Forward || !again):
		return fmt.Errorf("again: true: only a forward pass is run again, and only with recomputation")
	case s.Step < 0 || s.Step > steps:
		return outOf("step", s.Step, steps+1)
	case s.Chunk < 0 || s.Chunk >= max(1, of.Layout.HeadChunks):
		return outOf("chunk", s.Chunk, max(1, of.Layout.HeadChunks))
	case !slices.Contains(spanOps(), s.Op):
		return fmt.Errorf("op: %q: want one of %v", s.Op, spanOps())
	case h.Parts == PartsAttention && (s.Op == LinearIn || s.Op == LinearOut):
		return fmt.Errorf("op: %q: only attention was run", s.Op)
	case s.Op == StageWait && of.Pipeline == nil && of.Tasks == nil:
		return fmt.Errorf("op: %q: of a pipeline's stages, or runs of tasks, and the plan is of neither", s.Op)
	case s.Op == Loss && !WithLoss(h.Parts):
		return fmt.Errorf("op: %q: no loss was run", s.Op)
	case (s.Op == ParamWait || s.Op == Embed || s.Op == Optimizer) && h.Parts != PartsStep:
		return fmt.Errorf("op: %q: of whole steps alone, and parts is %s", s.Op, h.Parts)
	case s.Op == Loss && (s.Dir != Forward || s.Again || s.Layer != of.Of(h)-1):
		return fmt.Errorf("op: %q: of layer %d, %s: want it behind the forward pass of the last, %d", s.Op, s.Layer, s.Dir, of.Of(h)-1)
	case s.Op == Embed && (s.Layer != 0 || s.Again):
		return fmt.Errorf("op: %q: of layer %d, %s: want it at the first layer, and not again", s.Op, s.Layer, s.Dir)
	case s.Op == Optimizer && (s.Layer != 0 || s.Dir != Backward):
		return fmt.Errorf("op: %q: of layer %d, %s: want it backward, at the first layer", s.Op, s.Layer, s.Dir)
	case s.Op == GradWait && of.Tasks == nil && h.Parts != PartsStep:
		return fmt.Errorf("op: %q: gradients are added up of tasks and whole steps alone, and the plan is of neither", s.Op)
	case s.Op == Meet && !of.Batch:
		return fmt.Errorf("op: %q: ranks meet after micro-batches, and batch is false", s.Op)
	case s.Op == Meet && h.Parts == PartsStep && s.MB == of.Micro-1:
		return fmt.Errorf("op: %q: after micro-batch %d, the last: in whole steps the optimizer comes behind it", s.Op, s.MB)
	case s.Op == Optimizer && of.Batch && s.MB != of.Micro-1:
		return fmt.Errorf("op: %q: of micro-batch %d: want it behind the last, %d", s.Op, s.MB, of.Micro-1)
	case s.T0NS < 0 || s.T0NS > maxNS:
		return fmt.Errorf("t0_ns: %d: want 0 to %d", s.T0NS, maxNS)
	}
	if of.Tasks != nil {
		if err := of.Tasks.validSpan(s); err != nil {
			return err
		}
	}
	return s.validAmounts()
}

func (s *Span) validAmounts() error {
	for _, a := range []struct {
		key string
		n   int64
	}{{"bytes_out", s.Out}, {"bytes_in", s.In}, {"flops", s.FLOPs}} {
		if a.n < 0 {
			return fmt.Errorf("%s: %d: must not be negative", a.key, a.n)
		}
	}
	if len(s.Shape) > 0 && s.Shape.Kind() != '{' {
		return fmt.Errorf("shape: %.40s: want an object", s.Shape)
	}
	return nil
}

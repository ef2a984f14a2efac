package replay

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/go-json-experiment/json/jsontext"
)

// TraceSchema is the schema of the traces this version reads and writes.
const TraceSchema = "evenkeel.trace/v1"

// Header is the first line of a trace: what was run, on what, and what was
// checked before anything was timed.
type Header struct {
	doc.Header
	Backend string `json:"backend"` // of torch.distributed: gloo or nccl
	Mode    string `json:"mode"`    // one of the modes below
	Parts   string `json:"parts"`   // what is run: one of the Parts below
	Layers  int    `json:"layers"`
	// LossChunk is the number of tokens whose logits existed at a time, where the loss is run.
	LossChunk units.Tokens `json:"loss_chunk_tokens,omitzero"`
	Kernel    string       `json:"kernel"` // of attention
	// Docs are the lengths of the documents packed into the sequence; absent: one.
	Docs    []units.Tokens `json:"docs_tokens,omitempty"`
	Seed    uint64         `json:"seed"`                     // of the inputs and of the order of plans
	Repeats int            `json:"repeats"`                  // blocks recorded: passes over all plans
	Warmup  int            `json:"warmup"`                   // blocks before them, not recorded
	Program string         `json:"program_sha256,omitempty"` // of the rank program
	// Oversubscribed: the ranks of a host had more threads than it has cores, so
	// that the times mean nothing.
	Oversubscribed bool          `json:"oversubscribed,omitzero"`
	Plans          []PlanRun     `json:"plans"`
	Ranks          []Rank        `json:"ranks"`    // by rank
	Numerics       []Numerics    `json:"numerics"` // by plan
	Exact          []ExactCounts `json:"exact"`    // by plan
}

// The modes of a run.
const (
	ModeCPU    = "gloo-cpu"  // ranks are threads of processors
	ModeOneGPU = "gloo-1gpu" // ranks share one GPU in turns: only numerics and compute spans mean something
	ModeNCCL   = "nccl"      // a GPU each
)

// What is run: whole layers, these and the loss of every micro-batch or chunk behind them, whole
// training steps of batches or of one micro-batch of a sequence, with embedding, exchange of
// gradients and parameters and optimizer, or of layers the attention alone.
const (
	PartsLayer     = "layer"
	PartsLoss      = "loss"
	PartsStep      = "step"
	PartsAttention = "attention"
)

// WithLoss says whether of these parts the loss is one.
func WithLoss(parts string) bool { return parts == PartsLoss || parts == PartsStep }

// PlanRun is a plan that was run: of one sequence with a job and a layout, of
// batches or a pipeline with the model that they train, or of tasks with their modules.
type PlanRun struct {
	Path     string           `json:"path"`
	SHA256   string           `json:"sha256"`
	Strategy string           `json:"strategy"`
	Job      costmodel.Job    `json:"job,omitzero"`
	Layout   costmodel.Layout `json:"layout,omitzero"`
	// Batch: groups of ranks side by side, in micro-batches one after the other,
	// after each of which all ranks meet.
	Batch bool `json:"batch,omitzero"`
	// Micro is the micro-batches of a step, of a pipeline its chunks, of tasks their runs; of a plan of one sequence 2
	// where any plan of the run has its micro-batches in twos, else 0 for the one there is.
	Micro int              `json:"micro_batches,omitzero"`
	Model *costmodel.Model `json:"model,omitempty"`
	DType op.DType         `json:"dtype,omitzero"`
	// Zero is what a plan of batches shards over all ranks but LeftOut, which hold nothing of
	// the model, and OverlapZero whether that is exchanged beside layers; of other plans, and
	// where the plan did not say, none.
	Zero        costmodel.ZeRO `json:"zero,omitzero"`
	OverlapZero bool           `json:"overlap_zero,omitzero"`
	LeftOut     []int          `json:"left_out_ranks,omitempty"`
	// Groups are the groups at work, by micro-batch. Traces from before they were
	// recorded have none.
	Groups [][]GroupRun `json:"groups,omitempty"`
	// Pipeline is the stages of a pipeline, and what goes through them; nil of other plans.
	Pipeline *PipelineRun `json:"pipeline,omitempty"`
	// Tasks are the modules of several tasks, and what of them runs where; nil of other plans.
	Tasks *TasksRun `json:"tasks,omitempty"`
}

// Stage is what of the model's states the plan shards, and in which precision it computes.
func (p *PlanRun) Stage() (costmodel.ZeRO, op.DType) {
	zero, dtype := p.Job.Zero, p.Job.DType
	if p.Batch {
		zero, dtype = p.Zero, p.DType
	}
	if zero == "" {
		zero = costmodel.Zero3
	}
	return zero, dtype
}

// Of are the model's layers that a step of the plan runs; of plans of other kinds than a
// pipeline as many as the header says, of tasks in the module that has most.
func (p *PlanRun) Of(h *Header) int {
	if p.Pipeline != nil {
		return p.Pipeline.Layers
	}
	return h.Layers
}

// Rank is one process of the run.
type Rank struct {
	Rank    int    `json:"rank"`
	Host    string `json:"host"`
	Device  string `json:"device"` // device type
	Threads int    `json:"threads"`
	Cores   []int  `json:"cores,omitempty"` // it was pinned to
	Python  string `json:"python"`
	Torch   string `json:"torch"`
}

// Numerics is how far the results of a plan were from those of one device: the
// norm of the difference over the norm, of the worst rank.
type Numerics struct {
	Plan      int     `json:"plan"`
	Out       float64 `json:"out"`
	DQ        float64 `json:"dq"`
	DK        float64 `json:"dk"`
	DV        float64 `json:"dv"`
	Limit     float64 `json:"limit"`     // that none of them exceeds
	Reference string  `json:"reference"` // dense, or sampled: some rows of out and dq, one head of dk and dv
	Rows      int     `json:"rows"`      // sampled; 0: all
	// Layer is the same of a whole layer; absent where only attention was run.
	Layer *LayerNumerics `json:"layer,omitempty"`
	// Loss is the same of the loss; absent where none was run.
	Loss *LossNumerics `json:"loss,omitempty"`
	// Exchange is of tasks some of whose runs have several ranks, and of whole steps of several
	// ranks; else absent.
	Exchange *ExchangeNumerics `json:"exchange,omitempty"`
	// Update is of whole steps; else absent.
	Update *UpdateNumerics `json:"update,omitempty"`
}

// LossNumerics is how far the gradient of the loss was from that of one device.
type LossNumerics struct {
	DX    float64 `json:"dx"`
	DW    float64 `json:"dw,omitzero"` // of whole steps: gradients of the weights behind the layers
	Limit float64 `json:"limit"`
	Rows  int     `json:"rows"` // of tokens that were compared
}

// ExchangeNumerics is how far sums of weights' gradients were from the ranks' own added up in
// float64.
type ExchangeNumerics struct {
	Sum   float64  `json:"sum"`
	Limit float64  `json:"limit"`
	DType op.DType `json:"dtype"` // in which they travelled: gloo may not know that of the layers
	// Kind is the collective of whole steps: all_reduce stands in where the library has no
	// reduce_scatter.
	Kind op.Kind `json:"kind,omitzero"`
}

// Whole says that gradients were added up on all ranks, and not each rank's part alone.
func (x *ExchangeNumerics) Whole() bool { return x.Kind == op.KindAllReduce }

// UpdateNumerics is how far parameters were from those that AdamW makes in float64 of the ranks'
// gradients: the norm of the difference over that of what the update changes.
type UpdateNumerics struct {
	Params     float64 `json:"params"`
	Limit      float64 `json:"limit"`
	Parameters int64   `json:"parameters"` // how many there are
}

// LayerNumerics is how far a whole layer was from that of one device, or why it
// was not compared; of a pipeline and of tasks, how far the whole step was.
type LayerNumerics struct {
	Out     float64 `json:"out"`
	DX      float64 `json:"dx"`          // gradient of the layer's input
	DW      float64 `json:"dw,omitzero"` // of tasks and whole steps, gradients of the weights once they are added up, where all samples were compared
	Limit   float64 `json:"limit"`
	Skipped string  `json:"skipped,omitempty"` // why; the errors are then 0 and mean nothing
	// Of tasks: the samples of all modules that were compared, how many there are, and the
	// modules of which none was.
	Samples   int      `json:"samples,omitzero"`
	OfSamples int      `json:"of_samples,omitzero"`
	Left      []string `json:"left,omitempty"`
}

// ExactCounts is what was counted on all ranks in one step of a plan and found
// equal to what the plan says, to the last byte: of one layer's attention, in a pipeline on
// every stage and of tasks of all layers, and of what stages and runs send each other; not of
// gradients that are added up.
type ExactCounts struct {
	Plan     int         `json:"plan"`
	Messages int64       `json:"messages"` // what one rank sends another in one phase is one
	Bytes    units.Bytes `json:"bytes"`
	FLOPs    int64       `json:"flops"`
}

// Span is a stretch of time of one rank in one step of a plan. Its zero is the
// rank's leaving the barrier before the step: times of two ranks have no common
// clock.
type Span struct {
	T     string `json:"t"`
	Block int    `json:"block"`
	Plan  int    `json:"plan"`
	Rank  int    `json:"rank"`
	Layer int    `json:"layer"`
	MB    int    `json:"mb"`  // micro-batch, chunk of a pipeline, run of tasks
	Dir   Dir    `json:"dir"` // of the pass
	Again bool   `json:"again,omitzero"`
	Step  int    `json:"step"`           // of the ring
	Chunk int    `json:"chunk,omitzero"` // of heads, where the plan has chunks of them
	Op    SpanOp `json:"op"`
	T0NS  int64  `json:"t0_ns"`
	DurNS int64  `json:"dur_ns"`
	Out   int64  `json:"bytes_out"`
	In    int64  `json:"bytes_in"`
	FLOPs int64  `json:"flops"`
	// Shape are the axes of what was computed, an object, where there is one.
	Shape jsontext.Value `json:"shape,omitempty"`
}

// Start is when the span began, after the rank's zero.
func (s *Span) Start() units.Seconds { return seconds(s.T0NS) }

// Dur is how long it took.
func (s *Span) Dur() units.Seconds { return seconds(s.DurNS) }

func seconds(ns int64) units.Seconds { return units.Seconds(float64(ns) / 1e9) }

// Dir is the direction of a pass.
type Dir string

// The directions. Forward with Span.Again is the forward pass run a second time
// inside the backward one.
const (
	Forward  Dir = "fwd"
	Backward Dir = "bwd"
)

// SpanOp is what a span is spent on. In the backward pass the names are those of
// the part whose backward it is.
type SpanOp string

// The ops of spans, in the order of a layer's forward pass.
const (
	StageWait SpanOp = "stage_wait" // of a pipeline, for what comes from another stage; of tasks, from another run
	ParamWait SpanOp = "param_wait" // of a whole step, for parameters that other ranks have
	Embed     SpanOp = "embed"      // of a whole step, before the first layer; backward behind it
	LinearIn  SpanOp = "linear_in"  // norm, QKV projection, rotation
	A2AIn     SpanOp = "a2a_in"     // all-to-all before attention
	RingWait  SpanOp = "ring_wait"  // for the keys and values of a ring step
	Attn      SpanOp = "attn"       // the blocks of a ring step
	Merge     SpanOp = "merge"      // of their results
	A2AOut    SpanOp = "a2a_out"
	LinearOut SpanOp = "linear_out" // output projection, norm, MLP
	Loss      SpanOp = "loss"       // behind the last layer: forward and backward
	GradWait  SpanOp = "grad_wait"  // at the end: until the gradients of weights, of tasks of a run's, are added up
	Optimizer SpanOp = "optimizer"  // of a whole step
	Meet      SpanOp = "meet"       // of a plan of batches, after each micro-batch, of whole steps but the last: until all ranks are done with it
)

// spanOps lists the ops in that order.
func spanOps() []SpanOp {
	return []SpanOp{StageWait, ParamWait, Embed, LinearIn, A2AIn, RingWait, Attn, Merge, A2AOut, LinearOut, Loss, GradWait, Optimizer, Meet}
}

// Step is how long one rank took for one step of a plan, from its leaving the
// barrier to its own end. The step's time is the longest over the ranks.
type Step struct {
	T     string `json:"t"`
	Block int    `json:"block"`
	Plan  int    `json:"plan"`
	Rank  int    `json:"rank"`
	DurNS int64  `json:"dur_ns"`
}

// Dur is how long it took.
func (s *Step) Dur() units.Seconds { return seconds(s.DurNS) }

// End is the last line; a trace without it was cut off.
type End struct {
	T     string `json:"t"`
	Steps int64  `json:"steps"`
	Spans int64  `json:"spans"`
}

// The values of "t", the first key of every line after the header.
const (
	lineSpan = "span"
	lineStep = "step"
	lineEnd  = "end"
)

// Head implements doc.Document.
func (h *Header) Head() *doc.Header { return &h.Header }

// SchemaName implements doc.Document.
func (*Header) SchemaName() string { return TraceSchema }

// outOf is the error of an index.
func outOf(field string, got, n int) error {
	return fmt.Errorf("%s: %d: want 0 to %d", field, got, n-1)
}

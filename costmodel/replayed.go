package costmodel

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// ReplayOp names a stretch of a rank's time in a replayed step, by the names that a
// replay trace uses.
type ReplayOp string

// The stretches. In the backward pass a linear part has the name of the forward part that
// it differentiates, so that linear_out comes first and linear_in last. All-to-alls are
// named by their place: a2a_in before the ring and a2a_out after it, in both passes.
const (
	StageWait   ReplayOp = "stage_wait" // of a pipeline or of tasks, before a pass: waiting for activations or their gradients
	ParamWait   ReplayOp = "param_wait" // before a layer's pass, or at the end: until parameters that others have are there
	EmbedOp     ReplayOp = "embed"      // before the first layer: looking tokens up; backward, the gradient of that
	LinearIn    ReplayOp = "linear_in"  // norm, projection and rotation before the attention
	AllToAllIn  ReplayOp = "a2a_in"     // includes waiting for late members
	RingWait    ReplayOp = "ring_wait"  // waiting for the block of a ring step, and after the last one
	AttentionOp ReplayOp = "attn"       // all blocks of a ring step
	MergeOp     ReplayOp = "merge"      // merging a block's results with those before it
	AllToAllOut ReplayOp = "a2a_out"    // includes waiting for late members
	LinearOut   ReplayOp = "linear_out" // output projection, norm and MLP after the attention
	LossOp      ReplayOp = "loss"       // behind the last layer: norm, logits and cross-entropy, forward and backward
	GradWait    ReplayOp = "grad_wait"  // at the end: until the gradients of weights, of tasks of a run's, are added up
	OptimizerOp ReplayOp = "optimizer"  // the update of the parameters that a rank keeps the state of
	MeetOp      ReplayOp = "meet"       // at the end of a micro-batch, waiting for all ranks
)

// The directions of a ReplayKey.
const (
	ForwardPass  = "fwd"
	BackwardPass = "bwd"
)

// ReplayOps lists the stretches in the order of a forward layer.
func ReplayOps() []ReplayOp {
	return []ReplayOp{StageWait, ParamWait, EmbedOp, LinearIn, AllToAllIn, RingWait, AttentionOp, MergeOp, AllToAllOut, LinearOut, LossOp, GradWait, OptimizerOp, MeetOp}
}

// Waits says whether the rank is idle during the stretch: it waits for bytes or for
// another rank.
func (o ReplayOp) Waits() bool {
	switch o {
	case StageWait, ParamWait, AllToAllIn, RingWait, AllToAllOut, GradWait, MeetOp:
		return true
	}
	return false
}

// ReplayKey identifies one stretch of a replayed step.
type ReplayKey struct {
	Rank  int      `json:"rank"`
	Micro int      `json:"mb,omitzero"` // micro-batch, chunk of a pipeline, or run of tasks
	Layer int      `json:"layer"`
	Dir   string   `json:"dir"`            // fwd or bwd
	Again bool     `json:"again,omitzero"` // the forward pass of recomputation
	Step  int      `json:"step"`           // of the ring; 0 for stretches before the ring, the number of groups for those after it
	Chunk int      `json:"chunk,omitzero"` // of heads, see Schedule.HeadChunks
	Op    ReplayOp `json:"op"`
}

// ReplayTask is a stretch with its predicted time.
type ReplayTask struct {
	ReplayKey
	Start units.Seconds // from the barrier at which all ranks start
	Time  units.Seconds
}

// ReplayedRank says how a rank spends a replayed step until its own end.
type ReplayedRank struct {
	Compute units.Seconds // attention, merging, linear parts, loss and update
	Exposed units.Seconds // waiting for bytes, as far as computing does not hide it
	Skew    units.Seconds // waiting for ranks that are not done yet
	End     units.Seconds // the sum of the above
}

// ReplayWork is the part of a job that replay runs: a number of its layers, on one
// sequence or on documents packed into it.
type ReplayWork struct {
	Layout Layout
	// Packed lists the lengths of the packed documents in order; empty is one document.
	// Attention is causal within each document, and each has attention calls of its own.
	Packed []units.Tokens
	Layers int
	// Micro is the number of micro-batches of a step, all of the same sequence; 0 is one.
	// They run one after the other, but for two under a layout with TwoBatch, which go
	// through each layer together.
	Micro int
	// AttentionOnly leaves the linear parts out, as replay does on request.
	AttentionOnly bool
	// Loss is true where every micro-batch's loss is computed behind its last layer, each
	// rank's of its tokens. Micro-batches that go together have none.
	Loss bool
	// Update is true of a whole step, of all layers of the job's model: with embedding and
	// loss, and the exchange of gradients and parameters and the optimizer by the job's ZeRO
	// stage. Micro-batches that go together have none.
	Update bool
	// Reduced says how gradients were added up of a whole step, as far as the library had it
	// otherwise than the job.
	Reduced Reduction
}

// Reduction is what a library makes of the reduction of gradients.
type Reduction struct {
	Whole bool     // by all_reduce, for it has no reduce_scatter
	DType op.DType // in which gradients travel, if not in the job's
}

// documents are where the packed documents lie.
func (w *ReplayWork) documents(seqLen units.Tokens) ([]Segment, error) {
	var all []Segment
	at := units.Tokens(0)
	for i, n := range w.Packed {
		if n < 1 || n > seqLen-at {
			return nil, fmt.Errorf("docs_tokens[%d]: %d: want 1 to the %d that are left of the sequence's %d tokens", i, int64(n), int64(seqLen-at), int64(seqLen))
		}
		all = append(all, Segment{at, at + n})
		at += n
	}
	if len(all) > 0 && at != seqLen {
		return nil, fmt.Errorf("docs_tokens: %d tokens in all: the sequence has %d", int64(at), int64(seqLen))
	}
	return all, nil
}

// Replayed is the prediction of what replay runs: some layers forward and then backward,
// with each layer's forward pass repeated where the job recomputes, the loss between where
// it is run, and of a whole step the update around them (ReplayWork.Update).
type Replayed struct {
	// Step is the makespan: ranks start together, the last one ends it, and in between
	// they synchronise only through the messages they exchange.
	Step Estimate
	// Meeting is the makespan if all ranks met after every layer and pass, as the
	// prediction of a whole training step (Step) assumes.
	Meeting units.Seconds
	Ranks   []ReplayedRank
	Tasks   []ReplayTask // by rank, in order of time
}

// Replayed predicts a replayed step.
//
// Errors: an invalid layout, documents that are not the sequence, or what laws
// are missing, as of Simulate.
func (s *Simulator) Replayed(w ReplayWork) (*Replayed, error) { return s.Supposing(w, nil) }

// Supposing is Replayed with computing times given by took, such as measured ones; where
// took answers false the laws decide. It is asked for linear_in, linear_out and the attn
// stretch of every ring step or chunk of heads, which includes merging. Its answers are
// taken to include any slow-down by simultaneous messages.
func (s *Simulator) Supposing(w ReplayWork, took func(ReplayKey) (units.Seconds, bool)) (*Replayed, error) {
	if w.Layers < 1 {
		return nil, fmt.Errorf("layers: %d: want at least 1", w.Layers)
	}
	bare, err := newSim(s.q, s.job)
	if err != nil {
		return nil, err
	}
	if bare.packed, err = w.documents(s.job.SeqLen); err != nil {
		return nil, err
	}
	bare.attentionOnly, bare.reduced = w.AttentionOnly, w.Reduced
	r := &replaying{sim: bare, took: took, out: new(Replayed)}
	// One micro-batch has no other to go with.
	if r.micro = max(1, w.Micro); r.micro != 2 {
		w.Layout.Schedule = w.Layout.OneByOne()
	}
	if w.Loss || w.Update {
		r.loss = w.Layers
	}
	switch {
	case r.loss > 0 && w.Layout.TwoBatch:
		return nil, fmt.Errorf("loss: of micro-batches that go together: want them one by one")
	case w.Update && (r.micro > 1 || s.job.microBatches() > 1):
		return nil, fmt.Errorf("micro-batches: %v in a whole step: want one", max(float64(r.micro), s.job.microBatches()))
	}
	if err := r.prepare(w.Layout); err != nil {
		return nil, err
	}
	if w.Update {
		if r.update, err = r.updates(w.Layers); err != nil {
			return nil, err
		}
	}
	r.meet(w.Layers)
	r.chain(r.passes(w.Layers))
	return r.finish()
}

// replaying is a replayed step under way. What the seats compute is settled before any
// pass is simulated: by the laws (price), then by what is supposed (timesIn). A pass itself
// says when things happen, and asks for the prices of messages alone.
type replaying struct {
	*sim
	took   func(ReplayKey) (units.Seconds, bool)
	out    *Replayed
	laws   [2][2]passLaws // by direction and micro-batch of two that go together
	micro  int            // micro-batches of a step
	loss   int            // the layers behind which the loss is, 0 for none
	update *updating      // of a whole step, nil of another
	// Of a layer's passes forward, and backward with recomputation: see meetUpdated.
	lengths, busiest [2]units.Seconds
	at               []units.Seconds    // when a seat is done with all before
	ports            [][2]units.Seconds // when its egress and ingress are
	spent            []spent
	// Of the pass at hand, of either micro-batch where two go together.
	run   layerRun
	times [2]passTimes
	// When the streams were done with the rings of two micro-batches.
	ringEnds [2][]units.Seconds
}

// stageOf is one layer's pass within the step, of a micro-batch or of two together.
type stageOf struct {
	micro int
	layer int
	back  bool
	again bool
}

func (g stageOf) key(rank, step int, o ReplayOp) ReplayKey {
	return ReplayKey{Rank: rank, Micro: g.micro, Layer: g.layer, Dir: [2]string{ForwardPass, BackwardPass}[g.dir()], Again: g.again, Step: step, Op: o}
}

func (g stageOf) dir() int {
	if g.back {
		return 1
	}
	return 0
}

// linear are the linear parts before and behind the ring.
func (g stageOf) linear() (first, last ReplayOp) {
	if g.back {
		return LinearOut, LinearIn
	}
	return LinearIn, LinearOut
}

// prepare seats the ranks and asks the laws for all that they compute.
func (r *replaying) prepare(l Layout) error {
	s := r.sim
	if err := l.Validate(s.job.SeqLen, len(s.ranks), s.job.Model.QHeads); err != nil {
		return fmt.Errorf("layout: %w", err)
	}
	s.layout = l
	if err := s.seat(); err != nil {
		return err
	}
	for dir := range r.laws {
		r.laws[dir] = r.price(dir == 1)
	}
	r.at, r.ports = make([]units.Seconds, len(s.seats)), make([][2]units.Seconds, len(s.seats))
	r.spent, r.out.Ranks = make([]spent, len(s.seats)), make([]ReplayedRank, len(s.ranks))
	return s.err
}

// meet reckons as the account of a training step does: by the laws all layers and
// micro-batches are alike, so that one is simulated; what is supposed is of each.
func (r *replaying) meet(layers int) {
	times := units.Seconds(1)
	if r.took == nil {
		layers, times = 1, units.Seconds(layers)
	}
	micro := r.micro
	switch {
	case r.layout.TwoBatch:
		micro = 1
	case r.took == nil:
		micro, times = 1, times*units.Seconds(r.micro)
	}
	for m := range micro {
		for _, g := range r.stages(layers) {
			g.micro = m
			r.meetAfter(g, times)
		}
	}
	r.meetLoss(r.micro)
	if r.update != nil && r.took == nil {
		r.meetUpdated()
	}
}

// meetAfter adds a pass, so many times, that all ranks begin and end together. None may be
// chained yet.
func (r *replaying) meetAfter(g stageOf, times units.Seconds) {
	r.pass(g)
	r.out.Meeting += times * r.run.length
	of := 0
	if g.again || g.back {
		of = 1
	}
	r.lengths[of], r.busiest[of] = r.lengths[of]+r.run.length, r.busiest[of]+r.run.busiest()
}

// meetLoss adds the losses of so many micro-batches, if there are any.
func (r *replaying) meetLoss(micro int) {
	if r.loss == 0 {
		return
	}
	for m := range micro {
		longest := units.Seconds(0)
		for i := range r.seats {
			longest = max(longest, r.lossIn(stageOf{micro: m, layer: r.loss - 1}, &r.seats[i]))
		}
		r.out.Meeting += longest
	}
}

// stages are the passes of the layers in order of execution.
func (r *replaying) stages(layers int) []stageOf {
	var all []stageOf
	for i := range layers {
		all = append(all, stageOf{layer: i})
	}
	for i := layers - 1; i >= 0; i-- {
		if r.job.Recompute == RecomputeFull {
			all = append(all, stageOf{layer: i, again: true})
		}
		all = append(all, stageOf{layer: i, back: true})
	}
	return all
}

// passes are those of all micro-batches in order of execution, two that go together at once.
func (r *replaying) passes(layers int) []stageOf {
	var all []stageOf
	for m := range r.micro {
		if m > 0 && r.layout.TwoBatch {
			break
		}
		for _, g := range r.stages(layers) {
			g.micro = m
			all = append(all, g)
		}
	}
	return all
}

// chain runs pass after pass, every seat beginning one when it is done with the
// one before.
func (r *replaying) chain(passes []stageOf) {
	if r.update != nil {
		r.gathersRest(stageOf{})
		r.embeds(stageOf{})
	}
	for _, g := range passes {
		if r.update != nil {
			r.gathered(g)
		}
		begin := slices.Min(r.at)
		r.takes(g)
		if r.update != nil {
			r.beside(begin, r.run.busiest())
			r.reduced(g)
		}
		if r.loses(g) {
			r.lose(g)
		}
	}
	if r.update != nil {
		end := stageOf{back: true}
		r.embeds(end)
		r.reducesRest(end)
		r.updated(end)
	}
}

// takes has the seats take a pass, each when it is done with the one before.
func (r *replaying) takes(g stageOf) {
	r.pass(g)
	r.book(g)
	for i := range r.seats {
		a := &r.run.seats[i]
		r.at[i], r.ports[i] = a.free, [2]units.Seconds{a.egress, a.ingress}
	}
}

// loses says that a pass has the loss behind it.
func (r *replaying) loses(g stageOf) bool { return g.layer == r.loss-1 && !g.back && !g.again }

// lose adds the loss behind a pass.
func (r *replaying) lose(g stageOf) {
	for i := range r.seats {
		if a := &r.seats[i]; a.tokens > 0 {
			t := r.lossIn(g, a)
			r.out.Tasks = append(r.out.Tasks, ReplayTask{g.key(a.rank, 0, LossOp), r.at[i], t})
			r.at[i] += t
			r.spent[i].busy[lossPart] += t
		}
	}
}

// lossIn is what the loss behind a pass takes a seat.
func (r *replaying) lossIn(g stageOf, a *seat) units.Seconds {
	return r.supposed(g.key(a.rank, 0, LossOp), r.lossTime(a))
}

// pass simulates one. Its seats begin at times of their own.
func (r *replaying) pass(g stageOf) {
	run := &r.run
	run.reset(r.sim, g.back, true)
	for i := range run.seats {
		a := &run.seats[i]
		a.free, a.egress, a.ingress = r.at[i], max(r.at[i], r.ports[i][0]), max(r.at[i], r.ports[i][1])
		run.arrived[0][i] = arrival{r.at[i], r.at[i]} // of what it has from the forward pass
	}
	if r.layout.TwoBatch {
		r.passTwos(g)
		return
	}
	r.times[0] = r.timesIn(g)
	run.given = &r.times[0]
	run.play()
}

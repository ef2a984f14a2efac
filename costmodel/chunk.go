package costmodel

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Chunk is what the ranks of a pipeline's stage compute at once: a slice of a sequence, of
// which other chunks have computed the tokens before, and whole sequences beside it.
type Chunk struct {
	Context units.Tokens // of the slice's sequence, before the slice; 0 where it begins it
	Slice   units.Tokens // 0 where there is none
	More    bool         // slices of the sequence come behind this one, and need its keys and values
	Whole   []Documents
}

// Tokens is how many the chunk computes.
func (x Chunk) Tokens() units.Tokens {
	n := x.Slice
	for _, d := range x.Whole {
		n += d.Tokens * units.Tokens(d.Count)
	}
	return n
}

// ChunkPasses is what one layer takes for a chunk, in seconds, without the exchange of
// gradients and parameters; and the loss of all its tokens behind the last layer.
type ChunkPasses struct {
	Forward, Backward, Loss units.Seconds
	// ForwardMoving and BackwardMoving are the parts in which all-to-alls use the ports.
	ForwardMoving, BackwardMoving units.Seconds
}

// Chunk simulates a chunk on all ranks of the job's cluster as one all-to-all group, in which
// rank r has the share shares[r] of every sequence's tokens. Queries of the slice see the
// context's keys and values, which ranks keep by heads from the chunks before, so that
// nothing of the context is sent again.
//
// Errors: as of Passes; an empty chunk.
func (p *Packer) Chunk(group Group, shares []float64, x Chunk) (ChunkPasses, error) {
	docs := x.Whole
	if x.Slice > 0 {
		docs = append([]Documents{{Tokens: x.Slice, Count: 1}}, docs...)
	}
	if len(docs) == 0 || x.Context < 0 || x.Context > 0 && x.Slice == 0 {
		return ChunkPasses{}, fmt.Errorf("a chunk of %d tokens behind %d: want some, and a slice where there is a context", int64(x.Tokens()), int64(x.Context))
	}
	p.context = x.Context
	defer func() { p.context = 0 }()
	if _, err := p.Passes([]Group{group}, shares, docs); err != nil {
		return ChunkPasses{}, err
	}
	s := p.sim
	out := ChunkPasses{Forward: s.layers[0].length, Backward: s.layers[1].length}
	for i := range s.seats {
		out.Loss = max(out.Loss, s.lossTime(&s.seats[i]))
		out.ForwardMoving = max(out.ForwardMoving, s.layers[0].outside[i].allToAll)
		out.BackwardMoving = max(out.BackwardMoving, s.layers[1].outside[i].allToAll)
	}
	return out, s.err
}

// ChunkTimes says how often, in layers, an account counts what a layer takes for a chunk:
// its forward pass, as often again in the backward pass, the backward pass; and the loss.
type ChunkTimes struct{ Forward, Again, Backward, Loss float64 }

// BriefChunk is the account of a chunk, as of Chunk, so many times.
//
// Errors: as of Chunk.
func (p *Packer) BriefChunk(group Group, shares []float64, x Chunk, times ChunkTimes) (*Step, error) {
	if _, err := p.Chunk(group, shares, x); err != nil {
		return nil, err
	}
	s := p.sim
	p.context = x.Context
	defer func() { p.context = 0 }()
	s.lengthOnly = false
	s.stages, s.alone = s.stages[:0], 1
	for back := range s.layers {
		s.layers[back].run(s, back == 1, false)
	}
	if times.Forward > 0 {
		s.addLayers(&s.layers, 0, times.Forward, linearForward, attentionForward)
	}
	if times.Loss > 0 {
		s.addLocal(lossPart, times.Loss, s.lossTime)
	}
	if times.Again > 0 {
		s.addLayers(&s.layers, 0, times.Again, recompute, recompute)
	}
	if times.Backward > 0 {
		s.addLayers(&s.layers, 1, times.Backward, linearBackward, attentionBackward)
	}
	return s.brief(s.allSpent()), s.err
}

// ChunkBytes is what one rank of a stage holds of a chunk, in bytes.
type ChunkBytes struct {
	// Kept is what one layer keeps for its backward pass, Again what it keeps where it is
	// computed again there: its input and the keys and values that later slices need.
	Kept, Again float64
	// Gradients is those of the keys and values that later slices need, of one layer.
	Gradients float64
	// Transient is what a layer's backward pass takes beside them, Logits what the loss does.
	Transient, Logits float64
}

// ChunkMemory is what a rank of an all-to-all group holds of a chunk, which has the share of
// its tokens and computes some heads from the first one on. dev.LayerToken overrides the
// formula as in MemoryOf.
func (j Job) ChunkMemory(x Chunk, share float64, first, heads, ranks int, dev DeviceMemory) ChunkBytes {
	j.Model.Layers, j.Recompute = 1, RecomputeNone
	all := x.Tokens()
	m := MemoryShare{
		Tokens: SplitByShares(all, []float64{share, 1 - share})[0], GroupTokens: all, Widest: x.Context + x.Slice,
		QHeads: heads, KVHeads: j.Model.KVHeadsOf(first, heads), Ranks: ranks,
	}
	of := NewMemoryModel(j)
	peak := of.Of(m, dev)
	e := float64(j.DType.Size())
	kv := of.keysAndValues(&m, x.Slice)
	out := ChunkBytes{
		Kept: of.kept(&m, dev.LayerToken), Transient: float64(peak.Transient), Logits: float64(peak.Logits),
		Again: float64(m.Tokens) * float64(j.Model.Hidden) * e,
	}
	if x.More {
		out.Again += kv
		out.Gradients = 4 * of.elements(&m, x.Slice)
	}
	return out
}

// StageStates is what each of n ranks of a stage holds of so many layers' parameters,
// gradients and optimizer state, by the job's ZeRO stage, within the stage; and of tables of
// embeddings and output projections, of which the optimizer's state is sharded alone.
func (j Job) StageStates(layers, n, tables int) units.Bytes {
	params, e := int64(layers)*j.Model.LayerParams(), int64(j.DType.Size())
	share := func(b int64) int64 { return (b + int64(n) - 1) / int64(n) }
	optim := (16 - 2*e) * params
	var bytes int64
	switch j.zero() {
	case Zero0:
		bytes = 2*e*params + optim
	case Zero1:
		bytes = 2*e*params + share(optim)
	case Zero2:
		bytes = e*params + share(e*params+optim)
	default: // with the layer at work and the next gathered whole
		bytes = share(2*e*params+optim) + 2*e*j.Model.LayerParams()
	}
	table := int64(tables) * j.Model.embedParams()
	return units.Bytes(bytes + 2*e*table + share((16-2*e)*table))
}

// StageTables is how many tables of embeddings and output projections a stage has: the first
// one has the former, the last one the latter, which may be the same.
func (m Model) StageTables(first, last bool) int {
	if first && last && !m.TiedEmbeddings {
		return 2
	}
	if first || last {
		return 1
	}
	return 0
}

// TableParams is the parameters of one of them.
func (m Model) TableParams() int64 { return m.embedParams() }

// Warnings are what a user has to know of the laws that the packer used so far.
func (p *Packer) Warnings() []string { return p.sim.warnings() }

package costmodel

import (
	"fmt"
	"math/bits"
	"slices"

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

func (x *Chunk) validate() error {
	none := func(d Documents) bool { return d.Tokens < 1 || d.Count < 1 }
	if x.Tokens() < 1 || slices.ContainsFunc(x.Whole, none) || x.Slice < 0 || x.Context < 0 || x.Context > 0 && x.Slice == 0 {
		return fmt.Errorf("a chunk of %d tokens behind %d: want some, and a slice where there is a context", int64(x.Tokens()), int64(x.Context))
	}
	return nil
}

// ChunkPasses is what one layer takes for a chunk, in seconds, without the exchange of
// gradients and parameters; and the loss of all its tokens behind the last layer.
type ChunkPasses struct {
	Forward, Backward, Loss units.Seconds
	// ForwardMoving and BackwardMoving are the parts in which all-to-alls use the ports.
	ForwardMoving, BackwardMoving units.Seconds
}

// Chunk simulates a chunk on all ranks of the job's cluster as one all-to-all group, in which
// rank r has the share shares[r] of the tokens. Queries of the slice see the context's keys and
// values, which ranks keep by heads from the chunks before, so that nothing of the context is
// sent again.
//
// A kernel for sequences of unequal lengths runs the tiles of all of them side by side. So a
// sequence, or slice, is priced in a call of several like it, of as many, in powers of two, as
// have the chunk's tokens at most, and pays its share.
//
// Errors: as of Passes; an empty chunk.
func (p *Packer) Chunk(group Group, shares []float64, x Chunk) (ChunkPasses, error) {
	p.sim.timeOnly = true
	defer func() { p.sim.timeOnly = false }()
	if err := p.chunked(group, shares, x); err != nil {
		return ChunkPasses{}, err
	}
	defer func() { p.chunk = nil }()
	s := p.sim
	out := ChunkPasses{Forward: s.layers[0].length, Backward: s.layers[1].length}
	for i := range s.seats {
		out.Loss = max(out.Loss, s.lossTime(&s.seats[i]))
		out.ForwardMoving = max(out.ForwardMoving, s.layers[0].outside[i].allToAll)
		out.BackwardMoving = max(out.BackwardMoving, s.layers[1].outside[i].allToAll)
	}
	return out, s.err
}

// chunked simulates a chunk, which is that of the packer from then on if there is no error.
func (p *Packer) chunked(group Group, shares []float64, x Chunk) error {
	if err := x.validate(); err != nil {
		return err
	}
	if p.slices == nil {
		p.slices = map[sliceKey]units.Seconds{}
	}
	p.chunk = &x
	_, err := p.Passes([]Group{group}, shares, []Documents{{Tokens: x.Tokens(), Count: 1}})
	if err != nil {
		p.chunk = nil
	}
	return err
}

// sliceKey is what the attention of a slice, or of a whole sequence, depends on.
type sliceKey struct {
	device         string
	heads, kv      int
	context, slice units.Tokens
	like           int
	back           bool
}

// chunkAttention is that of a seat's heads over the whole chunk, booked in acc.
func (p *Packer) chunkAttention(back bool, a *seat, acc *account) units.Seconds {
	x, all := p.chunk, p.chunk.Tokens()
	total := units.Seconds(0)
	if x.Slice > 0 {
		total += p.sliceAttention(back, a, all, x.Context, Documents{Tokens: x.Slice, Count: 1}, acc)
	}
	for _, d := range x.Whole {
		total += p.sliceAttention(back, a, all, 0, d, acc)
	}
	return total
}

func (p *Packer) sliceAttention(back bool, a *seat, all, context units.Tokens, d Documents, acc *account) units.Seconds {
	k := sliceKey{a.device, a.heads, a.kv, context, d.Tokens, 1 << (bits.Len64(uint64(all/d.Tokens)) - 1), back}
	share := float64(d.Count) / float64(k.like)
	t, ok := p.slices[k]
	if ok && acc == nil {
		return units.Seconds(share) * t
	}
	s := p.sim
	var call *account
	if acc != nil {
		call = &account{}
	}
	if k.like > 1 { // a shape has one way to be written
		s.batch = k.like
	}
	t = s.attention(a.device, Shard{[]Segment{{context, context + d.Tokens}}}, Shard{[]Segment{{0, context + d.Tokens}}}, a.heads, a.kv, back, call)
	s.batch = 0
	if acc != nil {
		acc.merge(*call, share)
	}
	if s.err == nil {
		p.slices[k] = t
	}
	return units.Seconds(share) * t
}

// ChunkTimes says how often, in layers, an account counts what a layer takes for a chunk:
// its forward pass, as often again in the backward pass, the backward pass; and the loss.
type ChunkTimes struct{ Forward, Again, Backward, Loss float64 }

// BriefChunk is the account of a chunk, as of Chunk, so many times.
//
// Errors: as of Chunk.
func (p *Packer) BriefChunk(group Group, shares []float64, x Chunk, times ChunkTimes) (*Step, error) {
	if err := p.chunked(group, shares, x); err != nil {
		return nil, err
	}
	defer func() { p.chunk = nil }()
	s := p.sim
	s.lengthOnly = false
	s.stages, s.alone = s.stages[:0], 1
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
	table := int64(tables) * j.Model.TableParams()
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

// Linear is the seconds that one layer takes for tokens on a device, forward and backward,
// without attention.
//
// Errors: what laws are missing, as of Simulate.
func (l *Layers) Linear(device string, tokens units.Tokens) (forward, backward units.Seconds, err error) {
	l.begin(true)
	forward = l.c.beforeAttention(device, tokens, nil) + l.c.afterAttention(device, tokens, nil)
	backward = l.c.backToAttention(device, tokens, nil) + l.c.backFromAttention(device, tokens, nil)
	return forward, backward, l.c.err
}

// Attention is the seconds that one layer's attention takes on a device, forward and
// backward, with so many query heads and the key-value heads that they need: of so many slices
// alike, each behind a context, in one call.
//
// Errors: what laws are missing, as of Simulate.
func (l *Layers) Attention(device string, heads, kvHeads int, context, slice units.Tokens, count int) (forward, backward units.Seconds, err error) {
	l.begin(true)
	queries, keys := Shard{[]Segment{{context, context + slice}}}, Shard{[]Segment{{0, context + slice}}}
	if count > 1 { // a shape has one way to be written
		l.c.batch = count
		defer func() { l.c.batch = 0 }()
	}
	forward = l.c.attention(device, queries, keys, heads, kvHeads, false, nil)
	backward = l.c.attention(device, queries, keys, heads, kvHeads, true, nil)
	return forward, backward, l.c.err
}

// Loss is the seconds that the loss of tokens takes on a device.
//
// Errors: what laws are missing, as of Simulate.
func (l *Layers) Loss(device string, tokens units.Tokens) (units.Seconds, error) {
	l.begin(true)
	return l.c.loss(device, tokens, nil), l.c.err
}

// WarningsOf are what a user has to know of the laws that layers and packers of one job used so
// far, each law once.
func WarningsOf(l *Layers, packers []*Packer) []string {
	all := newCoster(l.c.q, l.c.job)
	all.job.Model = l.model
	add := func(uses []lawUse) {
		for _, u := range uses {
			at := slices.IndexFunc(all.uses, func(o lawUse) bool { return o.law == u.law && o.where == u.where && o.factor == u.factor })
			if at < 0 {
				all.uses = append(all.uses, u)
				continue
			}
			all.uses[at].beyond = max(all.uses[at].beyond, u.beyond)
		}
	}
	for _, p := range packers {
		add(p.sim.uses)
	}
	add(l.c.uses)
	return all.warnings()
}

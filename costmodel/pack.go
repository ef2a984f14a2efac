package costmodel

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Documents are Count sequences of Tokens tokens each, among the documents packed into
// one micro-batch. Attention never crosses from one document to another.
type Documents struct {
	Tokens units.Tokens // of each document
	Count  int
}

// Passes is the time of one micro-batch's passes through all layers, in seconds, without
// the exchange of gradients and parameters and without the optimizer.
type Passes struct {
	Forward, Backward, Loss units.Seconds
	// Linear and Attention are the computing time of each rank over both passes: Linear
	// is matrix products, norms and other element-wise ops and the loss, Attention is the
	// attention blocks.
	Linear, Attention []units.Seconds
}

// Time is the sum of the passes. With recompute (full activation recomputation) every
// layer's forward pass is counted a second time.
func (p Passes) Time(recompute bool) units.Seconds {
	if recompute {
		return 2*p.Forward + p.Backward + p.Loss
	}
	return p.Forward + p.Backward + p.Loss
}

// Packer simulates micro-batches of packed documents on the devices of a job's cluster.
// It ignores the job's SeqLen and Recompute. It is not safe for concurrent use.
//
// It differs from the simulator of one sequence (see Simulate) in three ways. Every
// document is split over the ranks as a zigzag of its own, so that each is as balanced as
// a single one. The same block of all documents is one batched attention call, so that
// they share its launch. Linear work and messages cover the tokens of all documents
// together.
type Packer struct {
	sim *sim
	// Of the last Passes: the documents, and their shards by group.
	docs   []Documents
	shards [][]Shard
	chunk  *Chunk // instead of documents: see Packer.Chunk
	slices map[sliceKey]units.Seconds
}

// NewPacker makes a packer. Errors: as of NewSimulator.
func NewPacker(q *Predictor, j Job) (*Packer, error) {
	j.SeqLen = 1
	s, err := newSim(q, j)
	if err != nil {
		return nil, err
	}
	p := &Packer{sim: s}
	s.pack = p
	return p, nil
}

// Passes simulates documents, longest first, on all-to-all groups as in a Layout.
// shares[r] is rank r's share of every document's tokens; shares are non-negative and add
// up to 1.
//
// Errors: a group that holds no token of the longest document, a missing law.
func (p *Packer) Passes(groups []Group, shares []float64, docs []Documents) (Passes, error) {
	s := p.sim
	s.forget()
	layouts := make([]Layout, len(docs))
	for i, d := range docs {
		layouts[i] = ZigZag(SplitByShares(d.Tokens, shares), groups)
	}
	if err := p.validate(layouts[0], docs[0].Tokens); err != nil {
		return Passes{}, err
	}
	s.layout = layouts[0]
	if err := s.seat(); err != nil {
		return Passes{}, err
	}
	p.fill(layouts, docs)
	for back := range s.layers {
		s.layers[back].run(s, back == 1, false)
	}
	return p.passes(), s.err
}

// OwnLast simulates the backward pass of the documents of the last successful call of
// Passes again, with each group's own block last (Schedule.OwnLast). All prices are known
// by then. With a single group the result is the same.
func (p *Packer) OwnLast() (Passes, error) {
	s := p.sim
	s.layout.OwnLast = true
	s.layers[1].run(s, true, false)
	s.layout.OwnLast = false
	return p.passes(), s.err
}

// forget drops the prices that hold for the documents before alone; those of
// linear work and all-to-alls go by tokens and bytes. Messages have rows of prices in them.
func (s *sim) forget() {
	fresh := newPrices()
	fresh.linear, fresh.toAll = s.linear, s.toAll
	s.prices, s.err = fresh, nil
	s.seated.forget()
}

func (p *Packer) validate(l Layout, tokens units.Tokens) error {
	if err := l.Validate(tokens, len(p.sim.ranks), p.sim.job.Model.QHeads); err != nil {
		return fmt.Errorf("a document of %d tokens: %w", int64(tokens), err)
	}
	for g := range l.Groups {
		if len(l.GroupShard(g).Segments) == 0 {
			return fmt.Errorf("groups[%d]: no token of %d", g, int64(tokens))
		}
	}
	return nil
}

// fill gives the seats the tokens of all documents and prices their attention.
func (p *Packer) fill(layouts []Layout, docs []Documents) {
	s := p.sim
	for g := range s.groups {
		b := &s.groups[g]
		b.tokens = 0
		for i := b.from; i < b.to; i++ {
			a := &s.seats[i]
			a.tokens = 0
			for d, l := range layouts {
				a.tokens += l.Shards[a.rank].Tokens() * units.Tokens(docs[d].Count)
			}
			b.tokens += a.tokens
		}
		b.sent = b.tokens
	}
	shards := make([][]Shard, len(layouts)) // by documents and group
	for d, l := range layouts {
		s.layout = l
		shards[d] = s.groupShards()
	}
	if len(docs) > 1 { // every pair of groups has prices of its own
		s.wide = true
		for g := range s.groups {
			s.groups[g].form.shape = g
		}
		for i := range s.seats {
			s.seats[i].work = i
		}
	}
	p.docs, p.shards = docs, shards
	p.price()
}

// price fills in what every seat takes over every group's keys and values, before
// the layers ask for it.
func (p *Packer) price() {
	s := p.sim
	for i := range s.seats {
		a := &s.seats[i]
		for k := range s.groups {
			of := &s.groups[k].form
			how := s.relationOf(&s.groups[a.group].form, of)
			for dir := range s.work {
				if unknown(s.work[dir][how].get(a.work, of.shape)) {
					s.work[dir][how].set(a.work, of.shape, p.attention(dir == 1, a, k, nil))
				}
			}
		}
	}
}

// attention is what a seat takes over the keys and values of a group, of all
// documents. A kernel for documents of unequal lengths (varlen) runs the tiles of
// all of them side by side, so each length is priced in a call whose documents are
// all of it, as many as have the tokens of all, and pays its share. It is booked in acc.
func (p *Packer) attention(back bool, a *seat, k int, acc *account) units.Seconds {
	if a.heads == 0 {
		return 0
	}
	if p.chunk != nil {
		return p.chunkAttention(back, a, acc)
	}
	s, all, total := p.sim, units.Tokens(0), units.Seconds(0)
	for _, d := range p.docs {
		all += d.Tokens * units.Tokens(d.Count)
	}
	for i, d := range p.docs {
		like := max(1, int((all+d.Tokens/2)/d.Tokens))
		if s.batch = 0; like > 1 { // a shape has one way to be written
			s.batch = like
		}
		var call *account
		if acc != nil {
			call = &account{}
		}
		share := float64(d.Count) / float64(like)
		total += units.Seconds(share) * s.attention(a.device, p.shards[i][a.group], p.shards[i][k], a.heads, a.kv, back, call)
		if acc != nil {
			acc.merge(*call, share)
		}
	}
	s.batch = 0
	return total
}

// passes adds up what the layers took.
func (p *Packer) passes() Passes {
	s := p.sim
	layers := units.Seconds(s.job.Model.Layers)
	out := Passes{
		Forward: layers * s.layers[0].length, Backward: layers * s.layers[1].length,
		Linear: make([]units.Seconds, len(s.ranks)), Attention: make([]units.Seconds, len(s.ranks)),
	}
	for i := range s.seats {
		a := &s.seats[i]
		loss := s.lossTime(a)
		out.Loss = max(out.Loss, loss)
		out.Linear[a.rank] = loss
		for back := range s.layers {
			c := &s.layers[back].outside[i]
			out.Linear[a.rank] += layers * (c.pre + c.post)
			out.Attention[a.rank] += layers * s.layers[back].seats[i].attention
		}
	}
	return out
}

// SplitByShares cuts tokens into parts proportional to shares, which add up to 1. Each
// part is exact to within a token, and the parts add up to tokens.
func SplitByShares(tokens units.Tokens, shares []float64) []units.Tokens {
	split := make([]units.Tokens, len(shares))
	sum, dealt := 0.0, units.Tokens(0)
	for i, w := range shares {
		sum += w
		upTo := min(tokens, units.Tokens(math.Round(sum*float64(tokens))))
		split[i] = max(0, upTo-dealt)
		dealt += split[i]
	}
	for i := len(split) - 1; dealt < tokens && i >= 0; i-- { // shares of a hair less than one
		if shares[i] > 0 {
			split[i] += tokens - dealt
			dealt = tokens
		}
	}
	return split
}

// PackMemory predicts the peak memory of every rank of a group that holds the given
// tokens of packed documents, when parameters, gradients and optimizer state are sharded
// over sharded ranks of a larger cluster.
func (q *Predictor) PackMemory(j Job, groups []Group, shares []float64, tokens units.Tokens, sharded int) []Memory {
	l := Contiguous(SplitByShares(tokens, shares), groups)
	ranks := j.Cluster.Ranks()
	out := make([]Memory, len(ranks))
	for r, share := range l.memoryShares(j.Model) {
		share.Ranks = sharded
		out[r] = j.MemoryOf(share, q.DeviceMemory(j, ranks[r].Device))
	}
	return out
}

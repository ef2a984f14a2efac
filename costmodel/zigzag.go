package costmodel

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// ZigZag lays a causal sequence out so that a rank's attention work is
// proportional to its tokens: every rank has a head piece and a tail piece of
// (nearly) tokens/2 each, nested from the outside in. Then rank i needs
// s_i s_k/2 pairs with the keys of rank k and s_i (s_i+1)/2 with its own,
// whatever the lengths and their order, so a split in proportion to speed
// balances attention and linear work at once. The lemma is exact for even
// lengths; an odd one has its extra token in the tail piece, which costs at
// most half a row of the other shard.
//
// tokens[r] >= 0 is what rank r gets; ranks without tokens have no segments and
// are left out of the ring, whose order is that of the ranks. The innermost
// rank's two pieces touch and become one segment, so that a single rank holds
// the plain sequence. It panics on negative tokens.
func ZigZag(tokens []units.Tokens) Layout {
	var total units.Tokens
	for r, n := range tokens {
		if n < 0 {
			panic(fmt.Sprintf("costmodel: ZigZag: rank %d has %d tokens", r, int64(n)))
		}
		total += n
	}
	l := Layout{Shards: make([]Shard, len(tokens))}
	head, tail := units.Tokens(0), total
	for r, n := range tokens {
		if n == 0 {
			continue
		}
		l.Ring = append(l.Ring, r)
		l.Shards[r].Segments = pieces(head, head+n/2, tail-(n-n/2), tail)
		head, tail = head+n/2, tail-(n-n/2)
	}
	return l
}

// pieces makes the segments [a,b) and [c,d), joined if they touch, without
// empty ones.
func pieces(a, b, c, d units.Tokens) []Segment {
	switch {
	case a == b:
		return []Segment{{c, d}}
	case b == c:
		return []Segment{{a, d}}
	}
	return []Segment{{a, b}, {c, d}}
}

// Validate reports whether the layout covers the positions 0 to seqLen exactly
// once, with rising segments, and whether the ring visits every rank that has
// tokens exactly once. ranks is the number of devices of the cluster.
func (l Layout) Validate(seqLen units.Tokens, ranks int) error {
	if len(l.Shards) != ranks {
		return fmt.Errorf("shards: %d of them: the cluster has %d ranks, and each needs one, if empty", len(l.Shards), ranks)
	}
	if err := l.validateCover(seqLen); err != nil {
		return err
	}
	seen := make([]bool, ranks)
	for i, r := range l.Ring {
		switch {
		case r < 0 || r >= ranks:
			return fmt.Errorf("ring[%d]: %d: want a rank from 0 to %d", i, r, ranks-1)
		case seen[r]:
			return fmt.Errorf("ring[%d]: rank %d is in the ring twice", i, r)
		case l.Shards[r].Tokens() == 0:
			return fmt.Errorf("ring[%d]: rank %d has no tokens and no place in the ring", i, r)
		}
		seen[r] = true
	}
	for r, s := range l.Shards {
		if s.Tokens() > 0 && !seen[r] {
			return fmt.Errorf("ring: rank %d has %d tokens but is not in the ring", r, int64(s.Tokens()))
		}
	}
	return nil
}

// validateCover checks that segments rise within a shard, stay inside the
// sequence, and that disjointness and a full count together make a cover.
func (l Layout) validateCover(seqLen units.Tokens) error {
	var all []Segment
	var total units.Tokens
	for r, s := range l.Shards {
		for i, g := range s.Segments {
			switch {
			case g.Start < 0 || g.End > seqLen || g.Len() < 1:
				return fmt.Errorf("shards[%d].segments[%d]: [%d, %d): want a non-empty part of [0, %d)", r, i, int64(g.Start), int64(g.End), int64(seqLen))
			case i > 0 && g.Start < s.Segments[i-1].End:
				return fmt.Errorf("shards[%d].segments[%d]: starts at %d, before segment %d ends at %d: segments must rise", r, i, int64(g.Start), i-1, int64(s.Segments[i-1].End))
			}
			all = append(all, g)
			total += g.Len()
		}
	}
	slices.SortFunc(all, func(a, b Segment) int { return cmp.Compare(a.Start, b.Start) })
	for i := 1; i < len(all); i++ {
		if all[i].Start < all[i-1].End {
			return fmt.Errorf("shards: token %d belongs to two segments", int64(all[i].Start))
		}
	}
	if total != seqLen {
		return fmt.Errorf("shards: %d tokens in all: the sequence has %d", int64(total), int64(seqLen))
	}
	return nil
}

// Block is one attention kernel call: the queries QStart to QStart+QLen of one
// shard on the keys KVStart to KVStart+KVLen of another, offsets counting the
// tokens of a shard in the order of its segments.
type Block struct {
	Mask    op.Mask      `json:"mask"`
	QStart  units.Tokens `json:"q_start_token"`
	QLen    units.Tokens `json:"q_len_tokens"`
	KVStart units.Tokens `json:"kv_start_token"`
	KVLen   units.Tokens `json:"kv_len_tokens"`
}

// Blocks cuts the causal attention of the queries of one shard on the keys of
// another (or of itself) into FULL rectangles and DIAG squares. Every visible
// (query, key) pair is in exactly one block. Keys that all queries of a segment
// see form one rectangle however many segments they come from, for they lie
// side by side in the shard, and so do successive query segments that see the
// same keys: fewer, larger calls.
func Blocks(q, kv Shard) []Block { return appendBlocks(nil, q, kv) }

func appendBlocks(dst []Block, q, kv Shard) []Block {
	var row units.Tokens
	wide := -1 // the rectangle of the query segment before, if it may still grow downwards
	for _, qs := range q.Segments {
		var col, seen units.Tokens
		for _, ks := range kv.Segments {
			if ks.Start < qs.Start {
				seen = col + min(ks.End, qs.Start) - ks.Start
			}
			dst = appendOverlap(dst, qs, ks, row, col)
			col += ks.Len()
		}
		switch {
		case seen == 0:
			wide = -1
		case wide >= 0 && dst[wide].KVLen == seen:
			dst[wide].QLen += qs.Len()
		default:
			dst = append(dst, Block{op.Full, row, qs.Len(), 0, seen})
			wide = len(dst) - 1
		}
		row += qs.Len()
	}
	return dst
}

// appendOverlap cuts the part where query and key positions coincide: a square
// on the diagonal, and below it the queries that come after.
func appendOverlap(dst []Block, qs, ks Segment, row, col units.Tokens) []Block {
	lo, hi := max(qs.Start, ks.Start), min(qs.End, ks.End)
	if lo >= hi {
		// Keys wholly inside the queries' gap are behind all of them or ahead
		// of all of them; those behind are counted by the caller.
		return dst
	}
	dst = append(dst, Block{op.Diag, row + lo - qs.Start, hi - lo, col + lo - ks.Start, hi - lo})
	if hi < qs.End {
		dst = append(dst, Block{op.Full, row + hi - qs.Start, qs.End - hi, col + lo - ks.Start, hi - lo})
	}
	return dst
}

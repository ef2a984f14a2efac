package costmodel

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// ZigZag lays a causal sequence out so that a group's attention work is
// proportional to its tokens: every group has a head piece and a tail piece of
// (nearly) half its tokens each, nested from the outside in, in the order of
// the groups. Then group i needs s_i s_k/2 pairs a head with the keys of group k
// and s_i (s_i+1)/2 with its own, whatever the lengths and their order, so a
// split in proportion to speed balances attention and linear work at once. The
// lemma is exact for even lengths; an odd one has its extra token in the tail
// piece, which costs at most half a row of the other shard.
//
// tokens[r] >= 0 is what rank r gets; inside a group its members are nested in
// the same way, in their order, so that the group's tokens lie side by side.
// The innermost rank's two pieces touch and become one segment, so that a
// single rank holds the plain sequence. It panics on negative tokens.
func ZigZag(tokens []units.Tokens, groups []Group) Layout {
	l := Layout{Shards: make([]Shard, len(tokens)), Groups: groups}
	l.nest(tokens, 0, nil)
	return l
}

// ZigZagTiers lays the sequence out in several zigzags, one after the other: the
// groups of the lowest tier share its first tokens, those of the highest its last. A
// late token sees the keys of all others, so that a group which has no memory for more
// tokens has more attention to compute on those it has; and no group needs the keys of
// a tier behind its own, so that they are not sent to it. With a tier for every group
// it is a chain: keys and values only go one way.
func ZigZagTiers(tokens []units.Tokens, groups []Group, tier []int) Layout {
	l := Layout{Shards: make([]Shard, len(tokens)), Groups: groups}
	tiers := slices.Clone(tier)
	slices.Sort(tiers)
	begin := units.Tokens(0)
	for _, t := range slices.Compact(tiers) {
		begin = l.nest(tokens, begin, func(g int) bool { return tier[g] == t })
	}
	return l
}

// nest gives the ranks of some groups (nil: of all) their tokens from `head` on,
// nested from the outside in, and says where they end.
func (l *Layout) nest(tokens []units.Tokens, head units.Tokens, some func(g int) bool) (end units.Tokens) {
	end = head
	ranks := 0
	for g := range l.Groups {
		for _, m := range l.Groups[g] {
			if n := tokens[m.Rank]; n < 0 {
				panic(fmt.Sprintf("costmodel: ZigZag: rank %d has %d tokens", m.Rank, int64(n)))
			} else if some == nil || some(g) {
				end, ranks = end+n, ranks+1
			}
		}
	}
	tail, all := end, make([]Segment, 0, 2*ranks)
	for g := range l.Groups {
		if some != nil && !some(g) {
			continue
		}
		for _, m := range l.Groups[g] {
			n := tokens[m.Rank]
			if n == 0 {
				continue
			}
			from := len(all)
			all = appendPieces(all, head, head+n/2, tail-(n-n/2), tail)
			l.Shards[m.Rank].Segments = all[from:len(all):len(all)]
			head, tail = head+n/2, tail-(n-n/2)
		}
	}
	return end
}

// Contiguous lays the sequence out in one piece a rank, in the order of the
// groups and their members: the first pieces see few keys and have little
// attention to compute.
func Contiguous(tokens []units.Tokens, groups []Group) Layout {
	l := Layout{Shards: make([]Shard, len(tokens)), Groups: groups}
	at := units.Tokens(0)
	for _, g := range groups {
		for _, m := range g {
			if n := tokens[m.Rank]; n > 0 {
				l.Shards[m.Rank].Segments = []Segment{{at, at + n}}
				at += n
			}
		}
	}
	return l
}

// appendPieces appends the segments [a,b) and [c,d), joined if they touch, without
// empty ones.
func appendPieces(all []Segment, a, b, c, d units.Tokens) []Segment {
	switch {
	case a == b:
		return append(all, Segment{c, d})
	case b == c:
		return append(all, Segment{a, d})
	}
	return append(all, Segment{a, b}, Segment{c, d})
}

// attnBlock is one attention kernel call: the queries QStart to QStart+QLen of one
// shard on the keys KVStart to KVStart+KVLen of another, offsets counting the
// tokens of a shard in the order of its segments.
type attnBlock struct {
	Mask    op.Mask
	QStart  units.Tokens
	QLen    units.Tokens
	KVStart units.Tokens
	KVLen   units.Tokens
}

// appendBlocks cuts the causal attention of the queries of one shard on the keys of
// another (or of itself) into FULL rectangles and DIAG squares, and appends them to dst.
// Every visible (query, key) pair is in exactly one block. Keys that all queries of a
// segment see form one rectangle however many segments they come from, for they lie
// side by side in the shard, and so do successive query segments that see the
// same keys: fewer, larger calls.
func appendBlocks(dst []attnBlock, q, kv Shard) []attnBlock {
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
			dst = append(dst, attnBlock{op.Full, row, qs.Len(), 0, seen})
			wide = len(dst) - 1
		}
		row += qs.Len()
	}
	return dst
}

// appendOverlap cuts the part where query and key positions coincide: a square
// on the diagonal, and below it the queries that come after.
func appendOverlap(dst []attnBlock, qs, ks Segment, row, col units.Tokens) []attnBlock {
	lo, hi := max(qs.Start, ks.Start), min(qs.End, ks.End)
	if lo >= hi {
		// Keys wholly inside the queries' gap are behind all of them or ahead
		// of all of them; those behind are counted by the caller.
		return dst
	}
	dst = append(dst, attnBlock{op.Diag, row + lo - qs.Start, hi - lo, col + lo - ks.Start, hi - lo})
	if hi < qs.End {
		dst = append(dst, attnBlock{op.Full, row + hi - qs.Start, qs.End - hi, col + lo - ks.Start, hi - lo})
	}
	return dst
}

package costmodel

import (
	"slices"
	"sort"

	"github.com/evenkeel/evenkeel/internal/units"
)

// appendPacked is appendBlocks of packed documents, of which no query sees another
// one's keys: the blocks of each document on its own. Without documents the
// sequence is one.
func appendPacked(dst []attnBlock, q, kv Shard, docs []Segment) []attnBlock {
	if len(docs) == 0 {
		return appendBlocks(dst, q, kv)
	}
	var row, col units.Tokens
	for _, d := range docs {
		queries, keys := q.within(d), kv.within(d)
		from := len(dst)
		dst = appendBlocks(dst, queries, keys)
		for i := range dst[from:] {
			dst[from+i].QStart += row
			dst[from+i].KVStart += col
		}
		row, col = row+queries.Tokens(), col+keys.Tokens()
	}
	return dst
}

// within is the part of a shard that lies in a segment.
func (s Shard) within(d Segment) Shard {
	first := sort.Search(len(s.Segments), func(i int) bool { return s.Segments[i].End > d.Start })
	last := sort.Search(len(s.Segments), func(i int) bool { return s.Segments[i].Start >= d.End })
	if first >= last {
		return Shard{}
	}
	all := slices.Clone(s.Segments[first:last])
	all[0].Start = max(all[0].Start, d.Start)
	all[len(all)-1].End = min(all[len(all)-1].End, d.End)
	return Shard{all}
}

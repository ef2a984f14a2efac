package costmodel

import "github.com/evenkeel/evenkeel/costmodel/op"

// PackedSeconds is the time of one call over packed documents, forward or backward. All
// documents' tasks are in the same launch, so that it is the time of one block in which
// W, Q, n and the bytes are sums over the documents and L is the longest task of any.
//
// The tail differs. Tasks start in the order of the documents, and what a document's
// longest task sticks out by is filled by the documents behind it: the units have worked
// for the time of the tiles in front when it starts, so that of all documents the one
// that ends last counts, which in a pack that begins with the longest is often not that.
// With f(L) = L 32/(32 + L), as for blocks, and A the tiles a unit behind a document in
// the pack of one head, the last to run, it is
//
//	tail_ratio (1 - P/Q)+ start_s + tile_s max over documents of (k f(L) - A),  k = tail_ratio (1 - P/Q)+ alone_ratio
//
// It does not allocate and never falls when a document grows or one more is appended. More
// heads are as for Seconds.
func (c *AttentionCore) PackedSeconds(v *op.Varlen, backward bool) float64 {
	return c.At(c.PackedGeometry(v, backward))
}

// PackedGeometry counts the tiles and tasks of a call over packed documents. Such calls are
// not split along the keys, whatever split_kv says of blocks.
func (c *AttentionCore) PackedGeometry(v *op.Varlen, backward bool) AttentionGeometry {
	group, heads := int64(1), int64(v.QHeads)
	if c.Packed && !backward {
		group, heads = ceilDiv(int64(v.QHeads), int64(v.KVHeads)), int64(v.KVHeads)
	}
	g := AttentionGeometry{Split: 1}
	all := op.Attention{Mask: op.Diag, QHeads: v.QHeads, KVHeads: v.KVHeads, HeadDim: v.HeadDim, DType: v.DType}
	var tiles, tasks, longest int64
	for i := len(v.SeqLens) - 1; i >= 0; i-- { // from the last one, which nothing is behind
		rows := int64(v.SeqLens[i])
		document := ceilDiv(rows*group, int64(c.TileRows))
		here, most := c.headTiles(op.Attention{Mask: op.Diag}, group, document, ceilDiv(rows, int64(c.TileKeys)))
		g.ends(float64(most), float64(tiles)/float64(c.Parallel))
		tiles, tasks, longest = tiles+here, tasks+document, max(longest, most)
		all.QLen += v.SeqLens[i]
	}
	all.KVLen = all.QLen
	c.spread(&g, float64(heads), float64(tasks), float64(tiles), float64(longest))
	g.operands(all, backward)
	return g
}

// lateFactors are the k at which a geometry knows the maximum over the documents of
// k f(L) - A: it is made without the coefficients, that k is of. Between them the maximum
// is taken from the two next to it. It is convex in k and what is taken no less, which is
// exact for a single document.
var lateFactors = [...]float64{1, 2, 4}

// ends takes in a document whose longest task has so many tiles, with so many tiles a
// unit behind it.
func (g *AttentionGeometry) ends(longest, behind float64) {
	for i, k := range lateFactors {
		g.Late[i] = max(g.Late[i], k*fine(longest)-behind)
	}
}

// late is the maximum over the documents of k f(L) - A, in tiles, for k >= 0. Every way
// to take it is of weights that are not negative and together at most one, beside what
// grows with the longest task alone: when a document grows by some tiles a unit, it
// falls by no more than these, which the work of all units grows by.
func (g *AttentionGeometry) late(k float64) float64 {
	last := len(lateFactors) - 1
	if k >= lateFactors[last] {
		return g.Late[last] + (k-lateFactors[last])*fine(g.Longest)
	}
	least, from := 0.0, 0.0 // at k = 0 the last document counts, with nothing behind it
	for i, to := range lateFactors {
		if k <= to {
			return least + (k-from)/(to-from)*(g.Late[i]-least)
		}
		least, from = g.Late[i], to
	}
	return least
}

// fine is f(L): see AttentionCore.tail.
func fine(tiles float64) float64 { return tiles * fineTiles / (fineTiles + tiles) }

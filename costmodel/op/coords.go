package op

// Coords are the numeric axes of a shape that its time depends on, in the
// order of CoordNames; unused places are 0. They say where inside or outside a
// law's measured range a shape lies. The array keeps a prediction free of
// allocation.
type Coords [5]float64

// Located is a shape whose place in a law's range is known. Every timed op has one.
type Located interface {
	Shape
	Coords() Coords
}

// CoordNames lists the axes behind Coords, or nil for an op without any.
func CoordNames(k Kind) []string {
	switch k {
	case KindAttnFwd, KindAttnBwd:
		return []string{"q_len", "kv_len", "q_heads", "kv_heads", "batch"}
	case KindAttnVarlenFwd, KindAttnVarlenBwd:
		return []string{"tokens", "longest", "q_heads", "kv_heads"}
	case KindGEMM:
		return []string{"m", "n", "k"}
	case KindNorm, KindRope, KindSwiGLU, KindGELU, KindCEChunk:
		return []string{"tokens", "width"}
	case KindLSEMerge:
		return []string{"tokens", "q_heads", "head_dim"}
	case KindAdamW:
		return []string{"params"}
	case KindAllReduce, KindAllGather, KindReduceScatter, KindAllToAll, KindSendRecv, KindSendRecvPairs, KindH2D, KindD2H:
		return []string{"bytes"}
	case KindLayerFwd, KindLayerBwd:
		return []string{"tokens", "hidden", "ffn"}
	case KindAllToAllV:
		return []string{"wire_bytes"}
	}
	return nil
}

// Coords implements Located.
func (a Attention) Coords() Coords {
	return Coords{float64(a.QLen), float64(a.KVLen), float64(a.QHeads), float64(a.KVHeads), float64(a.Blocks())}
}

// Coords implements Located.
func (v Varlen) Coords() Coords {
	return Coords{float64(v.Tokens()), float64(v.Longest()), float64(v.QHeads), float64(v.KVHeads)}
}

// Coords implements Located.
func (g GEMM) Coords() Coords { return Coords{float64(g.M), float64(g.N), float64(g.K)} }

// Coords implements Located.
func (r Rowwise) Coords() Coords { return Coords{float64(r.Tokens), float64(r.Width)} }

// Coords implements Located.
func (l LSEMerge) Coords() Coords {
	return Coords{float64(l.Tokens), float64(l.QHeads), float64(l.HeadDim)}
}

// Coords implements Located.
func (a AdamW) Coords() Coords { return Coords{float64(a.Params)} }

// Coords implements Located.
func (m Message) Coords() Coords { return Coords{float64(m.Bytes)} }

// Coords implements Located.
func (a AllToAllV) Coords() Coords { return Coords{float64(a.Work().Wire)} }

// Coords implements Located.
func (p Pairs) Coords() Coords { return Coords{float64(p.Bytes)} }

// Coords implements Located.
func (l LayerFwd) Coords() Coords { return l.coords() }

// Coords implements Located.
func (l LayerBwd) Coords() Coords { return l.coords() }

// coords is not Coords because MemLayer embeds a Layer and is not timed.
func (l Layer) coords() Coords {
	return Coords{float64(l.Tokens), float64(l.Hidden), float64(l.FFN)}
}

// Coords implements Located.
func (c Copy) Coords() Coords { return Coords{float64(c.Bytes)} }

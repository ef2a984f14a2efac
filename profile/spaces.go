package profile

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Extent says how far the shapes of a device's spaces reach, and in which variants they
// come.
type Extent struct {
	MaxLen   units.Tokens // longest attention block and largest m of a GEMM
	MaxHeads int
	MaxWidth int // widest layer: n and k of a GEMM, row width of bandwidth ops
	HeadDims []int
	DType    op.DType
	Kernels  []string // attention kernels by name; nil stands for a single one without a name
	// Ungrouped are those of them that take as many KV heads as query heads.
	Ungrouped []string
}

// kernels has the empty name where kernels have none.
func (e Extent) kernels() []string {
	if len(e.Kernels) == 0 {
		return []string{""}
	}
	return e.Kernels
}

// The smallest ends of the axes: shorter shapes measure the launch and nothing
// a planner asks for. Widths are multiples of minWidth, as models' are: a matrix product
// of bf16 whose rows are no multiple of 8 elements runs on other kernels, which on an H200
// reach a sixth of the rate.
const (
	minLen   = 64
	minWidth = 64
)

// ComputeSpaces lists the families of shapes of every op that a single device
// runs: attention forward and backward, FULL and DIAG, for each head width and kernel;
// the three passes of a GEMM; and the bandwidth-bound ops.
func ComputeSpaces(on string, e Extent) []Space {
	var spaces []Space
	for _, kernel := range e.kernels() {
		for _, dim := range e.HeadDims {
			for _, mask := range []op.Mask{op.Full, op.Diag} {
				spaces = append(spaces, attentionSpace(on, e, mask, dim, kernel, true), attentionSpace(on, e, mask, dim, kernel, false))
			}
		}
	}
	for _, pass := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
		spaces = append(spaces, gemmSpace(on, e, pass))
	}
	return append(spaces, bandwidthSpaces(on, e)...)
}

// attentionSpace: q and kv lengths independent (a planner's blocks are any
// rectangle), head counts from 1, one to eight query heads a KV head.
func attentionSpace(on string, e Extent, mask op.Mask, dim int, kernel string, forward bool) Space {
	sp := Space{On: on, Kind: op.KindAttnBwd, Dims: 4, Share: 3}
	if forward {
		sp.Kind = op.KindAttnFwd
	}
	if mask == op.Diag {
		sp.Dims = 3
	}
	sp.Make = func(u []float64) op.Shape {
		heads, kvHeads := headCounts(u[1], u[2], e.MaxHeads)
		if slices.Contains(e.Ungrouped, kernel) {
			kvHeads = heads
		}
		a := op.Attention{
			Mask: mask, QLen: units.Tokens(LogScale(u[0], minLen, float64(e.MaxLen))),
			QHeads: heads, KVHeads: kvHeads, HeadDim: dim, DType: e.DType, Kernel: kernel,
		}
		a.KVLen = a.QLen
		if mask == op.Full {
			a.KVLen = units.Tokens(LogScale(u[3], minLen, float64(e.MaxLen)))
		}
		if forward {
			return op.AttnFwd{Attention: a}
		}
		return op.AttnBwd{Attention: a}
	}
	return sp
}

// headCounts: query heads up to most, and one to eight of them a KV head. The
// counts divide, as every kernel for GQA demands.
func headCounts(u, ratio float64, most int) (heads, kvHeads int) {
	kvHeads = max(1, int(math.Round(LogScale(u, 1, float64(most))/LogScale(ratio, 1, 8))))
	heads = kvHeads * max(1, int(math.Round(LogScale(u, 1, float64(most))/float64(kvHeads))))
	return min(heads, most/kvHeads*kvHeads), kvHeads
}

// DocumentSpaces lists the families of attention over packed documents, each document
// causal on its own. Their axes are the total length, the number of documents, how
// unequal they are, and the head counts.
func DocumentSpaces(on string, e Extent) []Space {
	var spaces []Space
	for _, kernel := range e.kernels() {
		for _, dim := range e.HeadDims {
			for _, k := range []op.Kind{op.KindAttnVarlenFwd, op.KindAttnVarlenBwd} {
				spaces = append(spaces, Space{On: on, Kind: k, Dims: 5, Share: 2, Make: func(u []float64) op.Shape {
					heads, kvHeads := headCounts(u[1], u[2], e.MaxHeads)
					v := op.Varlen{
						SeqLens: documents(LogScale(u[0], 8*minLen, float64(e.MaxLen)), int(LogScale(u[3], 1, 32)), math.Pow(16, u[4])),
						QHeads:  heads, KVHeads: kvHeads, HeadDim: dim, DType: e.DType, Kernel: kernel,
					}
					if k == op.KindAttnVarlenFwd {
						return op.AttnVarlenFwd{Varlen: v}
					}
					return op.AttnVarlenBwd{Varlen: v}
				}})
			}
		}
	}
	return spaces
}

// documents cuts a total length into n, the first `skew` times as long as the
// last, and each at least one token.
func documents(total float64, n int, skew float64) []units.Tokens {
	weights, sum := make([]float64, n), 0.0
	for i := range weights {
		weights[i] = math.Pow(skew, -float64(i)/float64(n))
		sum += weights[i]
	}
	lens := make([]units.Tokens, n)
	for i, w := range weights {
		lens[i] = units.Tokens(max(1, math.Round(total*w/sum)))
	}
	return lens
}

// LayerSpaces lists the families of a whole layer, whose widths grow together
// as models' do: heads of one width, a KV head for every four, and a gated MLP
// of 3.5 hidden widths. They begin where a planner's layers are: of those of a tenth of a
// millisecond, which a GPU's whole range would have most of, four tenths are launches.
func LayerSpaces(on string, e Extent) []Space {
	var spaces []Space
	for _, k := range []op.Kind{op.KindLayerFwd, op.KindLayerBwd} {
		spaces = append(spaces, Space{On: on, Kind: k, Dims: 2, Share: 1, Make: func(u []float64) op.Shape {
			tokens := LogScale(u[0], max(2*minLen, float64(e.MaxLen)/64), float64(e.MaxLen)/4)
			l := LayerOf(units.Tokens(tokens), int(LogScale(u[1], max(2, float64(e.MaxHeads)/8), float64(e.MaxHeads))), e)
			if k == op.KindLayerFwd {
				return op.LayerFwd{Layer: l}
			}
			return op.LayerBwd{Layer: l}
		}})
	}
	return spaces
}

// LayerOf is a layer with the given query heads, rounded to whole groups.
func LayerOf(tokens units.Tokens, heads int, e Extent) op.Layer {
	kv := max(1, heads/4)
	heads = kv * max(1, heads/kv)
	dim := e.HeadDims[0]
	return op.Layer{
		Tokens: tokens, Hidden: heads * dim, FFN: 7 * heads * dim / 2,
		QHeads: heads, KVHeads: kv, HeadDim: dim, DType: e.DType,
	}
}

// CopySpaces lists the copies between host and device, up to `most` bytes.
func CopySpaces(on string, most units.Bytes) []Space {
	var spaces []Space
	for _, k := range []op.Kind{op.KindH2D, op.KindD2H} {
		spaces = append(spaces, Space{On: on, Kind: k, Dims: 1, Share: 2, Make: func(u []float64) op.Shape {
			c := op.Copy{Bytes: units.Bytes(LogScale(u[0], 4096, float64(most))), Pinned: true}
			if k == op.KindH2D {
				return op.H2D{Copy: c}
			}
			return op.D2H{Copy: c}
		}})
	}
	return spaces
}

// PairSpaces lists the exchanges between disjoint pairs of a group, from one
// pair to all, so that what they share shows.
func PairSpaces(g op.GroupType, most units.Bytes) []Space {
	var spaces []Space
	for pairs := 1; pairs <= g.Ranks()/2; pairs *= 2 {
		spaces = append(spaces, Space{On: g.Name, Kind: op.KindSendRecvPairs, Dims: 1, Share: 3, Make: func(u []float64) op.Shape {
			return op.Pairs{Group: g.Ranks(), Pairs: pairs, Bytes: 4 * units.Bytes(LogScale(u[0], 256, float64(most)/4))}
		}})
	}
	return spaces
}

// gemmSpace: a law of products needs more points than one of attention. Of an H200's, 84
// gave a median error of 5 %, where attention has 2.5 from 63.
func gemmSpace(on string, e Extent, pass op.Pass) Space {
	return Space{On: on, Kind: op.KindGEMM, Dims: 3, Share: 6, Make: func(u []float64) op.Shape {
		width := func(u float64) int { return minWidth * int(LogScale(u, 1, float64(e.MaxWidth)/minWidth)) }
		return op.GEMM{Pass: pass, M: units.Tokens(LogScale(u[0], minLen, float64(e.MaxLen))), N: width(u[1]), K: width(u[2]), DType: e.DType}
	}}
}

// rowwise builds a bandwidth op from tokens and width.
type rowwise func(op.Rowwise) op.Shape

func bandwidthSpaces(on string, e Extent) []Space {
	row := func(k op.Kind, build rowwise, dtype op.DType) Space {
		return Space{On: on, Kind: k, Dims: 2, Share: 2, Make: func(u []float64) op.Shape {
			return build(op.Rowwise{
				Tokens: units.Tokens(LogScale(u[0], minLen, float64(e.MaxLen))),
				Width:  minWidth * int(LogScale(u[1], 1, float64(e.MaxWidth)/minWidth)), DType: dtype,
			})
		}}
	}
	return []Space{
		row(op.KindNorm, func(r op.Rowwise) op.Shape { return op.Norm{Rowwise: r} }, e.DType),
		row(op.KindRope, func(r op.Rowwise) op.Shape { return op.Rope{Rowwise: r} }, e.DType),
		row(op.KindSwiGLU, func(r op.Rowwise) op.Shape { return op.SwiGLU{Rowwise: r} }, e.DType),
		row(op.KindGELU, func(r op.Rowwise) op.Shape { return op.GELU{Rowwise: r} }, e.DType),
		row(op.KindCEChunk, func(r op.Rowwise) op.Shape { return op.CEChunk{Rowwise: r} }, op.F32),
		{On: on, Kind: op.KindLSEMerge, Dims: 2, Share: 2, Make: func(u []float64) op.Shape {
			return op.LSEMerge{
				Tokens: units.Tokens(LogScale(u[0], minLen, float64(e.MaxLen))),
				QHeads: int(LogScale(u[1], 1, float64(e.MaxHeads))), HeadDim: e.HeadDims[0],
			}
		}},
		{On: on, Kind: op.KindAdamW, Dims: 1, Share: 2, Make: func(u []float64) op.Shape {
			return op.AdamW{Params: int64(LogScale(u[0], 1<<12, float64(e.MaxLen)*float64(e.MaxWidth)))}
		}},
	}
}

// GroupSpaces lists the families of shapes of every collective of a group, up
// to `most` bytes.
func GroupSpaces(g op.GroupType, most units.Bytes) []Space {
	n := g.Ranks()
	var spaces []Space
	for _, k := range []op.Kind{op.KindAllReduce, op.KindAllGather, op.KindReduceScatter, op.KindAllToAll, op.KindSendRecv} {
		spaces = append(spaces, Space{On: g.Name, Kind: k, Dims: 1, Share: 5, Make: func(u []float64) op.Shape {
			// Whole float32 elements for every rank.
			unit := 4 * float64(n)
			return op.OfMessage(k, op.Message{Group: n, Bytes: units.Bytes(unit * LogScale(u[0], 256, float64(most)/unit))})
		}})
	}
	return append(spaces, unevenSpace(g, most))
}

// unevenSpace: the second axis is how much more the first rank sends and
// receives than the last, from none to eight times.
func unevenSpace(g op.GroupType, most units.Bytes) Space {
	n := g.Ranks()
	return Space{On: g.Name, Kind: op.KindAllToAllV, Dims: 2, Share: 5, Make: func(u []float64) op.Shape {
		total := LogScale(u[0], 4096, float64(most))
		skew := math.Pow(8, u[1])
		m := make([][]units.Bytes, n)
		for i := range m {
			m[i] = make([]units.Bytes, n)
			for j := range m[i] {
				if i != j {
					weight := math.Pow(skew, -float64(i+j)/float64(2*n))
					m[i][j] = max(4, 4*units.Bytes(total*weight/float64(4*n)))
				}
			}
		}
		return op.AllToAllV{Matrix: m}
	}}
}

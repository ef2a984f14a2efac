package profile

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Extent says how far the shapes of a device's spaces reach, and which
// variants there are.
type Extent struct {
	MaxLen   units.Tokens // longest attention block and largest m of a GEMM
	MaxHeads int
	MaxWidth int // widest layer: n and k of a GEMM, row width of bandwidth ops
	HeadDims []int
	DType    op.DType
}

// The smallest ends of the axes: shorter shapes measure the launch and nothing
// a planner asks for. Row widths are multiples of minWidth, as models' are.
const (
	minLen   = 64
	minWidth = 64
)

// ComputeSpaces lists the families of shapes of every op that a single device
// runs: attention forward and backward, FULL and DIAG, for each head width;
// the three passes of a GEMM; and the bandwidth-bound ops.
func ComputeSpaces(on string, e Extent) []Space {
	var spaces []Space
	for _, dim := range e.HeadDims {
		for _, mask := range []op.Mask{op.Full, op.Diag} {
			spaces = append(spaces, attentionSpace(on, e, mask, dim, true), attentionSpace(on, e, mask, dim, false))
		}
	}
	for _, pass := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
		spaces = append(spaces, gemmSpace(on, e, pass))
	}
	return append(spaces, bandwidthSpaces(on, e)...)
}

// attentionSpace: q and kv lengths independent (a planner's blocks are any
// rectangle), head counts from 1, one to eight query heads a KV head.
func attentionSpace(on string, e Extent, mask op.Mask, dim int, forward bool) Space {
	sp := Space{On: on, Kind: op.KindAttnBwd, Dims: 4, Share: 3}
	if forward {
		sp.Kind = op.KindAttnFwd
	}
	if mask == op.Diag {
		sp.Dims = 3
	}
	sp.Make = func(u []float64) op.Shape {
		heads := int(LogScale(u[1], 1, float64(e.MaxHeads)))
		a := op.Attention{
			Mask: mask, QLen: units.Tokens(LogScale(u[0], minLen, float64(e.MaxLen))),
			QHeads: heads, KVHeads: max(1, int(math.Round(float64(heads)/LogScale(u[2], 1, 8)))),
			HeadDim: dim, DType: e.DType,
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

func gemmSpace(on string, e Extent, pass op.Pass) Space {
	return Space{On: on, Kind: op.KindGEMM, Dims: 3, Share: 4, Make: func(u []float64) op.Shape {
		width := func(u float64) int { return int(LogScale(u, minWidth, float64(e.MaxWidth))) }
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

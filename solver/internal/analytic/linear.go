package analytic

import (
	"math"
	"math/bits"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// linearTable is the linear time of a layer at a few lengths, by the number of
// the length on the grid; 0 where it is not known yet.
type linearTable []float64

// gridStep is the number of lengths a doubling at which linear work is priced.
const gridStep = 4

// LinearTime is the seconds a device takes over the linear work of a layer on s
// tokens, all passes together: straight between the grid's lengths.
func (m *Model) LinearTime(dev int, s units.Tokens) float64 {
	if s == 0 {
		return 0
	}
	at := gridStep * (bits.Len64(uint64(s)) - 1)
	for at+gridStep >= len(m.lengths) {
		m.lengths = append(m.lengths, gridLength(len(m.lengths)))
	}
	for last := at + gridStep - 1; at < last && m.lengths[at+1] <= s; {
		at++
	}
	lo, hi := m.lengths[at], m.lengths[at+1]
	a, b := m.linearAt(dev, at), m.linearAt(dev, at+1)
	if hi == lo {
		return a
	}
	return a + (b-a)*float64(s-lo)/float64(hi-lo)
}

func gridLength(at int) units.Tokens {
	return units.Tokens(math.Ceil(math.Exp2(float64(at) / gridStep)))
}

func (m *Model) linearAt(dev, at int) float64 {
	for at >= len(m.linear[dev]) {
		m.linear[dev] = append(m.linear[dev], 0)
	}
	t := &m.linear[dev][at]
	if *t == 0 {
		*t = m.linearCost(dev, m.lengths[at])
	}
	return *t
}

// linearCost is the linear work of a layer by the laws, and the loss as far as a
// layer's share of it.
func (m *Model) linearCost(dev int, s units.Tokens) float64 {
	j := m.p.Job
	md := j.Model
	rows := func(width int) op.Rowwise { return op.Rowwise{Tokens: s, Width: width, DType: j.DType} }
	// Backward, element-wise ops move about twice the bytes.
	total := (m.Forwards + 2) * (float64(md.Norms())*m.Price(dev, op.Norm{Rowwise: rows(md.Hidden)}) + m.Price(dev, md.Activated(s, j.DType)))
	if q, k := md.HeadNorms(); q > 0 {
		total += (m.Forwards + 2) * (m.Price(dev, op.Norm{Rowwise: rows(q)}) + m.Price(dev, op.Norm{Rowwise: rows(k)}))
	}
	if q, k := md.Rotary(); q > 0 {
		total += (m.Forwards + 2) * (m.Price(dev, op.Rope{Rowwise: rows(q)}) + m.Price(dev, op.Rope{Rowwise: rows(k)}))
	}
	q, kv := md.QHeads*md.HeadDim, md.KVHeads*md.HeadDim
	for _, w := range [][2]int{{q + 2*kv, md.Hidden}, {md.Hidden, q}, {md.GateUp(), md.Hidden}, {md.Hidden, md.FFN}} {
		total += m.products(dev, s, w[0], w[1], m.Forwards)
	}
	chunk := min(s, j.LossChunk)
	loss := m.products(dev, chunk, md.Vocab, md.Hidden, 1) + m.Price(dev, op.CEChunk{Rowwise: op.Rowwise{Tokens: chunk, Width: md.Vocab, DType: op.F32}})
	return total + loss*float64(s)/float64(chunk)/float64(md.Layers)
}

// products is a linear layer's matrix products: forward so many times, and the
// two of the backward pass.
func (m *Model) products(dev int, s units.Tokens, n, k int, forward float64) float64 {
	at := func(pass op.Pass) float64 {
		return m.Price(dev, op.GEMM{Pass: pass, M: s, N: n, K: k, DType: m.p.Job.DType})
	}
	return forward*at(op.Forward) + at(op.DGrad) + at(op.WGrad)
}

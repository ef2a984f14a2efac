package costmodel

import (
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// gemm charges one matrix product of a linear layer.
func (c *coster) gemm(device string, pass op.Pass, tokens units.Tokens, n, k int, times float64, acc *account) units.Seconds {
	g := op.GEMM{Pass: pass, M: tokens, N: n, K: k, DType: c.job.DType}
	return c.charge(c.on(device, op.KindGEMM, g.Variant()), g, times, acc)
}

// rows charges an element-wise op.
func (c *coster) rows(device string, s op.Shape, times float64, acc *account) units.Seconds {
	return c.charge(c.on(device, s.Kind(), s.Variant()), s, times, acc)
}

func (c *coster) rowwise(tokens units.Tokens, width int) op.Rowwise {
	return op.Rowwise{Tokens: tokens, Width: width, DType: c.job.DType}
}

// elementwiseBackward: nobody measures the backward pass of the element-wise
// ops; each reads and writes about twice what its forward does (input and
// gradient in, gradient out).
const elementwiseBackward = 2

// beforeAttention is the linear part of a layer up to the attention: norm, fused
// query, key and value projection, norms of heads, rotary positions. Biases cost nothing: the
// products add them to what they write.
func (c *coster) beforeAttention(device string, s units.Tokens, acc *account) units.Seconds {
	m := c.job.Model
	t := c.rows(device, op.Norm{Rowwise: c.rowwise(s, m.Hidden)}, 1, acc)
	t += c.gemm(device, op.Forward, s, m.qkvWidth(), m.Hidden, 1, acc)
	t += c.headNorms(device, s, 1, acc)
	return t + c.rotate(device, s, 1, acc)
}

// headNorms norms queries and keys head by head, in models that do. A norm
// streams its rows through memory, and short rows take as long as few wide ones
// of as many elements.
func (c *coster) headNorms(device string, s units.Tokens, times float64, acc *account) units.Seconds {
	q, k := c.job.Model.HeadNorms()
	if q == 0 {
		return 0
	}
	t := c.rows(device, op.Norm{Rowwise: c.rowwise(s, q)}, times, acc)
	return t + c.rows(device, op.Norm{Rowwise: c.rowwise(s, k)}, times, acc)
}

// rotate turns queries and keys; with learned positions, which the embedding
// adds, there is nothing to turn.
func (c *coster) rotate(device string, s units.Tokens, times float64, acc *account) units.Seconds {
	q, k := c.job.Model.Rotary()
	if q == 0 {
		return 0
	}
	t := c.rows(device, op.Rope{Rowwise: c.rowwise(s, q)}, times, acc)
	return t + c.rows(device, op.Rope{Rowwise: c.rowwise(s, k)}, times, acc)
}

// afterAttention is the rest: output projection, norm, MLP.
func (c *coster) afterAttention(device string, s units.Tokens, acc *account) units.Seconds {
	m := c.job.Model
	t := c.gemm(device, op.Forward, s, m.Hidden, m.qWidth(), 1, acc)
	t += c.secondNorm(device, s, 1, acc)
	t += c.gemm(device, op.Forward, s, m.GateUp(), m.Hidden, 1, acc)
	t += c.rows(device, m.Activated(s, c.job.DType), 1, acc)
	return t + c.gemm(device, op.Forward, s, m.Hidden, m.FFN, 1, acc)
}

// secondNorm is the norm before the MLP, unless the MLP reads the first one's
// output as attention does.
func (c *coster) secondNorm(device string, s units.Tokens, times float64, acc *account) units.Seconds {
	if c.job.Model.SharedNorm {
		return 0
	}
	return c.rows(device, op.Norm{Rowwise: c.rowwise(s, c.job.Model.Hidden)}, times, acc)
}

// backToAttention is the backward pass of afterAttention.
func (c *coster) backToAttention(device string, s units.Tokens, acc *account) units.Seconds {
	m := c.job.Model
	t := c.both(device, s, m.Hidden, m.FFN, acc)
	t += c.rows(device, m.Activated(s, c.job.DType), elementwiseBackward, acc)
	t += c.both(device, s, m.GateUp(), m.Hidden, acc)
	t += c.secondNorm(device, s, elementwiseBackward, acc)
	return t + c.both(device, s, m.Hidden, m.qWidth(), acc)
}

// backFromAttention is the backward pass of beforeAttention.
func (c *coster) backFromAttention(device string, s units.Tokens, acc *account) units.Seconds {
	m := c.job.Model
	t := c.rotate(device, s, elementwiseBackward, acc)
	t += c.headNorms(device, s, elementwiseBackward, acc)
	t += c.both(device, s, m.qkvWidth(), m.Hidden, acc)
	return t + c.rows(device, op.Norm{Rowwise: c.rowwise(s, m.Hidden)}, elementwiseBackward, acc)
}

// both charges a linear layer's two backward products.
func (c *coster) both(device string, s units.Tokens, n, k int, acc *account) units.Seconds {
	return c.gemm(device, op.DGrad, s, n, k, 1, acc) + c.gemm(device, op.WGrad, s, n, k, 1, acc)
}

// loss is the final norm, forward and backward, and in chunks the output
// projection, cross-entropy and the projection's two backward products.
func (c *coster) loss(device string, s units.Tokens, acc *account) units.Seconds {
	t := c.rows(device, op.Norm{Rowwise: c.rowwise(s, c.job.Model.Hidden)}, 1+elementwiseBackward, acc)
	chunk := min(s, c.job.LossChunk)
	t += c.lossChunk(device, chunk, float64(s/chunk), acc)
	if rest := s % chunk; rest > 0 {
		t += c.lossChunk(device, rest, 1, acc)
	}
	return t
}

func (c *coster) lossChunk(device string, tokens units.Tokens, times float64, acc *account) units.Seconds {
	m := c.job.Model
	// Losses are taken in float32 whatever the precision of the layers.
	t := c.rows(device, op.CEChunk{Rowwise: op.Rowwise{Tokens: tokens, Width: m.Vocab, DType: op.F32}}, times, acc)
	for _, pass := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
		t += c.gemm(device, pass, tokens, m.Vocab, m.Hidden, times, acc)
	}
	return t
}

// optimizer is AdamW on a rank's share of the parameters.
func (c *coster) optimizer(device string, ranks int, acc *account) units.Seconds {
	p := c.job.Model.Params()
	if c.job.zero() != Zero0 {
		p = (p + int64(ranks) - 1) / int64(ranks)
	}
	return c.rows(device, op.AdamW{Params: p}, 1, acc)
}

package op

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Layer is the size of one pre-norm Llama block on one rank: RMSNorm, fused
// query, key and value projection, rotary positions, DIAG attention over the
// tokens as one document, output projection, RMSNorm, gated MLP; no biases.
type Layer struct {
	Tokens  units.Tokens `json:"tokens"`
	Hidden  int          `json:"hidden"`
	FFN     int          `json:"ffn"`
	QHeads  int          `json:"q_heads"`
	KVHeads int          `json:"kv_heads"`
	HeadDim int          `json:"head_dim"`
	DType   DType        `json:"dtype"`
}

// Kinds of a whole layer.
const (
	KindLayerFwd Kind = "layer_fwd"
	KindLayerBwd Kind = "layer_bwd"
)

// LayerFwd is the forward pass of a whole layer.
type LayerFwd struct{ Layer }

// LayerBwd is the backward pass of a whole layer, timed without its forward
// and with nothing recomputed.
type LayerBwd struct{ Layer }

// Compound is a shape of an op that is made of other ops. It has no law of its
// own: it is measured to see whether the laws of its parts add up.
type Compound interface {
	Shape
	// Parts are the calls one call consists of, in the order in which they run.
	Parts() []Shape
}

var layerExample = Layer{Tokens: 1024, Hidden: 1024, FFN: 2816, QHeads: 16, KVHeads: 4, HeadDim: 64, DType: F32}

var layerFwdSpec = Spec{
	Kind: KindLayerFwd, Class: Composed, Measures: Time,
	Doc:     "forward of one whole pre-norm Llama block over one document of tokens; checks that the laws of its parts add up",
	Example: LayerFwd{layerExample},
}

var layerBwdSpec = Spec{
	Kind: KindLayerBwd, Class: Composed, Measures: Time,
	Doc:     "backward of one whole pre-norm Llama block, timed without its forward; checks that the laws of its parts add up",
	Example: LayerBwd{layerExample},
}

// Kind implements Shape.
func (LayerFwd) Kind() Kind { return KindLayerFwd }

// Kind implements Shape.
func (LayerBwd) Kind() Kind { return KindLayerBwd }

// Validate implements Shape.
func (l LayerFwd) Validate() error { return l.validate(KindLayerFwd) }

// Validate implements Shape.
func (l LayerBwd) Validate() error { return l.validate(KindLayerBwd) }

// validate also keeps the two fused projections inside a GEMM's limits, so that
// every part of a valid layer is valid.
func (l Layer) validate(k Kind) error {
	for _, err := range []error{
		within(k, "tokens", l.Tokens, maxTokens), within(k, "hidden", l.Hidden, maxWidth),
		within(k, "ffn", l.FFN, maxWidth/2), within(k, "q_heads", l.QHeads, maxHeads),
		within(k, "kv_heads", l.KVHeads, maxHeads), within(k, "head_dim", l.HeadDim, maxHeadDim),
		l.DType.validate(k),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case l.KVHeads > l.QHeads:
		return &AxisError{k, "kv_heads", fmt.Sprintf("%d: more than q_heads %d", l.KVHeads, l.QHeads)}
	case l.qkvWidth() > maxWidth:
		return &AxisError{k, "head_dim", fmt.Sprintf("%d: (q_heads + 2 kv_heads) head_dim is %d, which must be at most %d", l.HeadDim, l.qkvWidth(), maxWidth)}
	}
	return nil
}

// Variant implements Shape.
func (l Layer) Variant() Variant { return Variant{DType: l.DType} }

func (l Layer) qWidth() int { return l.QHeads * l.HeadDim }

// kWidth is the width of the keys; the values are as wide.
func (l Layer) kWidth() int { return l.KVHeads * l.HeadDim }

func (l Layer) qkvWidth() int { return l.qWidth() + 2*l.kWidth() }

// Work implements Shape: the sum over the parts. Every operand between two
// parts counts twice, written by one and read by the next, as unfused kernels do.
func (l LayerFwd) Work() Work { return sumOfWork(l.Parts()) }

// Work implements Shape: the sum over the parts.
func (l LayerBwd) Work() Work { return sumOfWork(l.Parts()) }

func sumOfWork(parts []Shape) Work {
	var sum Work
	for _, p := range parts {
		w := p.Work()
		sum.FLOPs += w.FLOPs
		sum.Read += w.Read
		sum.Write += w.Write
	}
	return sum
}

// Parts implements Compound. The two residual sums are not among them: every
// framework fuses them into the op before or after.
func (l LayerFwd) Parts() []Shape {
	return []Shape{
		l.norm(), l.gemm(Forward, l.qkvWidth(), l.Hidden), l.rope(l.qWidth()), l.rope(l.kWidth()),
		AttnFwd{l.attention()},
		l.gemm(Forward, l.Hidden, l.qWidth()),
		l.norm(), l.gemm(Forward, 2*l.FFN, l.Hidden), l.swiglu(), l.gemm(Forward, l.Hidden, l.FFN),
	}
}

// Parts implements Compound. Nothing measures the backward of the element-wise
// ops alone; each reads and writes about twice what its forward does (input and
// gradient in, gradient out), so its forward stands in twice.
func (l LayerBwd) Parts() []Shape {
	var parts []Shape
	linear := func(n, k int) { parts = append(parts, l.gemm(DGrad, n, k), l.gemm(WGrad, n, k)) }
	twice := func(s Shape) { parts = append(parts, s, s) }
	linear(l.Hidden, l.FFN)
	twice(l.swiglu())
	linear(2*l.FFN, l.Hidden)
	twice(l.norm())
	linear(l.Hidden, l.qWidth())
	parts = append(parts, AttnBwd{l.attention()})
	twice(l.rope(l.qWidth()))
	twice(l.rope(l.kWidth()))
	linear(l.qkvWidth(), l.Hidden)
	twice(l.norm())
	return parts
}

func (l Layer) attention() Attention {
	return Attention{
		Mask: Diag, QLen: l.Tokens, KVLen: l.Tokens,
		QHeads: l.QHeads, KVHeads: l.KVHeads, HeadDim: l.HeadDim, DType: l.DType,
	}
}

func (l Layer) gemm(p Pass, n, k int) GEMM {
	return GEMM{Pass: p, M: l.Tokens, N: n, K: k, DType: l.DType}
}

func (l Layer) rowwise(width int) Rowwise {
	return Rowwise{Tokens: l.Tokens, Width: width, DType: l.DType}
}

func (l Layer) norm() Norm { return Norm{l.rowwise(l.Hidden)} }

func (l Layer) rope(width int) Rope { return Rope{l.rowwise(width)} }

func (l Layer) swiglu() SwiGLU { return SwiGLU{l.rowwise(l.FFN)} }

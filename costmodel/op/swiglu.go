package op

// KindSwiGLU is SwiGLU, forward.
const KindSwiGLU Kind = "swiglu"

// SwiGLU is SwiGLU, forward:
// out = silu(gate) * up, all tokens x width.
type SwiGLU struct{ Rowwise }

var swigluSpec = Spec{
	Kind: KindSwiGLU, Class: Bandwidth, Measures: Time,
	Doc:     "SwiGLU, forward: out = silu(gate) * up, all tokens x width",
	Example: SwiGLU{Rowwise{1024, 14336, F32}},
}

// Kind implements Shape.
func (SwiGLU) Kind() Kind { return KindSwiGLU }

// Validate implements Shape.
func (r SwiGLU) Validate() error { return r.validate(KindSwiGLU) }

// Work implements Shape: reads gate and up, writes out; exponential, add,
// divide and two multiplications an element.
func (r SwiGLU) Work() Work { return r.rowwiseWork(5, 2) }

// Features implements Featured.
func (r SwiGLU) Features(parallel int) Features { return rowFeatures(r.Work(), r.Tokens, parallel) }

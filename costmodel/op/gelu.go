package op

// KindGELU is GELU, forward.
const KindGELU Kind = "gelu"

// GELU is the activation of an MLP without a gate, forward, in the tanh form of
// GPT-2 (Hendrycks and Gimpel 2016, arXiv:1606.08415):
// out = x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3))), all tokens x width.
type GELU struct{ Rowwise }

var geluSpec = Spec{
	Kind: KindGELU, Class: Bandwidth, Measures: Time,
	Doc:     "GELU in its tanh form, forward: out = x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3))), all tokens x width",
	Example: GELU{Rowwise{1024, 16384, F32}},
}

// Kind implements Shape.
func (GELU) Kind() Kind { return KindGELU }

// Validate implements Shape.
func (r GELU) Validate() error { return r.validate(KindGELU) }

// Work implements Shape: reads x, writes out; three multiplications and an add
// for the exponent, exponential, add and divide an element.
func (r GELU) Work() Work { return r.rowwiseWork(7, 1) }

// Features implements Featured.
func (r GELU) Features(parallel int) Features { return rowFeatures(r.Work(), r.Tokens, parallel) }

package op

// KindNorm is RMSNorm, forward.
const KindNorm Kind = "norm"

// Norm is RMSNorm, forward:
// y = w x / sqrt(mean(x^2) + eps) over each of tokens rows of width elements.
type Norm struct{ Rowwise }

var normSpec = Spec{
	Kind: KindNorm, Class: Bandwidth, Measures: Time,
	Doc:     "RMSNorm, forward: y = w x / sqrt(mean(x^2) + eps) over each of tokens rows of width elements",
	Example: Norm{Rowwise{1024, 4096, F32}},
}

// Kind implements Shape.
func (Norm) Kind() Kind { return KindNorm }

// Validate implements Shape.
func (r Norm) Validate() error { return r.validate(KindNorm) }

// Work implements Shape: reads x, writes y; square, add and two
// multiplications an element; the gain of width elements is not counted.
func (r Norm) Work() Work { return r.rowwiseWork(4, 1) }

// Features implements Featured.
func (r Norm) Features(parallel int) Features { return rowFeatures(r.Work(), r.Tokens, parallel) }

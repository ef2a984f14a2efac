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

// Features implements Featured. A row is summed up by one unit alone, however few rows
// there are: without its Tail, the FLOPs of one row, linear laws of norms on an H200 and on
// two parts of one were 20 to 27 % off in the median of five-fold cross-validation, and with
// it 7 to 10.
func (r Norm) Features(parallel int) Features {
	f := rowFeatures(r.Work(), r.Tokens, parallel)
	f.Tail = float64(r.Work().FLOPs) / float64(r.Tokens) * unshared(parallel)
	return f
}

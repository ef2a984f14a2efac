package op

// KindRope is rotary position embedding.
const KindRope Kind = "rope"

// Rope is rotary position embedding:
// rotates pairs of a tokens x width query or key matrix.
type Rope struct{ Rowwise }

var ropeSpec = Spec{
	Kind: KindRope, Class: Bandwidth, Measures: Time,
	Doc:     "rotary position embedding: rotates pairs of a tokens x width query or key matrix",
	Example: Rope{Rowwise{1024, 4096, F32}},
}

// Kind implements Shape.
func (Rope) Kind() Kind { return KindRope }

// Validate implements Shape.
func (r Rope) Validate() error { return r.validate(KindRope) }

// Work implements Shape: reads and writes the matrix; six operations a pair;
// the angle tables are not counted.
func (r Rope) Work() Work { return r.rowwiseWork(3, 1) }

// Features implements Featured.
func (r Rope) Features(parallel int) Features { return rowFeatures(r.Work(), r.Tokens, parallel) }

package op

// KindReduceScatter is the reduce_scatter collective.
const KindReduceScatter Kind = "reduce_scatter"

// ReduceScatter sums a buffer of `bytes` over all ranks and leaves chunk r on rank r.
type ReduceScatter struct{ Message }

var reduceScatterSpec = Spec{
	Kind: KindReduceScatter, Class: Collective, Measures: Time,
	Doc:     "sums a buffer of bytes over all ranks, rank r keeps chunk r; bytes is the whole input",
	Example: ReduceScatter{Message{Group: 4, Bytes: 1 << 20}},
}

// Kind implements Shape.
func (ReduceScatter) Kind() Kind { return KindReduceScatter }

// Validate implements Shape.
func (g ReduceScatter) Validate() error { return g.validate(KindReduceScatter) }

// Work implements Shape: every rank sends n-1 of the n chunks, (n-1)/n of the buffer.
func (g ReduceScatter) Work() Work { return onWire(g.Bytes - smallest(g.Bytes, g.Group)) }

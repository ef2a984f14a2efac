package op

// KindAllGather is the all_gather collective.
const KindAllGather Kind = "all_gather"

// AllGather leaves the concatenation of all ranks' chunks, `bytes` in all, on every rank.
type AllGather struct{ Message }

var allGatherSpec = Spec{
	Kind: KindAllGather, Class: Collective, Measures: Time,
	Doc:     "every rank ends with all ranks' chunks; bytes is the whole gathered buffer",
	Example: AllGather{Message{Group: 4, Bytes: 1 << 20}},
}

// Kind implements Shape.
func (AllGather) Kind() Kind { return KindAllGather }

// Validate implements Shape.
func (g AllGather) Validate() error { return g.validate(KindAllGather) }

// Work implements Shape: every rank sends n-1 of the n chunks, (n-1)/n of the buffer.
func (g AllGather) Work() Work { return onWire(g.Bytes - smallest(g.Bytes, g.Group)) }

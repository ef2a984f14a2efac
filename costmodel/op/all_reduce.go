package op

// KindAllReduce is the all_reduce collective.
const KindAllReduce Kind = "all_reduce"

// AllReduce sums a buffer of `bytes` over all ranks into every rank.
type AllReduce struct{ Message }

var allReduceSpec = Spec{
	Kind: KindAllReduce, Class: Collective, Measures: Time,
	Doc:     "sums a buffer of bytes over all ranks into every rank",
	Example: AllReduce{Message{Group: 4, Bytes: 1 << 20}},
}

// Kind implements Shape.
func (AllReduce) Kind() Kind { return KindAllReduce }

// Validate implements Shape.
func (g AllReduce) Validate() error { return g.validate(KindAllReduce) }

// Work implements Shape: a reduce-scatter and an all-gather of n-1 chunks each, the bus
// factor 2(n-1)/n of nccl-tests.
func (g AllReduce) Work() Work { return onWire(2 * (g.Bytes - smallest(g.Bytes, g.Group))) }

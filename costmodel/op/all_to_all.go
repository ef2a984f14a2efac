package op

// KindAllToAll is the all_to_all collective.
const KindAllToAll Kind = "all_to_all"

// AllToAll sends chunk j of every rank's `bytes` to rank j.
type AllToAll struct{ Message }

var allToAllSpec = Spec{
	Kind: KindAllToAll, Class: Collective, Measures: Time,
	Doc:     "even all-to-all; bytes is the buffer each rank sends, bytes/group to each rank, itself included",
	Example: AllToAll{Message{Group: 4, Bytes: 1 << 20}},
}

// Kind implements Shape.
func (AllToAll) Kind() Kind { return KindAllToAll }

// Validate implements Shape.
func (g AllToAll) Validate() error { return g.validate(KindAllToAll) }

// Work implements Shape: all but the chunk a rank keeps, (n-1)/n of its buffer.
func (g AllToAll) Work() Work { return onWire(g.Bytes - smallest(g.Bytes, g.Group)) }

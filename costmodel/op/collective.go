package op

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Grouped is a shape of a collective.
type Grouped interface {
	Shape
	// Ranks is the size of the group.
	Ranks() int
}

// Message is the shape of a collective over `group` ranks. What `bytes` counts
// differs by op and follows nccl-tests; each op says it.
type Message struct {
	Group int         `json:"group"` // ranks
	Bytes units.Bytes `json:"bytes"`
	// DType is set where a library's times were measured per element type, as
	// switches that reduce do not do so for every type; empty otherwise.
	DType DType `json:"dtype,omitzero"`
}

// Ranks implements Grouped.
func (g Message) Ranks() int { return g.Group }

// Variant implements Shape: the group signature and, where given, the element
// type select a collective's law.
func (g Message) Variant() Variant { return Variant{DType: g.DType} }

func (g Message) validate(k Kind) error {
	if err := ranks(k, "group", g.Group); err != nil {
		return err
	}
	if g.DType != "" && g.DType.Size() == 0 {
		return &AxisError{k, "dtype", fmt.Sprintf("%q: want f64, f32, bf16, f16, fp8, i64, i32 or i8", string(g.DType))}
	}
	return within(k, "bytes", g.Bytes, maxBytes)
}

func ranks(k Kind, axis string, n int) error {
	if n < 2 {
		return &AxisError{k, axis, fmt.Sprintf("%d: a collective needs at least 2 ranks", n)}
	}
	return within(k, axis, n, maxGroup)
}

// OfMessage is the collective of a kind over a message. It panics for a kind
// that a Message does not describe.
func OfMessage(k Kind, m Message) Shape {
	switch k {
	case KindAllReduce:
		return AllReduce{m}
	case KindAllGather:
		return AllGather{m}
	case KindReduceScatter:
		return ReduceScatter{m}
	case KindAllToAll:
		return AllToAll{m}
	case KindSendRecv:
		return SendRecv{m}
	}
	panic("op: no collective of a message: " + string(k))
}

// MessageVolume is the Volume of such a collective, without making its shape.
func MessageVolume(k Kind, m Message) units.Bytes {
	switch k {
	case KindAllReduce:
		return AllReduce{m}.Work().volume()
	case KindAllGather:
		return AllGather{m}.Work().volume()
	case KindReduceScatter:
		return ReduceScatter{m}.Work().volume()
	case KindAllToAll:
		return AllToAll{m}.Work().volume()
	case KindSendRecv:
		return SendRecv{m}.Work().volume()
	}
	panic("op: no collective of a message: " + string(k))
}

// onWire is the work of a collective that sends `sent` bytes from its busiest rank.
func onWire(sent units.Bytes) Work { return Work{Read: sent, Write: sent, Wire: sent} }

// smallest is the smallest of n chunks of b bytes; chunk i ends at
// floor((i+1) b/n), so the smallest is the floor, and the rank that keeps it
// sends the most.
func smallest(b units.Bytes, n int) units.Bytes { return b / units.Bytes(n) }

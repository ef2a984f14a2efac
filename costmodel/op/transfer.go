package op

import "github.com/evenkeel/evenkeel/internal/units"

// Kinds of copies between host and device.
const (
	KindH2D Kind = "h2d"
	KindD2H Kind = "d2h"
)

// Copy moves `bytes` between host and device memory.
type Copy struct {
	Bytes  units.Bytes `json:"bytes"`
	Pinned bool        `json:"pinned"` // page-locked host memory
}

// H2D copies from host to device.
type H2D struct{ Copy }

// D2H copies from device to host.
type D2H struct{ Copy }

var h2dSpec = Spec{
	Kind: KindH2D, Class: Transfer, Measures: Time,
	Doc: "copies bytes from host to device memory", Example: H2D{Copy{1 << 20, true}},
}

var d2hSpec = Spec{
	Kind: KindD2H, Class: Transfer, Measures: Time,
	Doc: "copies bytes from device to host memory", Example: D2H{Copy{1 << 20, true}},
}

// Kind implements Shape.
func (H2D) Kind() Kind { return KindH2D }

// Kind implements Shape.
func (D2H) Kind() Kind { return KindD2H }

// Validate implements Shape.
func (c H2D) Validate() error { return within(KindH2D, "bytes", c.Bytes, maxBytes) }

// Validate implements Shape.
func (c D2H) Validate() error { return within(KindD2H, "bytes", c.Bytes, maxBytes) }

// Variant implements Shape. Pageable and pinned copies differ by a factor of
// two or more; pinned ones are the rule and leave the variant empty.
func (c Copy) Variant() Variant { return Variant{Pageable: !c.Pinned} }

// Work implements Shape.
func (c Copy) Work() Work { return onWire(c.Bytes) }

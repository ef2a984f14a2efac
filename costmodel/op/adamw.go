package op

import "github.com/evenkeel/evenkeel/internal/units"

// KindAdamW is the optimizer's update.
const KindAdamW Kind = "adamw"

// AdamW is one AdamW update of `params` parameters with float32 state.
type AdamW struct {
	Params int64 `json:"params"` // number of parameters
}

var adamwSpec = Spec{
	Kind: KindAdamW, Class: Bandwidth, Measures: Time,
	Doc:     "AdamW update of params float32 parameters: reads parameter, gradient and both moments, writes all but the gradient",
	Example: AdamW{1 << 20},
}

// Kind implements Shape.
func (AdamW) Kind() Kind { return KindAdamW }

// Validate implements Shape.
func (a AdamW) Validate() error { return within(KindAdamW, "params", a.Params, maxBytes) }

// Variant implements Shape.
func (AdamW) Variant() Variant { return Variant{DType: F32} }

// Work implements Shape. The 12 operations a parameter are those of Loshchilov
// and Hutter 2019, algorithm 2, with the bias corrections folded into constants.
func (a AdamW) Work() Work {
	return Work{FLOPs: units.FLOPs(12 * float64(a.Params)), Read: units.Bytes(16 * a.Params), Write: units.Bytes(12 * a.Params)}
}

// Features implements Featured: one dimension, so bytes alone.
func (a AdamW) Features(int) Features { return Features{Bytes: float64(a.Work().Bytes())} }

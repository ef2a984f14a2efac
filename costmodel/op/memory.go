package op

// Kinds of memory measurement.
const (
	KindMemCapacity Kind = "mem_capacity"
	KindMemReserve  Kind = "mem_reserve"
	KindMemLayer    Kind = "mem_layer"
)

// MemCapacity is the memory a device offers before the first tensor.
type MemCapacity struct{}

// MemReserve is what the context, kernels and workspaces hold after a warm step.
type MemReserve struct{}

// MemLayer is what one transformer layer's forward keeps for its backward, its
// input among it: what each further layer adds. Measured at two lengths it gives
// the slope in bytes a token.
type MemLayer struct{ Layer }

var memCapacitySpec = Spec{
	Kind: KindMemCapacity, Class: Memory, Measures: Size,
	Doc: "memory a device offers before the first tensor", Example: MemCapacity{},
}

var memReserveSpec = Spec{
	Kind: KindMemReserve, Class: Memory, Measures: Size,
	Doc: "memory held by context, kernels and workspaces after a warm step", Example: MemReserve{},
}

var memLayerSpec = Spec{
	Kind: KindMemLayer, Class: Memory, Measures: Size,
	Doc: "memory that one transformer layer keeps from its forward to its backward", Example: MemLayer{layerExample},
}

// Kind implements Shape.
func (MemCapacity) Kind() Kind { return KindMemCapacity }

// Kind implements Shape.
func (MemReserve) Kind() Kind { return KindMemReserve }

// Kind implements Shape.
func (MemLayer) Kind() Kind { return KindMemLayer }

// Validate implements Shape.
func (MemCapacity) Validate() error { return nil }

// Validate implements Shape.
func (MemReserve) Validate() error { return nil }

// Validate implements Shape.
func (m MemLayer) Validate() error { return m.validate(KindMemLayer) }

// Variant implements Shape.
func (MemCapacity) Variant() Variant { return Variant{} }

// Variant implements Shape.
func (MemReserve) Variant() Variant { return Variant{} }

// Work implements Shape: memory ops measure bytes and have no work.
func (MemCapacity) Work() Work { return Work{} }

// Work implements Shape.
func (MemReserve) Work() Work { return Work{} }

// Work implements Shape.
func (MemLayer) Work() Work { return Work{} }

// Package op is the vocabulary that measuring and predicting share: the kinds
// of operation, their shapes as named axes, and the exact work of each shape —
// floating-point operations under the mask, the fewest bytes through memory,
// and bytes on the wire.
//
// One file holds one op or one family; Table lists them all. Adding an op is a
// file and a line in Table: grids, the simulated backend, the documentation
// and the property tests range over the table.
package op

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/go-json-experiment/json"
)

// Kind names an op, as written in documents and on the command line.
type Kind string

// Class groups ops that are measured and modelled alike.
type Class string

// The classes of op.
const (
	Compute    Class = "compute"    // bound by arithmetic: attention, GEMM
	Bandwidth  Class = "bandwidth"  // bound by memory traffic
	Collective Class = "collective" // moves bytes between ranks
	Transfer   Class = "transfer"   // moves bytes between host and device
	Overlap    Class = "overlap"    // slow-down of two ops that run at once
	Memory     Class = "memory"     // bytes, not seconds
	Composed   Class = "composed"   // several ops in a row, without a law of their own: see Compound
)

// Quantity is what a point of an op measures.
type Quantity string

// The measured quantities.
const (
	Time  Quantity = "seconds"
	Size  Quantity = "bytes"
	Ratio Quantity = "ratio"
)

// Work is the exact work of one call of an op on one rank.
type Work struct {
	FLOPs units.FLOPs // counted under the mask, one multiply-add being two
	Read  units.Bytes // each input read once
	Write units.Bytes // each output written once
	Wire  units.Bytes // most bytes that any rank of the group sends or receives: the port that binds
}

// Bytes is the least traffic through the memory of the device.
func (w Work) Bytes() units.Bytes { return w.Read + w.Write }

// Variant holds the axes that select a law instead of entering it: times of
// different masks, head widths, precisions or passes are never pooled in one
// fit. Unused axes are zero. Variants are comparable.
type Variant struct {
	Mask    Mask  `json:"mask,omitzero"`
	HeadDim int   `json:"head_dim,omitzero"`
	DType   DType `json:"dtype,omitzero"`
	Pass    Pass  `json:"pass,omitzero"`
	// Kernel is the implementation of attention where several were measured.
	Kernel string `json:"kernel,omitzero"`
	// Window is the sliding window of attention.
	Window units.Tokens `json:"window,omitzero"`
	// Pageable marks copies from or to memory that is not page-locked.
	Pageable bool `json:"pageable,omitzero"`
	// Pairs is how many pairs of ranks exchange at once in send_recv_pairs.
	Pairs int `json:"pairs,omitzero"`
}

// String prints the axes in use: "full d64 f32 fa3", or "" when there are none.
func (v Variant) String() string {
	var parts []string
	if v.Mask != "" {
		parts = append(parts, string(v.Mask))
	}
	if v.Pass != "" {
		parts = append(parts, string(v.Pass))
	}
	if v.HeadDim != 0 {
		parts = append(parts, fmt.Sprintf("d%d", v.HeadDim))
	}
	if v.DType != "" {
		parts = append(parts, string(v.DType))
	}
	if v.Kernel != "" {
		parts = append(parts, v.Kernel)
	}
	if v.Window != 0 {
		parts = append(parts, fmt.Sprintf("window %d", v.Window))
	}
	if v.Pageable {
		parts = append(parts, "pageable")
	}
	if v.Pairs != 0 {
		parts = append(parts, fmt.Sprintf("%d pairs", v.Pairs))
	}
	return strings.Join(parts, " ")
}

// Shape is one op at one size. Implementations are plain comparable-by-value
// structs whose JSON keys are the axes.
type Shape interface {
	// Kind is the op this shape belongs to.
	Kind() Kind
	// Validate reports the first axis outside its limits.
	Validate() error
	// Variant selects the law.
	Variant() Variant
	// Work is the exact work of one call.
	Work() Work
}

// Features are the physical quantities a compute law may charge for, of one
// call on a device that runs `parallel` tasks at a time.
type Features struct {
	FLOPs float64 // FLOPs of the busiest parallel unit: its even share and the Tail; 0 for bandwidth ops, whose FLOPs follow their bytes
	Rows  float64 // rows on each unit: query rows times heads, elements of a GEMM's result, tokens of a row-wise op
	Bytes float64 // least memory traffic
	Tail  float64 // of these, what is beyond its even share: tasks are handed out whole, so the last wave is not full; of a norm the FLOPs of one row
}

// Featured is a shape of a compute or bandwidth op.
type Featured interface {
	Shape
	// Features of one call with the given number of parallel units (>= 1).
	Features(parallel int) Features
}

// Spec describes one op of the table.
type Spec struct {
	Kind     Kind
	Class    Class
	Measures Quantity
	Doc      string // one sentence: what one call does and what its sizes mean
	Example  Shape
}

// Table lists every op, in the order in which reports show them.
func Table() []Spec {
	return []Spec{
		attnFwdSpec, attnBwdSpec, attnVarlenFwdSpec, attnVarlenBwdSpec, lseMergeSpec,
		gemmSpec,
		normSpec, ropeSpec, swigluSpec, geluSpec, ceChunkSpec, adamwSpec,
		allReduceSpec, allGatherSpec, reduceScatterSpec, allToAllSpec, allToAllVSpec, sendRecvSpec, sendRecvPairsSpec,
		h2dSpec, d2hSpec,
		overlapSpec,
		memCapacitySpec, memReserveSpec, memLayerSpec,
		layerFwdSpec, layerBwdSpec,
	}
}

// Lookup finds an op by name. The error lists the names there are.
func Lookup(k Kind) (Spec, error) {
	var names []string
	for _, s := range Table() {
		if s.Kind == k {
			return s, nil
		}
		names = append(names, string(s.Kind))
	}
	return Spec{}, fmt.Errorf("unknown op %.60q%s; the ops are %s", k, spelling.Hint(string(k), names), strings.Join(names, ", "))
}

// AxisError is a shape with an axis that is missing, unknown or outside its limits.
type AxisError struct {
	Kind Kind
	Axis string
	Msg  string
}

// Error names the axis and what is wrong with it.
func (e *AxisError) Error() string { return fmt.Sprintf("shape.%s: %s", e.Axis, e.Msg) }

// Decode reads the shape of an op from a JSON object, strictly, and validates it.
//
// Errors are *AxisError where an axis is to blame: unknown (the axes of the op
// are listed), of the wrong type, duplicated, missing, zero, negative or beyond
// its limit.
func Decode(k Kind, data []byte) (Shape, error) {
	spec, err := Lookup(k)
	if err != nil {
		return nil, err
	}
	v := reflect.New(reflect.TypeOf(spec.Example))
	if err := json.Unmarshal(data, v.Interface(), json.RejectUnknownMembers(true)); err != nil {
		return nil, decodeError(spec, err)
	}
	s := v.Elem().Interface().(Shape)
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return s, nil
}

func decodeError(spec Spec, err error) error {
	axis, msg := "", err.Error()
	var sem *json.SemanticError
	if errors.As(err, &sem) {
		axis = strings.ReplaceAll(strings.TrimPrefix(string(sem.JSONPointer), "/"), "/", ".")
		got := "a " + sem.JSONKind.String()
		if len(sem.JSONValue) > 0 {
			got = fmt.Sprintf("%.40s", sem.JSONValue)
		}
		msg = got + ": want " + describe(sem.GoType)
	}
	if errors.Is(err, json.ErrUnknownName) {
		msg = fmt.Sprintf("%s has no such axis; it has %s", spec.Kind, strings.Join(Axes(spec.Example), ", "))
	}
	return &AxisError{Kind: spec.Kind, Axis: axis, Msg: msg}
}

func describe(t reflect.Type) string {
	if t == nil {
		return "another type"
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.String:
		return "a word"
	case reflect.Slice:
		return "a list"
	default:
		return "another type"
	}
}

// Encode writes a shape as one compact JSON object with its axes in their
// declared order: the canonical form that keys are hashed from.
func Encode(s Shape) ([]byte, error) {
	data, err := json.Marshal(s, json.Deterministic(true))
	return bytes.TrimSpace(data), err
}

// Axes lists the JSON keys of a shape in their declared order.
func Axes(s Shape) []string {
	var names []string
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		for f := range t.Fields() {
			if f.Anonymous {
				walk(f.Type)
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	walk(reflect.TypeOf(s))
	return names
}

// Limits keep every product of axes inside int64: 2^31 tokens, 4,096 heads of
// at most 4,096 elements, 8 bytes each; a batch only where it leaves room.
const (
	maxTokens  = 1 << 31
	maxHeads   = 1 << 12
	maxBatch   = 1 << 16
	maxHeadDim = 1 << 12
	maxWidth   = 1 << 24
	maxGroup   = 1 << 16
	maxBytes   = 1 << 50
)

// within checks one axis.
func within[T ~int | ~int64](k Kind, axis string, v T, most int64) error {
	switch {
	case v <= 0:
		return &AxisError{k, axis, fmt.Sprintf("%d: must be at least 1", int64(v))}
	case int64(v) > most:
		return &AxisError{k, axis, fmt.Sprintf("%d: must be at most %d", int64(v), most)}
	}
	return nil
}

// Volume is the one size that the time of a collective or transfer follows,
// the bytes on the wire, and that of a bandwidth op mostly does, its memory
// traffic.
func Volume(s Shape) units.Bytes { return s.Work().volume() }

func (w Work) volume() units.Bytes {
	if w.Wire > 0 {
		return w.Wire
	}
	return w.Bytes()
}

package costmodel

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// fieldWire is how a document holds a Field. Values at neighbouring nodes are alike, so
// that their differences are told; along which axes differences are small depends on the
// law. A field of thousands of nodes takes less than a byte a node so.
type fieldWire struct {
	Axes  []FieldAxis `json:"axes"`
	Tile  int         `json:"tile_tokens,omitzero"`
	Decay float64     `json:"decay_octaves"`
	Step  float64     `json:"step"`
	// Along are the axes along which Values and those of Unmeasured are differences: of every
	// node to the one before it on the first of these axes, of these differences to those of
	// the one before on the second, and so on; before the first node is 0. Without any they are
	// differences from node to node in the order of the list, as all profiles had them before.
	Along      []string      `json:"differences_along,omitempty"`
	Values     wireCounts    `json:"values"`
	Unmeasured wireElsewhere `json:"unmeasured,omitempty"`
	Switches   []Switch      `json:"switches,omitempty"`
}

// unmeasuredWire is how a document holds an Unmeasured.
type unmeasuredWire struct {
	Axis   string     `json:"axis"`
	Known  []float64  `json:"known"`
	Values wireCounts `json:"values"`
}

// wireElsewhere are the unmeasuredWires of a field.
type wireElsewhere []unmeasuredWire

// UnmarshalJSONFrom also reads the one axis alone that profiles had before there could be several.
func (u *wireElsewhere) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == '{' {
		*u = make(wireElsewhere, 1)
		return json.UnmarshalDecode(d, &(*u)[0])
	}
	return json.UnmarshalDecode(d, (*[]unmeasuredWire)(u))
}

// MarshalJSONTo writes the differences that take the least text.
func (f Field) MarshalJSONTo(e *jsontext.Encoder) error {
	if err := f.hasNodes(len(f.Values)); err != nil {
		return err
	}
	w := fieldWire{Axes: f.Axes, Tile: f.Tile, Decay: f.Decay, Step: f.Step, Switches: f.Switches}
	best := math.MaxInt
	for mask := range 1 << len(f.Axes) {
		var along []int
		for i := range f.Axes {
			if mask>>i&1 > 0 {
				along = append(along, i)
			}
		}
		values := f.differences(f.Values, along)
		text, err := values.MarshalText()
		if err != nil {
			return err
		}
		if len(text) < best {
			best, w.Values, w.Along = len(text), values, nil
			for _, i := range along {
				w.Along = append(w.Along, f.Axes[i].Name)
			}
		}
	}
	along, err := f.placesOf(w.Along)
	if err != nil {
		return err
	}
	for _, u := range f.Unmeasured {
		w.Unmeasured = append(w.Unmeasured, unmeasuredWire{Axis: u.Axis, Known: u.Known, Values: f.differences(u.Values, along)})
	}
	return json.MarshalEncode(e, &w)
}

// UnmarshalJSONFrom sums the differences up. What they sum up to is checked by validate,
// but for counts that no field can hold.
func (f *Field) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var w fieldWire
	if err := json.UnmarshalDecode(d, &w); err != nil {
		return err
	}
	*f = Field{Axes: w.Axes, Tile: w.Tile, Decay: w.Decay, Step: w.Step, Switches: w.Switches}
	along, err := f.placesOf(w.Along)
	if err != nil {
		return err
	}
	if f.Values, err = f.summed(w.Values, along); err != nil {
		return err
	}
	for i, u := range w.Unmeasured {
		values, err := f.summed(u.Values, along)
		if err != nil {
			return fmt.Errorf("unmeasured[%d].%w", i, err)
		}
		f.Unmeasured = append(f.Unmeasured, Unmeasured{Axis: u.Axis, Known: u.Known, Values: values})
	}
	return nil
}

// hasNodes says whether the lattice has as many nodes as there are values.
func (f *Field) hasNodes(values int) error {
	size := 1
	for _, a := range f.Axes {
		size = min(size*len(a.Nodes), maxNodes+1) // which no document has
	}
	switch {
	case size > maxNodes:
		return fmt.Errorf("values: %d: the axes have more than %d nodes", values, maxNodes)
	case size != values:
		return fmt.Errorf("values: %d: the axes have %d nodes", values, size)
	}
	return nil
}

// placesOf are the places of axes by their names.
func (f *Field) placesOf(names []string) ([]int, error) {
	var places []int
	for i, name := range names {
		at := slices.IndexFunc(f.Axes, func(a FieldAxis) bool { return a.Name == name })
		if at < 0 || slices.Contains(places, at) {
			return nil, fmt.Errorf("differences_along[%d]: %q: want axes of the field, each once", i, name)
		}
		places = append(places, at)
	}
	return places, nil
}

// steps calls do for every axis of along with how far apart in the list neighbours on it
// are and how many nodes it has; without any axes for the list itself.
func (f *Field) steps(size int, along []int, do func(stride, nodes int)) {
	if len(along) == 0 {
		do(1, size)
	}
	for _, axis := range along {
		stride := 1
		for _, a := range f.Axes[axis+1:] {
			stride *= len(a.Nodes)
		}
		do(stride, len(f.Axes[axis].Nodes))
	}
}

// differences are those of values along axes.
func (f *Field) differences(values NodeValues, along []int) wireCounts {
	counts := make(wireCounts, len(values))
	for i, v := range values {
		counts[i] = int64(v)
	}
	f.steps(len(values), along, func(stride, nodes int) {
		for i := len(counts) - 1; i >= stride; i-- {
			if i/stride%nodes > 0 {
				counts[i] -= counts[i-stride]
			}
		}
	})
	return counts
}

// summed undoes differences.
func (f *Field) summed(counts wireCounts, along []int) (NodeValues, error) {
	if len(along) > 0 {
		if err := f.hasNodes(len(counts)); err != nil {
			return nil, err
		}
	}
	f.steps(len(counts), along, func(stride, nodes int) {
		for i := stride; i < len(counts); i++ {
			if i/stride%nodes > 0 {
				counts[i] += counts[i-stride]
			}
		}
	})
	values := make(NodeValues, len(counts))
	for i, c := range counts {
		if values[i] = int16(c); int64(values[i]) != c {
			return nil, fmt.Errorf("values: node %d is out of range: %d counts: want at most %d", i, c, math.MaxInt16)
		}
	}
	return values, nil
}

// maxNodes bounds what a document can make a reader allocate.
const maxNodes = 1 << 20

// maxDifference is the most that counts of 16 bits differ along maxFieldAxes axes. No sum
// of maxNodes such differences leaves 64 bits.
const maxDifference = 1 << (15 + maxFieldAxes)

// wireCounts are counts whose text form is the base64 of their deflated varints.
type wireCounts []int64

// MarshalText implements encoding.TextMarshaler. Noise has no repeated stretches for deflate
// to find, and is shorter where it looks for none.
func (c wireCounts) MarshalText() ([]byte, error) {
	varints := make([]byte, 0, 2*len(c))
	for _, x := range c {
		varints = binary.AppendVarint(varints, x)
	}
	var least []byte
	for _, level := range []int{flate.BestCompression, flate.HuffmanOnly} {
		var raw bytes.Buffer
		w, err := flate.NewWriter(&raw, level)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(varints); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		if least == nil || raw.Len() < len(least) {
			least = raw.Bytes()
		}
	}
	return base64.StdEncoding.AppendEncode(nil, least), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *wireCounts) UnmarshalText(text []byte) error {
	raw, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil {
		return fmt.Errorf("node values are not base64: %w", err)
	}
	const most = 3 * maxNodes // bytes: a difference takes at most three
	varints, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(raw)), most+1))
	if err != nil {
		return fmt.Errorf("node values are not deflated: %w", err)
	}
	if len(varints) > most {
		return fmt.Errorf("node values: more than %d bytes inflated, want at most %d nodes", most, maxNodes)
	}
	*c = nil
	for len(varints) > 0 {
		x, n := binary.Varint(varints)
		if n <= 0 || x < -maxDifference || x > maxDifference || len(*c) == maxNodes {
			return fmt.Errorf("node values: node %d is torn or out of range", len(*c))
		}
		*c, varints = append(*c, x), varints[n:]
	}
	return nil
}

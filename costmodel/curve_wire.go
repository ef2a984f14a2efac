package costmodel

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/evenkeel/evenkeel/internal/units"
)

// curveWire is how a document holds a Curve: what it says of its knots in lists of equal
// length, since a pair of keys at each of some thousand knots is a sixth of a profile.
type curveWire struct {
	Form    CurveForm       `json:"form"`
	Pieces  []Piece         `json:"pieces,omitempty"`
	Bytes   []units.Bytes   `json:"bytes,omitempty"`
	Seconds []units.Seconds `json:"time_s,omitempty"`
	Halves  []float64       `json:"half_widths,omitempty"`
	// Knots are the knots one by one, as profiles had them before. They are read, not written.
	Knots []Knot `json:"knots,omitempty"`
}

// MarshalJSONTo writes the knots as lists.
func (c Curve) MarshalJSONTo(e *jsontext.Encoder) error {
	w := curveWire{Form: c.Form, Pieces: c.Pieces, Halves: c.HalfWidths}
	for _, k := range c.Knots {
		w.Bytes, w.Seconds = append(w.Bytes, k.Bytes), append(w.Seconds, k.Seconds)
	}
	return json.MarshalEncode(e, &w)
}

// UnmarshalJSONFrom also reads the knots one by one that profiles had before they were lists.
func (c *Curve) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var w curveWire
	if err := json.UnmarshalDecode(d, &w); err != nil {
		return err
	}
	switch {
	case len(w.Knots) > 0 && len(w.Bytes)+len(w.Seconds) > 0:
		return fmt.Errorf("knots: beside bytes and time_s, which say the same: want either")
	case len(w.Seconds) != len(w.Bytes):
		return fmt.Errorf("time_s: %d for %d bytes: want one each", len(w.Seconds), len(w.Bytes))
	}
	for i, b := range w.Bytes {
		w.Knots = append(w.Knots, Knot{Bytes: b, Seconds: w.Seconds[i]})
	}
	*c = Curve{Form: w.Form, Pieces: w.Pieces, Knots: w.Knots, HalfWidths: w.Halves}
	return nil
}

// ChunkFactors are factors by rising bytes. A document holds them as lists of equal length.
type ChunkFactors []ChunkFactor

type factorsWire struct {
	Bytes   []units.Bytes `json:"chunk_bytes"`
	Factors []float64     `json:"factors"`
	Halves  []float64     `json:"half_widths"`
}

// MarshalJSONTo writes lists.
func (f ChunkFactors) MarshalJSONTo(e *jsontext.Encoder) error {
	var w factorsWire
	for _, c := range f {
		w.Bytes, w.Factors, w.Halves = append(w.Bytes, c.Bytes), append(w.Factors, c.Factor), append(w.Halves, c.Half)
	}
	return json.MarshalEncode(e, &w)
}

// UnmarshalJSONFrom also reads the factors one by one that profiles had before they were lists.
func (f *ChunkFactors) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	*f = nil
	if d.PeekKind() == '[' {
		return json.UnmarshalDecode(d, (*[]ChunkFactor)(f))
	}
	var w factorsWire
	if err := json.UnmarshalDecode(d, &w); err != nil {
		return err
	}
	for _, list := range []struct {
		name string
		n    int
	}{{"factors", len(w.Factors)}, {"half_widths", len(w.Halves)}} {
		if list.n != len(w.Bytes) {
			return fmt.Errorf("%s: %d for %d chunk_bytes: want one each", list.name, list.n, len(w.Bytes))
		}
	}
	for i, b := range w.Bytes {
		*f = append(*f, ChunkFactor{Bytes: b, Factor: w.Factors[i], Half: w.Halves[i]})
	}
	return nil
}

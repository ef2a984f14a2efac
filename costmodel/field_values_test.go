package costmodel

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// deflated is a text of NodeValues that holds any bytes.
func deflated(t testing.TB, raw []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.AppendEncode(nil, packed.Bytes())
}

func TestNodeValuesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := NodeValues(rapid.SliceOf(rapid.Int16()).Draw(t, "values"))
		text, err := v.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		back := NodeValues{1, 2, 3} // of which nothing may stay
		if err := back.UnmarshalText(text); err != nil || !slices.Equal(v, back) {
			t.Fatalf("%v: %v, %v", v, back, err)
		}
	})
}

// Values that vary smoothly take less than a byte each.
func TestNodeValuesAreSmall(t *testing.T) {
	v := make(NodeValues, 10000)
	for i := range v {
		v[i] = int16(40*math.Sin(float64(i)/50) + 30*math.Cos(float64(i/100)))
	}
	text, err := v.MarshalText()
	if err != nil || len(text) > len(v) {
		t.Errorf("%d bytes for %d values, %v", len(text), len(v), err)
	}
}

func TestNodeValuesRefuse(t *testing.T) {
	whole, err := NodeValues{1, -5, 300, 32767, -32768}.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	torn, err := base64.StdEncoding.DecodeString(string(whole))
	if err != nil {
		t.Fatal(err)
	}
	wide := binary.AppendVarint(binary.AppendVarint(nil, 30000), -30000) // of three bytes each
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"no base64":              {[]byte("{}"), "not base64"},
		"cut base64":             {whole[:len(whole)-1], "not base64"},
		"nothing":                {nil, "not deflated"},
		"torn deflate":           {base64.StdEncoding.AppendEncode(nil, torn[:len(torn)/2]), "not deflated"},
		"no deflate":             {[]byte("/////w=="), "not deflated"},
		"torn count":             {deflated(t, []byte{2, 4, 0x80}), "node 2 is torn"},
		"out of range":           {deflated(t, binary.AppendVarint(nil, 32768)), "node 0 is torn or out of range"},
		"out of range below":     {deflated(t, binary.AppendVarint([]byte{1}, -32768)), "node 1 is torn or out of range"},
		"a sum beyond 64 bits":   {deflated(t, binary.AppendVarint([]byte{1}, math.MinInt64)), "node 1 is torn or out of range"},
		"a varint that is wider": {deflated(t, bytes.Repeat([]byte{0xff}, 11)), "node 0 is torn"},
		"too many nodes":         {deflated(t, make([]byte, maxNodes+1)), "node 1048576 is torn or out of range"},
		"a bomb":                 {deflated(t, make([]byte, 64*maxNodes)), "more than 3145728 bytes inflated"},
		"a bomb of wide counts":  {deflated(t, bytes.Repeat(wide, maxNodes)), "more than 3145728 bytes inflated"},
	} {
		var v NodeValues
		if err := v.UnmarshalText(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q is missing in: %v", name, c.want, err)
		}
	}
}

// Whatever text is read comes back, and a field of it that passes its checks
// says finite things everywhere.
func FuzzNodeValues(f *testing.F) {
	for _, v := range []NodeValues{{}, {0}, {1, -1, 1, -1}, {5, 6, 7, 8, 9, 10, 11, 12}, {32767, -32768, 32767, -32768}} {
		text, err := v.MarshalText()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, 0.001, 3.0, 2, 100)
	}
	f.Add([]byte("AA=="), 0.5, 99.0, -1, 1)
	f.Fuzz(func(t *testing.T, text []byte, step, decay float64, tile, qLen int) {
		var v, back NodeValues
		if v.UnmarshalText(text) != nil {
			return
		}
		again, err := v.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		if err := back.UnmarshalText(again); err != nil || !slices.Equal(v, back) {
			t.Fatalf("%d values come back as %d, %v", len(v), len(back), err)
		}
		field := &Field{Axes: []FieldAxis{{"q_len", []float64{16, 256}}, {"batch", nil}}, Tile: tile, Step: step, Decay: decay, Values: v}
		for i := range len(v) / 2 {
			field.Axes[1].Nodes = append(field.Axes[1].Nodes, float64(i+1))
		}
		if field.validate(block(1, 1, 1, 1)) != nil || qLen < 1 || qLen > 1<<30 {
			return
		}
		for _, batch := range []int{1, 2, 1000} {
			if x := math.Exp(field.Log(block(qLen, batch, 1, 1))); !(x > 0) || math.IsInf(x, 0) {
				t.Errorf("%+v at %d tokens, batch %d: a factor of %v", field, qLen, batch, x)
			}
		}
	})
}

// FuzzField: whatever field is accepted, its laws predict.
func FuzzField(f *testing.F) {
	f.Add("m", 1.0, 2.0, "n", 3.0, 9.0, 0.001, 3.0, uint8(0), int64(5), 7)
	f.Add("tiles", 1.0, 2.0, "weights", 3.0, 9.0, 0.01, 0.5, uint8(3), int64(1), 1)
	f.Add("k", 1.0, 1.0, "", 0.0, math.NaN(), 0.9, 99.0, uint8(255), int64(1), 1)
	core := h100Core()
	f.Fuzz(func(t *testing.T, a string, a0, a1 float64, b string, b0, b1, step, decay float64, v uint8, m int64, n int) {
		count := int16(v) * 128
		field := &Field{Axes: []FieldAxis{{a, []float64{a0, a1}}, {b, []float64{b0, b1}}}, Step: step, Decay: decay, Values: NodeValues{count, -count, 1, count}}
		g := op.GEMM{Pass: op.Forward, M: 1, N: 1, K: 64, DType: core.DType}
		if field.validate(g) != nil || m < 1 || m > 1<<20 || n < 1 || n > 1<<20 {
			return
		}
		g.M, g.N = units.Tokens(m), n
		widths := *field
		widths.Unmeasured = UnmeasuredAxes{{Axis: a, Known: []float64{a0}, Values: field.Values}}
		if widths.validate(g) != nil {
			t.Fatal("a field of widths is refused where the same correction is not")
		}
		law := Law{Op: op.KindGEMM, GEMM: core, Correction: field, Width: &widths, Range: wide(op.KindGEMM), Spread: tenPercent}
		if e := law.Predict(g); !(e.Mid > 0 && e.Lo > 0 && e.Lo <= e.Mid && e.Mid <= e.Hi) || math.IsInf(float64(e.Hi), 0) {
			t.Errorf("%+v at %+v: %+v", field, g, e)
		}
	})
}

package costmodel

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// deflated is a text of wireCounts that holds any bytes.
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

// written is what a document holds of a field.
func written(t testing.TB, f *Field) []byte {
	t.Helper()
	text, err := json.Marshal(f, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A field comes back from its document as it was, and its counts from differences along
// whichever axes.
func TestFieldsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawField(t)
		for i := range f.Values {
			f.Values[i] = rapid.Int16().Draw(t, "count")
		}
		along := rapid.Permutation([]int{0, 1, 2, 3}[:len(f.Axes)]).Draw(t, "axes")
		along = along[:rapid.IntRange(0, len(along)).Draw(t, "along")]
		if back, err := f.summed(f.differences(f.Values, along), along); err != nil || !slices.Equal(back, f.Values) {
			t.Fatalf("along %v: %v, %v", along, back, err)
		}
		f.Unmeasured = []Unmeasured{{Axis: "q_heads", Known: []float64{1, 8}, Values: slices.Clone(f.Values)}}
		f.Unmeasured[0].Values[0] /= 2
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		back := Field{Values: NodeValues{1, 2, 3}} // of which nothing may stay
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(*f, back, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// A smooth field takes less than a byte a node, and less than differences in the order of
// the list take.
func TestFieldsAreSmall(t *testing.T) {
	f := &Field{Decay: 1, Step: 0.001, Axes: []FieldAxis{{Name: "q_len"}, {Name: "batch"}, {Name: "q_heads"}}}
	for i := range 20 {
		for a := range f.Axes {
			f.Axes[a].Nodes = append(f.Axes[a].Nodes, float64(i+1))
		}
	}
	for i := range 8000 {
		x, y, z := float64(i/400), float64(i/20%20), float64(i%20)
		f.Values = append(f.Values, int16(400*math.Sin((x+y)/15)+300*math.Cos((y+z)/17)+200*math.Sin(x*z/300)))
	}
	text := written(t, f)
	inOrder, err := f.differences(f.Values, nil).MarshalText()
	if err != nil || len(text) > len(f.Values) || len(text) > len(inOrder)*9/10 {
		t.Errorf("%d bytes for %d values, %d in the order of the list, %v", len(text), len(f.Values), len(inOrder), err)
	}
}

// The most that counts of four axes can differ comes back.
func TestLargestDifferencesComeBack(t *testing.T) {
	f := &Field{Decay: 1, Step: 0.001}
	for _, name := range attentionAxes() {
		f.Axes = append(f.Axes, FieldAxis{Name: name, Nodes: []float64{1, 2}})
	}
	for i := range 16 {
		f.Values = append(f.Values, int16(-32768+65535*(bits.OnesCount(uint(i))%2)))
	}
	counts := f.differences(f.Values, []int{0, 1, 2, 3})
	text, err := counts.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	var back wireCounts
	if err := back.UnmarshalText(text); err != nil || !slices.Equal(back, counts) || slices.Min(counts) > -(1<<18) {
		t.Errorf("%v: %v, %v", counts, back, err)
	}
	if again, err := f.summed(back, []int{0, 1, 2, 3}); err != nil || !slices.Equal(again, f.Values) {
		t.Errorf("%v, %v", again, err)
	}
}

// Of noise Huffman codes alone are shorter than deflate's best.
func TestNoiseIsCodedShort(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	var counts wireCounts
	for range 20000 {
		counts = append(counts, int64(r.NormFloat64()*3))
	}
	var raw []byte
	for _, c := range counts {
		raw = binary.AppendVarint(raw, c)
	}
	var best bytes.Buffer
	w, err := flate.NewWriter(&best, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(raw); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	text, err := counts.MarshalText()
	if err != nil || len(text) >= base64.StdEncoding.EncodedLen(best.Len())*99/100 {
		t.Errorf("%d characters, deflate's best would take %d: %v", len(text), base64.StdEncoding.EncodedLen(best.Len()), err)
	}
}

// Profiles had differences in the order of the list before, and one axis of unmeasured counts
// that was no list.
func TestFieldsOfOlderProfilesAreRead(t *testing.T) {
	inOrder := string(deflated(t, []byte{20, 20, 19, 20})) // 10, 20, 10, 20 as varints of 10, 10, -10, 10
	text := `{"axes": [{"axis": "q_len", "nodes": [1, 2]}, {"axis": "batch", "nodes": [1, 2]}], "decay_octaves": 1, "step": 0.1, "values": "` + inOrder +
		`", "unmeasured": {"axis": "q_heads", "known": [1], "values": "` + inOrder + `"}}`
	var f Field
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		t.Fatal(err)
	}
	want := NodeValues{10, 20, 10, 20}
	if !slices.Equal(f.Values, want) || len(f.Unmeasured) != 1 || !slices.Equal(f.Unmeasured[0].Values, want) {
		t.Errorf("%+v, want %v twice", f, want)
	}
}

func TestFieldsRefuse(t *testing.T) {
	whole, err := wireCounts{1, -5, 300, maxDifference, -maxDifference}.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	torn, err := base64.StdEncoding.DecodeString(string(whole))
	if err != nil {
		t.Fatal(err)
	}
	wide := binary.AppendVarint(binary.AppendVarint(nil, 30000), -30000) // of three bytes each
	for name, c := range map[string]struct {
		text  []byte
		along string
		want  string
	}{
		"no base64":              {[]byte("{}"), ``, "not base64"},
		"cut base64":             {whole[:len(whole)-1], ``, "not base64"},
		"nothing":                {nil, ``, "not deflated"},
		"torn deflate":           {base64.StdEncoding.AppendEncode(nil, torn[:len(torn)/2]), ``, "not deflated"},
		"no deflate":             {[]byte("/////w=="), ``, "not deflated"},
		"torn count":             {deflated(t, []byte{2, 4, 0x80}), ``, "node 2 is torn"},
		"out of range":           {deflated(t, binary.AppendVarint(nil, 32768)), ``, "node 0 is out of range"},
		"out of range below":     {deflated(t, binary.AppendVarint([]byte{1}, -32768)), ``, "node 1 is out of range"},
		"a sum out of range":     {deflated(t, binary.AppendVarint(binary.AppendVarint([]byte{0, 0}, 32767), 2)), `"batch"`, "node 3 is out of range"},
		"a difference too large": {deflated(t, binary.AppendVarint([]byte{1}, maxDifference+1)), ``, "node 1 is torn or out of range"},
		"a sum beyond 64 bits":   {deflated(t, binary.AppendVarint([]byte{1}, math.MinInt64)), ``, "node 1 is torn or out of range"},
		"a varint that is wider": {deflated(t, bytes.Repeat([]byte{0xff}, 11)), ``, "node 0 is torn"},
		"too many nodes":         {deflated(t, make([]byte, maxNodes+1)), ``, "node 1048576 is torn or out of range"},
		"a bomb":                 {deflated(t, make([]byte, 64*maxNodes)), ``, "more than 3145728 bytes inflated"},
		"a bomb of wide counts":  {deflated(t, bytes.Repeat(wide, maxNodes)), ``, "more than 3145728 bytes inflated"},
		"another number":         {deflated(t, make([]byte, 5)), `"batch"`, "values: 5: the axes have 4 nodes"},
		"no such axis":           {deflated(t, make([]byte, 4)), `"batch", "m"`, `differences_along[1]: "m"`},
		"an axis twice":          {deflated(t, make([]byte, 4)), `"batch", "batch"`, `differences_along[1]: "batch"`},
	} {
		text := `{"axes": [{"axis": "q_len", "nodes": [1, 2]}, {"axis": "batch", "nodes": [1, 2]}], "decay_octaves": 1, "step": 0.1, "differences_along": [` + c.along + `], "values": "` + string(c.text) + `"}`
		var f Field
		if err := json.Unmarshal([]byte(text), &f); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q is missing in: %v", name, c.want, err)
		}
	}
	var f Field
	if err := json.Unmarshal([]byte(`{"unmeasured": {"known": "many"}}`), &f); err == nil {
		t.Error("a word is read as a list of counts")
	}
	bad := &Field{Axes: []FieldAxis{{"q_len", nil}}, Values: NodeValues{1}}
	if _, err := json.Marshal(bad); err == nil || !strings.Contains(err.Error(), "values: 1: the axes have 0 nodes") {
		t.Errorf("a field that is none is written: %v", err)
	}
}

// Whatever text is read comes back, and a field of it that passes its checks
// says finite things everywhere.
func FuzzFieldDocument(f *testing.F) {
	for _, v := range []NodeValues{{0, 0}, {1, -1, 1, -1}, {5, 6, 7, 8, 9, 10, 11, 12}, {32767, -32768, 32767, -32768}} {
		field := &Field{Axes: []FieldAxis{{"q_len", []float64{16, 256}}, {"batch", nil}}, Tile: 2, Step: 0.001, Decay: 3, Values: v}
		for i := range len(v) / 2 {
			field.Axes[1].Nodes = append(field.Axes[1].Nodes, float64(i+1))
		}
		f.Add(written(f, field), 100)
	}
	f.Add([]byte(`{"axes": [{"axis": "q_len", "nodes": []}], "differences_along": ["q_len"], "values": "AwA="}`), 1)
	f.Fuzz(func(t *testing.T, text []byte, qLen int) {
		var field, back Field
		if json.Unmarshal(text, &field) != nil || field.validate(block(1, 1, 1, 1)) != nil {
			return
		}
		if err := json.Unmarshal(written(t, &field), &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(field, back, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		if qLen < 1 || qLen > 1<<30 {
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
		widths.Unmeasured = []Unmeasured{{Axis: a, Known: []float64{a0}, Values: field.Values}}
		if widths.validate(g) != nil {
			t.Fatal("a field of widths is refused where the same correction is not")
		}
		law := Law{Op: op.KindGEMM, GEMM: core, Correction: field, Width: &widths, Range: wide(op.KindGEMM), Spread: tenPercent}
		if e := law.Predict(g); !(e.Mid > 0 && e.Lo > 0 && e.Lo <= e.Mid && e.Mid <= e.Hi) || math.IsInf(float64(e.Hi), 0) {
			t.Errorf("%+v at %+v: %+v", field, g, e)
		}
	})
}

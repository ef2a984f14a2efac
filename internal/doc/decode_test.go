package doc

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// seconds is a quantity with a type of its own, as the documents have.
type seconds float64

type shape struct {
	QLen  int64          `json:"q_len"`
	KVLen int64          `json:"kv_len"`
	Small int8           `json:"small"`
	Count uint16         `json:"count"`
	Pair  [2]int         `json:"pair"`
	Tags  map[string]int `json:"tags"`
	ByID  map[int]int    `json:"by_id"`
}

// record exercises every kind of value a document holds.
type record struct {
	base
	Op      string         `json:"op"`
	Shape   shape          `json:"shape"`
	TimesS  []seconds      `json:"times_s"`
	Shapes  []shape        `json:"shapes"`
	Good    bool           `json:"good"`
	Next    *shape         `json:"next,omitzero"`
	Kind    kind           `json:"kind,omitzero"`
	Range   span           `json:"range,omitzero"`
	Window  window         `json:"window,omitzero"`
	Raw     jsontext.Value `json:"raw,omitzero"`
	Hidden  int            `json:"-"`
	Renamed int
}

type base struct {
	Device string `json:"device"`
}

// kind decodes from text with an error of its own.
type kind int

func (k *kind) UnmarshalText(b []byte) error {
	if string(b) != "full" {
		return fmt.Errorf("unknown kind %q, want full", b)
	}
	*k = 1
	return nil
}

func (k kind) MarshalText() ([]byte, error) { return []byte("full"), nil }

// span decodes through the library from the shared decoder.
type span struct{ lo, hi float64 }

func (s *span) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var v struct {
		Lo float64 `json:"lo"`
		Hi float64 `json:"hi"`
	}
	if err := json.UnmarshalDecode(d, &v); err != nil {
		return fmt.Errorf("a span: %w", err)
	}
	if v.Lo > v.Hi {
		return fmt.Errorf("lo %v is above hi %v", v.Lo, v.Hi)
	}
	s.lo, s.hi = v.Lo, v.Hi
	return nil
}

func (s span) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"lo":%v,"hi":%v}`, s.lo, s.hi), nil
}

// window decodes through the library from its own copy of the value.
type window struct{ size int }

func (w *window) UnmarshalJSON(b []byte) error {
	var v struct {
		Size int `json:"size"`
	}
	if err := json.Unmarshal(b, &v, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("a window: %w", err)
	}
	w.size = v.Size
	return nil
}

func (w window) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `{"size":%d}`, w.size), nil }

// decodeErrors are the messages for one line of a journal, without the hint that all
// share.
var decodeErrors = []struct{ name, in, want string }{
	{"empty", ``, `x.rec.jsonl:17: empty`},
	{"blank", "  \n", `x.rec.jsonl:17: empty`},
	{"string for int", `{"shape":{"q_len":"abc"}}`, `x.rec.jsonl:17: shape.q_len: "abc": want a whole number`},
	{"int for string", `{"op":1}`, `x.rec.jsonl:17: op: 1: want a string`},
	{"fraction for int", `{"shapes":[{},{"q_len": 1.5}]}`, `x.rec.jsonl:17: shapes[1].q_len: 1.5: want a whole number`},
	{"exponent for int", `{"shapes":[{},{"q_len": 1e3}]}`, `x.rec.jsonl:17: shapes[1].q_len: 1e3: want a whole number`},
	{"int64 range", `{"shapes":[{},{"q_len": 99999999999999999999}]}`, `x.rec.jsonl:17: shapes[1].q_len: 99999999999999999999: out of range, want a whole number from -9223372036854775808 to 9223372036854775807`},
	{"int8 range", `{"shape":{"small":300}}`, `x.rec.jsonl:17: shape.small: 300: out of range, want a whole number from -128 to 127`},
	{"negative unsigned", `{"shape":{"count":-1}}`, `x.rec.jsonl:17: shape.count: -1: want a whole number, 0 or more`},
	{"float range", `{"times_s":[1,1e999]}`, `x.rec.jsonl:17: times_s[1]: 1e999: out of range, want a number up to 1.7976931348623157e+308`},
	{"string for float", `{"times_s":["1"]}`, `x.rec.jsonl:17: times_s[0]: "1": want a number`},
	{"bool", `{"good":"true"}`, `x.rec.jsonl:17: good: "true": want true or false`},
	{"list for number", `{"shape":{"q_len":[1,2]}}`, `x.rec.jsonl:17: shape.q_len: [...]: want a whole number`},
	{"object for number", `{"times_s":[{"a":1}]}`, `x.rec.jsonl:17: times_s[0]: {...}: want a number`},
	{"list for object", `{"shape":[1]}`, `x.rec.jsonl:17: shape: [...]: want an object`},
	{"object for list", `{"shapes":{}}`, `x.rec.jsonl:17: shapes: {...}: want a list`},
	{"list at the top", `[1]`, `x.rec.jsonl:17:1: [...]: want an object`},
	{"string at the top", `"x"`, `x.rec.jsonl:17:1: "x": want an object`},
	{"null at the top", `null`, `x.rec.jsonl:17:1: null: want an object`},
	{"too few", `{"shape":{"pair":[1]}}`, `x.rec.jsonl:17: shape.pair: [...]: want a list of 2`},
	{"too many", `{"shape":{"pair":[1,2,3]}}`, `x.rec.jsonl:17: shape.pair: [...]: want a list of 2`},
	{"map key", `{"shape":{"by_id":{"x":1}}}`, `x.rec.jsonl:17: shape.by_id.x: "x": want a whole number`},
	{"map value", `{"shape":{"tags":{"3":"x"}}}`, `x.rec.jsonl:17: shape.tags.3: "x": want a whole number`},
	{"odd map key", `{"shape":{"tags":{"a.b c":"x"}}}`, `x.rec.jsonl:17: shape.tags["a.b c"]: "x": want a whole number`},
	{"null number", `{"shape":{"q_len":null}}`, `x.rec.jsonl:17: shape.q_len: null: want a whole number`},
	{"null in list", `{"times_s":[1,null]}`, `x.rec.jsonl:17: times_s[1]: null: want a number`},
	{"null string", `{"op":null}`, `x.rec.jsonl:17: op: null: want a string`},
	{"null struct", `{"shape":null}`, `x.rec.jsonl:17: shape: null: want an object`},
	{"unknown, near", `{"shape":{"q_lenn":1}}`, `x.rec.jsonl:17: shape: unknown key "q_lenn" (did you mean "q_len"?)`},
	{"unknown, other case", `{"shape":{"Q_LEN":1}}`, `x.rec.jsonl:17: shape: unknown key "Q_LEN" (did you mean "q_len"?)`},
	{"unknown, at the top", `{"opp":"x"}`, `x.rec.jsonl:17:2: unknown key "opp" (did you mean "op"?)`},
	{"unknown, embedded", `{"devise":"x"}`, `x.rec.jsonl:17:2: unknown key "devise" (did you mean "device"?)`},
	{"unknown, far", `{"shape":{"temperature":1}}`, `x.rec.jsonl:17: shape: unknown key "temperature" (known keys: q_len, kv_len, small, count, pair, tags, by_id)`},
	{"unknown, hidden field", `{"Hidden":1}`, `x.rec.jsonl:17:2: unknown key "Hidden" (known keys: device, op, shape, times_s, shapes, good, next, kind, range, window, raw, Renamed)`},
	{"unknown, go name", `{"Op":"x"}`, `x.rec.jsonl:17:2: unknown key "Op" (did you mean "op"?)`},
	{"unknown in list", `{"shapes":[{},{},{"kvlen":1}]}`, `x.rec.jsonl:17: shapes[2]: unknown key "kvlen" (did you mean "kv_len"?)`},
	{"unknown, pointer", `{"next":{"qlen":1}}`, `x.rec.jsonl:17: next: unknown key "qlen" (did you mean "q_len"?)`},
	{"unknown, own decoder", `{"range":{"low":1}}`, `x.rec.jsonl:17: range: unknown key "low" (did you mean "lo"?)`},
	{"unknown, own copy", `{"window":{"sise":1}}`, `x.rec.jsonl:17: window: unknown key "sise" (did you mean "size"?)`},
	{"folded case renamed", `{"renamed":1}`, `x.rec.jsonl:17:2: unknown key "renamed" (did you mean "Renamed"?)`},
	{"own text decoder", `{"kind":"diag"}`, `x.rec.jsonl:17: kind: "diag": unknown kind "diag", want full`},
	{"own text decoder, number", `{"kind":5}`, `x.rec.jsonl:17: kind: 5: JSON value must be string type`},
	{"own decoder, type", `{"range":{"lo":"x"}}`, `x.rec.jsonl:17: range.lo: "x": want a number`},
	{"own decoder, rule", `{"range":{"lo":2,"hi":1}}`, `x.rec.jsonl:17: range: lo 2 is above hi 1`},
	{"own copy, type", `{"window":{"size":"x"}}`, `x.rec.jsonl:17: window.size: "x": want a whole number`},
	{"duplicate", `{"op":"a","op":"b"}`, `x.rec.jsonl:17:11: key "op" is given twice`},
	{"duplicate deep", `{"shapes":[{"tags":{"x":1,"x":2}}]}`, `x.rec.jsonl:17: shapes[0].tags: key "x" is given twice`},
	{"duplicate in raw", `{"raw":{"x":1,"x":2}}`, `x.rec.jsonl:17: raw: key "x" is given twice`},
	{"NaN", `{"times_s":[1,NaN]}`, `x.rec.jsonl:17: times_s[1]: NaN is no JSON: leave out what is not known`},
	{"-Infinity", `{"times_s":[-Infinity]}`, `x.rec.jsonl:17: times_s[0]: -Infinity is no JSON: leave out what is not known`},
	{"inf", `{"times_s":[inf]}`, `x.rec.jsonl:17: times_s[0]: inf is no JSON: leave out what is not known`},
	{"nan at the top", `nan`, `x.rec.jsonl:17:2: nan is no JSON: leave out what is not known`},
	{"trailing word", `{"op":"a"} x`, `x.rec.jsonl:17:12: text after the end: "x"`},
	{"trailing object", `{"op":"a"}{}`, `x.rec.jsonl:17:11: text after the end: "{}"`},
	{"truncated", `{"op":"a"`, `x.rec.jsonl:17:10: ends in the middle: it was cut short`},
	{"truncated in string", `{"op":"a","sh`, `x.rec.jsonl:17:14: ends in the middle: it was cut short`},
	{"truncated number", `{"times_s":[1,`, `x.rec.jsonl:17:15: ends in the middle: it was cut short`},
	{"truncated literal", `{"good":tr`, `x.rec.jsonl:17:11: ends in the middle: it was cut short`},
	{"comma object", `{"op":"a",}`, `x.rec.jsonl:17:10: comma before a closing "}"`},
	{"comma list", `{"times_s":[1,]}`, `x.rec.jsonl:17: times_s: comma before a closing "]"`},
	{"single quotes", `{'op':1}`, `x.rec.jsonl:17:2: single quotes: JSON strings take double quotes`},
	{"bare key", `{op:1}`, `x.rec.jsonl:17:2: op stands without double quotes`},
	{"number key", `{1:2}`, `x.rec.jsonl:17:2: object member name must be a string`},
	{"comment", `{"op":"a"}//c`, `x.rec.jsonl:17:11: a comment: JSON has none`},
	{"hash", `# note`, `x.rec.jsonl:17:1: a comment: JSON has none`},
	{"colon", `{"op" "a"}`, `x.rec.jsonl:17: op: invalid character '"' after object name (expecting ':')`},
	{"missing comma", `{"op":"a" "good":true}`, `x.rec.jsonl:17:11: invalid character '"' after object value (expecting ',' or '}')`},
	{"leading zero", `{"shape":{"q_len":01}}`, `x.rec.jsonl:17: shape: invalid character '1' after object value (expecting ',' or '}')`},
	{"literal", `{"good":True}`, `x.rec.jsonl:17: good: True is Python: JSON has true, false and null`},
	{"utf8", "{\"op\":\"\xff\"}", `x.rec.jsonl:17: op: byte 0xff is not UTF-8: it is damaged, or no text`},
	{"bom", "\ufeff{}", `x.rec.jsonl:17: starts with a byte order mark; save it as UTF-8 without one`},
	{"utf16", "\xff\xfe{\x00", `x.rec.jsonl:17: is UTF-16; save it as UTF-8`},
	{"gzip", "\x1f\x8b\b\x00", `x.rec.jsonl:17: is compressed with gzip; decompress it first, such as with gunzip -k`},
	{"nul", "{\x00}", `x.rec.jsonl:17:2: control byte 0x00: it is damaged, or no text`},
	{"nul all", "\x00\x00\x00", `x.rec.jsonl:17:1: control byte 0x00: it is damaged, or no text`},
	{"control", "{\"op\":\"\x01\"}", `x.rec.jsonl:17: op: control byte 0x01: it is damaged, or no text`},
	{"binary", "\x7fELF\x02\x01", `x.rec.jsonl:17:1: control byte 0x7f: it is damaged, or no text`},
	{"escape", `{"op":"\q"}`, "x.rec.jsonl:17: op: invalid escape sequence `\\q` in string"},
	{"surrogate", `{"op":"\ud800"}`, "x.rec.jsonl:17: op: invalid surrogate pair `\\ud800\"}` in string"},
	{"long value", `{"shape":{"q_len":"` + strings.Repeat("a", 100) + `"}}`, `x.rec.jsonl:17: shape.q_len: "` + strings.Repeat("a", 36) + `...: want a whole number`},
	{"long unknown", `{"` + strings.Repeat("k", 500) + `":1}`, `x.rec.jsonl:17:2: unknown key "` + strings.Repeat("k", 37) + `..." (known keys: device, op, shape, times_s, shapes, good, next, kind, range, window, raw, Renamed)`},
	{"deep", `{"raw":` + strings.Repeat("[", 10001) + `}`, `x.rec.jsonl:17: raw` + strings.Repeat("[0]", 19) + `...: nested deeper than 10000 levels`},
}

func TestDecodeStrictErrors(t *testing.T) {
	for _, c := range decodeErrors {
		var r record
		err := DecodeStrict("x.rec.jsonl", 17, []byte(c.in), &r)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %s: error %v, want an *Error", c.name, c.in, err)
			continue
		}
		if got := strings.TrimSuffix(e.Error(), "; "+hintLine); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestDecodeStrictHints(t *testing.T) {
	var r record
	line := DecodeStrict("x.rec.jsonl", 17, []byte(`{"shape":{"q_len":"abc"}}`), &r)
	document := DecodeStrict("x.profile.json", 0, []byte("{\n \"op\": \"a\",\n \"shape\": {\n  \"q_len\":  \"abc\"}}"), &r)
	for _, c := range []struct {
		got  error
		want Error
		text string
	}{
		{
			line,
			Error{File: "x.rec.jsonl", Line: 17, Col: 19, Field: "shape.q_len", Value: `"abc"`, Msg: "want a whole number", Hint: "fix the line or delete it"},
			`x.rec.jsonl:17: shape.q_len: "abc": want a whole number; fix the line or delete it`,
		},
		{
			document,
			Error{File: "x.profile.json", Line: 4, Col: 13, Field: "shape.q_len", Value: `"abc"`, Msg: "want a whole number", Hint: "correct the file or make it again"},
			`x.profile.json:4: shape.q_len: "abc": want a whole number; correct the file or make it again`,
		},
	} {
		e := c.got.(*Error)
		if e.Error() != c.text {
			t.Errorf("got %s\nwant %s", e, c.text)
		}
		if diff := cmp.Diff(c.want, *e, cmpopts.IgnoreFields(Error{}, "Err")); diff != "" {
			t.Error(diff)
		}
		var semantic *json.SemanticError
		if !errors.As(e, &semantic) {
			t.Error("the cause is lost")
		}
	}
	if err := DecodeStrict("x.json", 0, []byte("{\n\n  \"op\": \"a\"\n"), &r); err.Error() != "x.json:4:1: ends in the middle: it was cut short; correct the file or make it again" {
		t.Error(err)
	}
	if err := DecodeStrict("x.json", 0, nil, &r); err.Error() != "x.json: empty; correct the file or make it again" {
		t.Error(err)
	}
}

func TestDecodeStrictAccepts(t *testing.T) {
	in := `{"device":"d","op":"a","shape":{"q_len":1,"tags":{"null":2},"by_id":{"-3":4}},"times_s":[1e-9,2],"next":null,` +
		`"shapes":null,"kind":"full","range":{"lo":1,"hi":2},"window":{"size":3},"raw":{"x":[null]},"good":true,"Renamed":5}`
	var got record
	if err := DecodeStrict("x", 1, []byte(in), &got); err != nil {
		t.Fatal(err)
	}
	want := record{
		base: base{Device: "d"}, Op: "a", TimesS: []seconds{1e-9, 2}, Kind: 1, Range: span{1, 2}, Window: window{3},
		Shape: shape{QLen: 1, Tags: map[string]int{"null": 2}, ByID: map[int]int{-3: 4}},
		Raw:   jsontext.Value(`{"x":[null]}`), Good: true, Renamed: 5,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(record{}, span{}, window{})); diff != "" {
		t.Error(diff)
	}
}

// TestDecodeStrictForgetsTheLineBefore: json merges into what is there.
func TestDecodeStrictForgetsTheLineBefore(t *testing.T) {
	r := record{Op: "old", Hidden: 3, TimesS: []seconds{1, 2}, Next: &shape{QLen: 1}}
	if err := DecodeStrict("x", 1, []byte(`{"good":true}`), &r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(record{Good: true}, r, cmp.AllowUnexported(record{}, span{}, window{})); diff != "" {
		t.Error(diff)
	}
}

func TestUnknownKeyListsAreBounded(t *testing.T) {
	var v struct{ Aaaa, Bbbb, Cccc, Dddd, Eeee, Ffff, Gggg, Hhhh, Iiii, Jjjj, Kkkk, Llll, Mmmm, Nnnn int }
	err := DecodeStrict("x", 1, []byte(`{"zzzzzzzz":1}`), &v)
	want := `x:1:2: unknown key "zzzzzzzz" (known keys: Aaaa, Bbbb, Cccc, Dddd, Eeee, Ffff, Gggg, Hhhh, Iiii, Jjjj, Kkkk, Llll and 2 more); fix the line or delete it`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// TestKnownKeysAreTheLibrarys: every key that is listed is one that decodes, and the
// library writes no other.
func TestKnownKeysAreTheLibrarys(t *testing.T) {
	full := record{Next: &shape{}, Kind: 1, Range: span{1, 2}, Window: window{1}, Raw: jsontext.Value("1")}
	data, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	var written map[string]jsontext.Value
	if err := json.Unmarshal(data, &written); err != nil {
		t.Fatal(err)
	}
	known := knownKeys(reflect.TypeFor[record]())
	if len(known) != len(written) {
		t.Errorf("known %v, written %s", known, data)
	}
	for _, k := range known {
		if _, ok := written[k]; !ok {
			t.Errorf("%s is never written", k)
		}
	}
}

func FuzzDecodeStrict(f *testing.F) {
	for _, c := range decodeErrors {
		f.Add([]byte(c.in))
	}
	f.Add([]byte(`{"op":"a","shape":{"q_len":1,"tags":{"x":1}},"times_s":[1,2.5],"range":{"lo":1,"hi":2}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r record
		for _, line := range []int{0, 17} {
			if err := DecodeStrict("x", line, data, &r); err != nil {
				checkError(t, err, data)
				return
			}
		}
		again, err := json.Marshal(r, json.Deterministic(true))
		if err != nil {
			t.Fatalf("%q decodes to what cannot be written: %v", data, err)
		}
		var second record
		if err := DecodeStrict("x", 1, again, &second); err != nil {
			t.Fatalf("%q is written as %q: %v", data, again, err)
		}
		third, err := json.Marshal(second, json.Deterministic(true))
		if err != nil || string(third) != string(again) {
			t.Fatalf("%q is written as %q, then as %q (%v)", data, again, third, err)
		}
	})
}

// checkError checks what holds for every error about data.
func checkError(t *testing.T, err error, data []byte) {
	t.Helper()
	e, ok := err.(*Error)
	if !ok {
		t.Fatalf("%q: %T %v", data, err, err)
	}
	text := e.Error()
	if e.File == "" || e.Msg == "" || e.Hint == "" || !utf8.ValidString(text) || strings.ContainsAny(text, "\n\r\x00") || len(text) > 4000 {
		t.Fatalf("%q: bad message %q of %#v", data, text, e)
	}
	if lines := strings.Count(string(data), "\n") + 1; e.Line > 17+lines {
		t.Fatalf("%q: line %d of %d", data, e.Line, lines)
	}
}

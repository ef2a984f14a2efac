package doc

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// note is a document of its own kind; version lets one type play several.
type note struct {
	Header
	Text   string             `json:"text"`
	Sizes  map[string]float64 `json:"sizes"`
	schema string
}

func (n *note) SchemaName() string {
	if n.schema != "" {
		return n.schema
	}
	return "evenkeel.note/v2"
}

func (n *note) Validate() error {
	if n.Text == "" {
		return errors.New("text: empty: want some text")
	}
	return nil
}

func someNote() *note {
	return &note{
		Header: Header{Tool: "0.1.0", Created: "2026-01-31T12:00:00Z", Inputs: []Input{{Path: "a.jsonl", SHA256: HashBytes(nil)}}},
		Text:   "<hello> & ünïcode", Sizes: map[string]float64{"b": 2e-12, "a": 1, "c": 3},
	}
}

const someNoteText = `{
  "schema": "evenkeel.note/v2",
  "tool": "0.1.0",
  "created": "2026-01-31T12:00:00Z",
  "inputs": [
    {"path": "a.jsonl", "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
  ],
  "text": "<hello> & ünïcode",
  "sizes": {"a": 1, "b": 2e-12, "c": 3}
}
`

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.note.json")
	if err := Save(path, someNote()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || string(text) != someNoteText {
		t.Errorf("file (%v):\n%s", err, text)
	}
	for range 20 { // map order would show
		if again, err := Encode(someNote()); err != nil || !bytes.Equal(again, text) {
			t.Fatalf("encoded again (%v):\n%s", err, again)
		}
	}
	got := note{Text: "old", Sizes: map[string]float64{"stale": 1}}
	if err := Load(path, &got); err != nil {
		t.Fatal(err)
	}
	want := someNote()
	want.Schema = "evenkeel.note/v2"
	if diff := cmp.Diff(*want, got, cmp.AllowUnexported(note{})); diff != "" {
		t.Error(diff)
	}
	hash, err := HashFile(path)
	if err != nil || hash != HashBytes(text) {
		t.Errorf("hash %s, %v", hash, err)
	}
}

func TestDecodeErrors(t *testing.T) {
	head := func(schema, tool string) string {
		return `{"schema":"` + schema + `","tool":"` + tool + `","created":"","text":"x"}`
	}
	ok := `{"schema":"evenkeel.note/v2","tool":"","created":"",`
	sha := strings.Repeat("0", 64)
	for _, c := range []struct{ in, want string }{
		{``, `x.json: empty; correct the file or make it again`},
		{"\xef\xbb\xbf" + someNoteText, `x.json: starts with a byte order mark; save it as UTF-8 without one`},
		{`{}`, `x.json: not an evenkeel document: it has no "schema" key; name a file that evenkeel wrote; expected evenkeel.note`},
		{`{"op":"gemm"}` + "\n" + `{"op":"gemm"}`, `x.json: not an evenkeel document: it has no "schema" key; name a file that evenkeel wrote; expected evenkeel.note`},
		{`[1]`, `x.json: not an evenkeel document: it is not a JSON object; name a file that evenkeel wrote; expected evenkeel.note`},
		{`null`, `x.json: not an evenkeel document: it is not a JSON object; name a file that evenkeel wrote; expected evenkeel.note`},
		{`{"schema":5}`, `x.json: not an evenkeel document: its "schema" is not a string; name a file that evenkeel wrote; expected evenkeel.note`},
		{`{"a":1,` + "\n" + `"b":`, `x.json:2:5: ends in the middle: it was cut short; correct the file or make it again`},
		{"\x1f\x8b\x08", `x.json: is compressed with gzip; decompress it first, such as with gunzip -k`},
		{`hello`, `x.json:1:1: hello stands without double quotes; correct the file or make it again`},
		{head("evenkeel.plan/v2", "9"), `x.json: is an evenkeel.plan, expected evenkeel.note; name the evenkeel.note file instead`},
		{head("https://json-schema.org/draft", "9"), `x.json: is a document of schema "https://json-schema.org/draft", expected evenkeel.note; name the evenkeel.note file instead`},
		{head("evenkeel.note/v3", "0.9.0"), `x.json: schema: evenkeel.note/v3 was written by evenkeel 0.9.0, this one reads v2; update evenkeel`},
		{head("evenkeel.note/v10", "evenkeel 1.2"), `x.json: schema: evenkeel.note/v10 was written by evenkeel 1.2, this one reads v2; update evenkeel`},
		{`{"schema":"evenkeel.note/v3","new":{"a":1}}`, `x.json: schema: evenkeel.note/v3 was written by evenkeel, this one reads v2; update evenkeel`},
		{head("evenkeel.note/v1", "0.1.0"), `x.json: schema: evenkeel.note/v1 was written by evenkeel 0.1.0, this one reads v2; make the file again with this evenkeel`},
		{head("evenkeel.note", "0.1.0"), `x.json: schema: "evenkeel.note": no version, want "evenkeel.note/v2"; make the file again`},
		{head("evenkeel.note/vNext", "0.1.0"), `x.json: schema: "evenkeel.note/vNext": no version, want "evenkeel.note/v2"; make the file again`},
		{ok + `"text":""}`, `x.json: text: empty: want some text; correct the file or make it again`},
		{ok + "\n" + `"txt":""}`, `x.json:2:1: unknown key "txt" (did you mean "text"?); correct the file or make it again`},
		{ok + `"text":"x"} {}`, `x.json:1:65: text after the end: "{}"; correct the file or make it again`},
		{ok + `"tool":"x"}`, `x.json:1:53: key "tool" is given twice; correct the file or make it again`},
		{`{"schema":"evenkeel.note/v2","created":"yesterday","text":"x"}`, `x.json: created: "yesterday": want a time in UTC such as 2026-01-31T12:00:00Z; correct the file or make it again`},
		{`{"schema":"evenkeel.note/v2","created":"2026-01-31T12:00:00+01:00","text":"x"}`, `x.json: created: "2026-01-31T12:00:00+01:00": want a time in UTC such as 2026-01-31T12:00:00Z; correct the file or make it again`},
		{ok + `"text":"x","inputs":[{"path":"a","sha256":"` + sha + `"},{"path":"","sha256":"` + sha + `"}]}`, `x.json: inputs[1].path: empty: want the file's name; correct the file or make it again`},
		{ok + `"text":"x","inputs":[{"path":"a","sha256":"abc"}]}`, `x.json: inputs[0].sha256: "abc": want 64 lower-case hexadecimal digits; correct the file or make it again`},
		{ok + `"text":"x","inputs":[{"path":"a","sha265":"abc"}]}`, `x.json:1: inputs[0]: unknown key "sha265" (did you mean "sha256"?); correct the file or make it again`},
	} {
		var n note
		err := Decode("x.json", []byte(c.in), &n)
		var e *Error
		if !errors.As(err, &e) || err.Error() != c.want {
			t.Errorf("%s\n got %v\nwant %s", c.in, err, c.want)
		}
	}
}

func TestSchemaMayComeLast(t *testing.T) {
	var n note
	if err := Decode("x", []byte(`{"text":"x","created":"","tool":"t","schema":"evenkeel.note/v2"}`), &n); err != nil || n.Tool != "t" {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "none.json")
	large := filepath.Join(dir, "large.json")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, MaxDocument+1); err != nil { // sparse: takes no room
		t.Fatal(err)
	}
	below := filepath.Join(large, "x.json")
	for path, want := range map[string]string{
		missing: ": no such file",
		dir:     ": cannot be read: is a directory; name a file in it",
		below:   ": cannot be read: not a directory",
		large: ": 268435457 bytes, and a document has at most 268435456; if this is a recording (one JSON object a line), " +
			"name it where a recording is asked for; else split it",
	} {
		var n note
		if err := Load(path, &n); err == nil || err.Error() != path+want {
			t.Errorf("got %v\nwant %s", err, path+want)
		}
	}
	var n note
	if err := Load(missing, &n); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the cause is lost")
	}
	if _, err := readLimited("/dev/zero", 1000); err == nil || !strings.HasPrefix(err.Error(), "/dev/zero: 1001 bytes") {
		t.Errorf("a file without a size: %v", err)
	}
	if _, err := HashFile(missing); err == nil || err.Error() != missing+": no such file" {
		t.Errorf("got %v", err)
	}
	if _, err := HashFile(dir); err == nil || err.Error() != dir+": cannot be read: is a directory; name a file in it" {
		t.Errorf("got %v", err)
	}
}

func TestSaveRefusesAndKeepsTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty, nan, text, created := someNote(), someNote(), someNote(), someNote()
	empty.Text = ""
	nan.Sizes["b"] = math.NaN()
	text.Sizes["\xff"] = 1
	created.Created = "now"
	for _, c := range []struct {
		n    *note
		want string
	}{
		{empty, ": text: empty: want some text; nothing was written"},
		{nan, ": sizes.b: unsupported value: NaN; nothing was written"},
		{text, ": sizes: invalid UTF-8; nothing was written"},
		{created, `: created: "now": want a time in UTC such as 2026-01-31T12:00:00Z; nothing was written`},
	} {
		if err := Save(path, c.n); err == nil || err.Error() != path+c.want {
			t.Errorf("got %v\nwant %s", err, path+c.want)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("the file is %q, %v", got, err)
	}
	if _, err := Encode(empty); err == nil || err.Error() != "evenkeel.note/v2: text: empty: want some text; nothing was written" {
		t.Errorf("got %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(someNoteText))
	f.Add([]byte(`{"schema":"evenkeel.note/v3","tool":"x"}`))
	f.Add([]byte(`{"schema":"évenkeel.\u0000/v2"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var n note
		if err := Decode("x", data, &n); err != nil {
			checkError(t, err, data)
			return
		}
		first, err := Encode(&n)
		if err != nil {
			t.Fatalf("%q is read but not written: %v", data, err)
		}
		var again note
		if err := Decode("x", first, &again); err != nil {
			t.Fatalf("%q is written as %q: %v", data, first, err)
		}
	})
}

// Files that one may not touch: space has nothing to do with it.
func TestWhatIsNotAllowedIsSaid(t *testing.T) {
	denied := &fs.PathError{Op: "open", Path: ".evenkeel-1-0.tmp", Err: syscall.EACCES}
	for got, want := range map[string]string{
		readError("x", denied).Error():  "x: cannot be read: permission denied; ask its owner for the right to, or name a copy",
		writeError("x", denied).Error(): "x: cannot be written: permission denied; choose a place that you may write to",
	} {
		if got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
}

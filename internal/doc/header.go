package doc

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Header opens every document. Documents embed it as their first field, which also
// gives them the Head method of [Document].
type Header struct {
	// Schema is the document's kind and version, such as evenkeel.profile/v1. Writing
	// sets it.
	Schema string `json:"schema"`
	// Tool is the version of evenkeel that wrote the document.
	Tool string `json:"tool"`
	// Created is when, as RFC 3339 in UTC, or empty.
	Created string `json:"created"`
	// Inputs are the files the document was made from.
	Inputs []Input `json:"inputs,omitempty"`
}

// Input names a file by path, as it was given, and by content.
type Input struct {
	Path string `json:"path"`
	// SHA256 is the hash of the file in 64 lower-case hexadecimal digits.
	SHA256 string `json:"sha256"`
}

// Head returns h itself.
func (h *Header) Head() *Header { return h }

// Document is a JSON document with a kind, a version and rules of its own. It is
// implemented by a pointer to a struct that embeds [Header].
type Document interface {
	Head() *Header
	// Validate returns the first broken rule, naming field and value but no file.
	Validate() error
	// SchemaName is the kind and version it reads and writes: evenkeel.profile/v1.
	SchemaName() string
}

// validate checks what every document has in common.
func (h *Header) validate() error {
	if h.Created != "" {
		if t, err := time.Parse(time.RFC3339, h.Created); err != nil || t.Location() != time.UTC {
			return fmt.Errorf("created: %q: want a time in UTC such as 2026-01-31T12:00:00Z", h.Created)
		}
	}
	for i, in := range h.Inputs {
		if in.Path == "" {
			return fmt.Errorf("inputs[%d].path: empty: want the file's name", i)
		}
		if raw, err := hex.DecodeString(in.SHA256); err != nil || len(raw) != 32 || in.SHA256 != strings.ToLower(in.SHA256) {
			return fmt.Errorf("inputs[%d].sha256: %q: want 64 lower-case hexadecimal digits", i, shorten(in.SHA256))
		}
	}
	return nil
}

// CheckSchema reports whether the JSON object at the start of data declares the
// wanted schema (evenkeel.profile/v1), before anything else of it is decoded: a plan
// read as a profile should be called a plan, not a profile with unknown keys. It
// serves documents and the first line of a recording alike; name is for the error,
// which is an [*Error].
func CheckSchema(name string, data []byte, want string) error {
	got, tool, err := declared(data)
	if broken(err) {
		return decodeError(name, 0, data, nil, err)
	}
	kind, version, _ := cutVersion(want)
	gotKind, gotVersion, versioned := cutVersion(got)
	e := &Error{File: name, Err: err}
	switch {
	case err != nil:
		e.Msg, e.Hint = "not an evenkeel document: "+err.Error(), "name a file that evenkeel wrote; expected "+kind
	case got == want:
		return nil
	case gotKind != kind:
		e.Msg = fmt.Sprintf("is %s, expected %s", describeKind(gotKind), kind)
		e.Hint = "name the " + kind + " file instead"
	case !versioned:
		e.Field, e.Value, e.Msg = "schema", strconv.Quote(shorten(got)), fmt.Sprintf("no version, want %q", want)
		e.Hint = "make the file again"
	default:
		writer := strings.TrimSpace("evenkeel " + strings.TrimPrefix(shorten(tool), "evenkeel "))
		e.Field, e.Msg = "schema", fmt.Sprintf("%s/v%d was written by %s, this one reads v%d", kind, gotVersion, writer, version)
		e.Hint = "update evenkeel"
		if gotVersion < version {
			e.Hint = "make the file again with this evenkeel"
		}
	}
	return e
}

// ErrNotObject says that data, such as a log or a table, is no document from its first
// character on.
var ErrNotObject = errors.New("it is not a JSON object")

// errNoSchema and its like say why data is no document at all.
var (
	errNoSchema  = errors.New(`it has no "schema" key`)
	errBadSchema = errors.New(`its "schema" is not a string`)
)

// declared returns the schema of the JSON object at the start of data, and its tool
// if that comes before the end or the first syntax error. It stops as soon as it has
// both: our own files begin with them, so a large file is not read twice.
func declared(data []byte) (schema, tool string, err error) {
	found := map[string]jsontext.Value{}
	err = eachMember(data, func(name string, value jsontext.Value) bool {
		if name == "schema" || name == "tool" {
			found[name] = value.Clone()
		}
		return len(found) < 2
	})
	raw, ok := found["schema"]
	switch {
	case !ok && err == nil:
		return "", "", errNoSchema
	case !ok:
		return "", "", err
	case raw.Kind() != '"':
		return "", "", errBadSchema
	}
	if raw := found["tool"]; raw.Kind() == '"' {
		tool = unquote(raw)
	}
	return unquote(raw), tool, nil
}

// eachMember calls f with the members of the object at the start of data until f
// returns false.
func eachMember(data []byte, f func(name string, value jsontext.Value) bool) error {
	d := jsontext.NewDecoder(newBytesReader(data))
	if d.PeekKind() != '{' {
		if _, err := d.ReadValue(); err != nil {
			return eofIsUnexpected(err)
		}
		return ErrNotObject
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return eofIsUnexpected(err)
		}
		key := name.String()
		value, err := d.ReadValue()
		if err != nil {
			return eofIsUnexpected(err)
		}
		if !f(key, value) {
			return nil
		}
	}
	return nil
}

// isText says whether data begins as neither JSON nor a damaged file does.
func isText(data []byte) bool {
	data = bytes.TrimSpace(data)
	return len(data) > 0 && data[0] != '{' && data[0] != '[' && data[0] > ' ' && data[0] < 0x7f
}

func eofIsUnexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func unquote(v jsontext.Value) string {
	b, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return string(v) // the decoder accepted it, so this is out of reach
	}
	return string(b)
}

// cutVersion splits evenkeel.profile/v1 into evenkeel.profile and 1; ok says that
// there was a version.
func cutVersion(schema string) (kind string, version int, ok bool) {
	kind, v, ok := strings.Cut(schema, "/v")
	if !ok {
		return schema, 0, false
	}
	version, err := strconv.Atoi(v)
	return kind, version, err == nil && version > 0
}

// describeKind names one of our kinds as it is and quotes what others wrote.
func describeKind(kind string) string {
	if shown := shorten(kind); strings.HasPrefix(kind, "evenkeel.") && strconv.Quote(shown) == `"`+shown+`"` {
		return "an " + shown
	}
	return "a document of schema " + strconv.Quote(shorten(kind))
}

// SchemaOf returns the schema that the JSON object at the start of data
// declares: of a document, or of the first line of a recording. data may be cut
// off after it. The error says why there is none; it is an [*Error], without a
// file, where data is no JSON, such as compressed, or breaks before its schema.
func SchemaOf(data []byte) (string, error) {
	if msg, hint := WholeFile(data); hint != "" {
		return "", &Error{Msg: msg, Hint: hint}
	}
	if isText(data) { // where in it JSON breaks would say nothing
		return "", ErrNotObject
	}
	schema, _, err := declared(data)
	if broken(err) {
		return "", decodeError("", 0, data, nil, err)
	}
	return schema, err
}

// broken says that JSON broke or ended in the middle, where err is of reading some.
func broken(err error) bool {
	var syntax *jsontext.SyntacticError
	return errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF)
}

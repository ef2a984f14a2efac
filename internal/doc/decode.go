package doc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	hintDocument = "correct the file or make it again"
	hintLine     = "fix the line or delete it"
)

// DecodeStrict decodes data, which holds exactly one JSON value, into v, a non-nil
// pointer. *v is set to zero first, so that nothing of an earlier line stays behind.
// Names match in their exact letter case; unknown and repeated names, text after the
// value, invalid UTF-8, numbers out of range and a null for anything but a pointer,
// slice, map, interface or type with its own decoder are errors.
//
// name is for errors. line is the line of a journal that data is, from 1, or 0 for a
// whole document, whose lines are counted within data. The error is an [*Error].
// A nil v or one that is no pointer panics.
func DecodeStrict(name string, line int, data []byte, v any) error {
	reflect.ValueOf(v).Elem().SetZero()
	options := []json.Options{json.RejectUnknownMembers(true)}
	// json decodes null into the zero value, and a zero second measured by nobody is
	// the worst thing a cost model can be fed. Refusing costs a call for every value,
	// so it is asked for only where the word stands somewhere.
	if bytes.Contains(data, []byte("null")) {
		options = append(options, json.WithUnmarshalers(json.UnmarshalFromFunc(refuseNull)))
	}
	if err := json.Unmarshal(data, v, options...); err != nil {
		return decodeError(name, line, data, typeOf(v), err)
	}
	return nil
}

// nullError is a null where t has no way to say "absent".
type nullError struct{ t reflect.Type }

func (nullError) Error() string { return "null" }

// refuseNull rejects null for Go types that have no way to say "absent".
func refuseNull(d *jsontext.Decoder, v any) error {
	if d.PeekKind() != 'n' || canBeNull(reflect.TypeOf(v)) {
		return errors.ErrUnsupported // tells json to go on as usual
	}
	return nullError{reflect.TypeOf(v).Elem()}
}

func canBeNull(pointer reflect.Type) bool {
	switch pointer.Elem().Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		return true
	}
	return pointer.Implements(reflect.TypeFor[json.UnmarshalerFrom]()) || pointer.Implements(reflect.TypeFor[json.Unmarshaler]())
}

func typeOf(v any) reflect.Type { return reflect.TypeOf(v) }

// decodeError turns the library's error about data into an Error. t is the type that
// was decoded into, or nil.
func decodeError(name string, line int, data []byte, t reflect.Type, err error) error {
	e := &Error{File: name, Line: max(line, 1), Hint: hintLine, Err: err}
	if line == 0 {
		e.Hint = hintDocument
	}
	if msg, hint := WholeFile(data); msg != "" {
		e.Msg, e.Line = msg, line
		if hint != "" {
			e.Hint = hint
		}
		return e
	}
	// Only a syntax error at the outermost level has an offset into data: a type's own
	// decoder may have parsed a part of it by itself and wrapped what it got.
	if syntax, ok := err.(*jsontext.SyntacticError); ok {
		describeSyntax(e, data, t, syntax)
		return e
	}
	var semantic *json.SemanticError
	if errors.As(err, &semantic) {
		describeSemantic(e, data, t, innermost(*semantic))
		return e
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		describeSyntax(e, data, t, &jsontext.SyntacticError{ByteOffset: int64(len(data)), Err: io.ErrUnexpectedEOF})
		return e
	}
	e.Msg = err.Error()
	return e
}

// innermost follows semantic errors that a type's own decoder wrapped, keeping the
// whole path. A decoder that worked on its own copy of the value reports a path within
// it, one that shared ours reports the whole; the former never begins with the outer.
func innermost(e json.SemanticError) json.SemanticError {
	for {
		var inner *json.SemanticError
		if e.Err == nil || !errors.As(e.Err, &inner) {
			return e
		}
		next := *inner
		if !e.JSONPointer.Contains(inner.JSONPointer) || inner.JSONPointer == "" {
			next.JSONPointer = e.JSONPointer + inner.JSONPointer
			next.ByteOffset = e.ByteOffset + inner.ByteOffset
		}
		e = next
	}
}

// place sets line and column of the byte at offset.
func (e *Error) place(data []byte, offset int64) {
	before := data[:min(max(offset, 0), int64(len(data)))]
	e.Line += bytes.Count(before, []byte{'\n'})
	e.Col = len(before) - bytes.LastIndexByte(before, '\n')
}

func describeSemantic(e *Error, data []byte, t reflect.Type, s json.SemanticError) {
	e.place(data, s.ByteOffset)
	if errors.Is(s.Err, json.ErrUnknownName) {
		e.Field = fieldPath(t, s.JSONPointer.Parent())
		e.Msg = unknownKey(s.JSONPointer.LastToken(), s.GoType)
		return
	}
	e.Field = fieldPath(t, s.JSONPointer)
	e.Value = valueAt(data, s)
	want := wantOf(s.GoType)
	var null nullError
	switch {
	case errors.As(s.Err, &null):
		e.Msg = "want " + wantOf(null.t)
	// Identity, not errors.Is: a type's own decoder may wrap these and say more.
	case s.Err == strconv.ErrRange:
		e.Msg = "out of range, want " + want + rangeOf(s.GoType)
	case s.Err == nil, s.Err == strconv.ErrSyntax, isPlainArray(s.GoType):
		e.Msg = "want " + want
	default:
		e.Msg = oneLine(s.Err.Error())
	}
}

// isPlainArray reports whether an error about t can only be about its length.
func isPlainArray(t reflect.Type) bool {
	return t != nil && t.Kind() == reflect.Array && !canBeNull(reflect.PointerTo(t))
}

// valueAt returns the value that s complains about as it is written. For a list or an
// object the library points at an end of it, and only its kind is worth showing.
func valueAt(data []byte, s json.SemanticError) string {
	switch s.JSONKind {
	case '[', ']':
		return "[...]"
	case '{', '}':
		return "{...}"
	}
	rest := data[min(max(s.ByteOffset, 0), int64(len(data))):]
	v, err := jsontext.NewDecoder(newBytesReader(rest)).ReadValue()
	if err != nil || v.Kind() == '{' || v.Kind() == '[' {
		return ""
	}
	return shorten(string(v))
}

// wantOf says in words what JSON the type t takes.
func wantOf(t reflect.Type) string {
	if t == nil {
		return "another kind of value"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return wantOf(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number, 0 or more"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Array:
		return fmt.Sprintf("a list of %d", t.Len())
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return "another kind of value"
}

// rangeOf says from where to where the number type t goes.
func rangeOf(t reflect.Type) string {
	if t == nil {
		return ""
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		limit := int64(math.MaxInt64) >> (64 - t.Bits())
		return fmt.Sprintf(" from %d to %d", -limit-1, limit)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf(" up to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	case reflect.Float32:
		return fmt.Sprintf(" up to %g", math.MaxFloat32)
	case reflect.Float64:
		return fmt.Sprintf(" up to %g", math.MaxFloat64)
	}
	return ""
}

// oneLine keeps a message that quotes the data from breaking the report's lines.
func oneLine(s string) string {
	return strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "?")
}

func newBytesReader(data []byte) *bytes.Buffer { return bytes.NewBuffer(data) }

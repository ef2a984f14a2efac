package doc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is the nesting that the JSON library accepts.
const maxDepth = 10000

// NotJSON is the error for data that a library of JSON could not read, as of err, in a file
// that is not one of ours: what happened to it, and where.
func NotJSON(name string, data []byte, err error) error {
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		err = syntax
	}
	return decodeError(name, 0, data, nil, err)
}

// describeSyntax fills e for data that is not JSON. The library's message says what
// the grammar expected; people want to know what happened to their file, so the usual
// accidents are recognised first. It runs only after an error, hence may rescan.
func describeSyntax(e *Error, data []byte, t reflect.Type, s *jsontext.SyntacticError) {
	e.place(data, s.ByteOffset)
	pointer := s.JSONPointer
	switch {
	case errors.Is(s.Err, jsontext.ErrDuplicateName):
		pointer = pointer.Parent()
		e.Msg = fmt.Sprintf("key %q is given twice", shorten(s.JSONPointer.LastToken()))
	case errors.Is(s.Err, io.ErrUnexpectedEOF):
		pointer = ""
		e.Msg = "ends in the middle: it was cut short"
	default:
		e.Msg = accident(data, int(s.ByteOffset), s)
	}
	e.Field = fieldPath(t, pointer)
}

// WholeFile recognises data that is no JSON text from its first byte on, and says what
// to do; "" where it may be one.
func WholeFile(data []byte) (msg, hint string) {
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return "empty", ""
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		return "starts with a byte order mark", "save it as UTF-8 without one"
	case bytes.HasPrefix(data, []byte("\xff\xfe")), bytes.HasPrefix(data, []byte("\xfe\xff")):
		return "is UTF-16", "save it as UTF-8"
	case bytes.HasPrefix(data, []byte("\x1f\x8b")):
		return "is compressed with gzip", "decompress it first, such as with gunzip -k"
	}
	return "", ""
}

// accident says what went wrong at offset.
func accident(data []byte, offset int, s *jsontext.SyntacticError) string {
	offset = min(max(offset, 0), len(data))
	rest := data[offset:]
	if word := notANumber(data, offset); word != "" {
		return word + " is no JSON: leave out what is not known"
	}
	word := leadingWord(rest)
	r, size := utf8.DecodeRune(rest)
	before := bytes.TrimRight(data[:offset], " \t\r\n")
	after := bytes.TrimLeft(rest[min(size, len(rest)):], " \t\r\n")
	switch {
	case r == utf8.RuneError && size == 1:
		return fmt.Sprintf("byte %#02x is not UTF-8: it is damaged, or no text", rest[0])
	case size == 1 && (r < ' ' && r != '\t' && r != '\r' && r != '\n' || r == 0x7f):
		return fmt.Sprintf("control byte %#02x: it is damaged, or no text", r)
	case jsonDepth(data) >= maxDepth:
		return fmt.Sprintf("nested deeper than %d levels", maxDepth)
	case r == ',' && len(after) > 0 && (after[0] == '}' || after[0] == ']'):
		return "comma before a closing " + strconv.Quote(string(after[0]))
	case r == '\'':
		return "single quotes: JSON strings take double quotes"
	case bytes.HasPrefix(rest, []byte("//")), bytes.HasPrefix(rest, []byte("/*")), r == '#':
		return "a comment: JSON has none"
	case isComplete(before):
		return fmt.Sprintf("text after the end: %q", shorten(firstWords(rest)))
	}
	switch word {
	case "":
		return oneLine(s.Err.Error())
	case "True", "False", "None":
		return word + " is Python: JSON has true, false and null"
	}
	return fmt.Sprintf("%s stands without double quotes", shorten(word))
}

// leadingWord returns the letters, digits and underscores that data begins with if
// they are a name.
func leadingWord(data []byte) string {
	n := 0
	for n < len(data) && (data[n] == '_' || data[n]|0x20 >= 'a' && data[n]|0x20 <= 'z' || n > 0 && data[n] >= '0' && data[n] <= '9') {
		n++
	}
	return string(data[:n])
}

// notANumber returns the token at offset if it is one of the names that Python and C
// print for what JSON cannot hold. The library points behind a minus sign.
func notANumber(data []byte, offset int) string {
	if offset > 0 && data[offset-1] == 'n' {
		offset-- // nan: the library took it for null
	}
	sign := ""
	if offset > 0 && data[offset-1] == '-' {
		sign = "-"
	}
	rest := data[offset:]
	if sign == "" && bytes.HasPrefix(rest, []byte("-")) {
		sign, rest = "-", rest[1:]
	}
	for _, word := range []string{"NaN", "Infinity", "inf", "nan", "Inf"} {
		if bytes.HasPrefix(rest, []byte(word)) {
			return sign + word
		}
	}
	return ""
}

// jsonDepth returns how deeply data nests up to its first syntax error.
func jsonDepth(data []byte) int {
	d := jsontext.NewDecoder(newBytesReader(data))
	for deepest := 0; ; deepest = max(deepest, d.StackDepth()) {
		if _, err := d.ReadToken(); err != nil {
			return max(deepest, d.StackDepth())
		}
	}
}

func isComplete(data []byte) bool { return jsontext.Value(data).IsValid() }

// firstWords returns the beginning of data up to the end of its line.
func firstWords(data []byte) string {
	data, _, _ = bytes.Cut(data, []byte{'\n'})
	return strings.ToValidUTF8(string(data[:min(len(data), 4*maxShown)]), "?")
}

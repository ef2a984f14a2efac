package doc

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// MaxDocument is the largest document that is read or written, in bytes. A document
// is decoded in memory; millions of raw samples belong in a recording, which is read
// line by line.
const MaxDocument = 256 << 20

// Load reads the document at path into d, which it overwrites: schema first, then
// strictly, then d's own rules. The error is an [*Error] that names path; a missing
// file satisfies errors.Is(err, fs.ErrNotExist).
func Load(path string, d Document) error {
	data, err := readLimited(path, MaxDocument)
	if err != nil {
		return err
	}
	return Decode(path, data, d)
}

// Decode is [Load] from memory; name stands for the file in errors.
func Decode(name string, data []byte, d Document) error {
	if err := CheckSchema(name, data, d.SchemaName()); err != nil {
		return err
	}
	if err := DecodeStrict(name, 0, data, d); err != nil {
		return err
	}
	return checkDocument(name, d, hintDocument)
}

// Save writes d to path atomically, after setting its schema and checking its rules.
// It does not set Tool, Created or Inputs: the caller knows them, and two calls with
// the same d write the same bytes. The error is an [*Error] that names path; the file
// that was there is then unchanged.
func Save(path string, d Document) error {
	data, err := encode(path, d)
	if err != nil {
		return err
	}
	return WriteAtomic(path, data)
}

// Encode returns the bytes that [Save] writes: deterministic, indented by two spaces but
// for short innermost objects and lists and for numbers in a list, ending in a newline.
func Encode(d Document) ([]byte, error) { return encode(d.SchemaName(), d) }

func encode(name string, d Document) ([]byte, error) {
	d.Head().Schema = d.SchemaName()
	if err := checkDocument(name, d, hintNotWritten); err != nil {
		return nil, err
	}
	data, err := json.Marshal(d, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return nil, encodeError(name, d, err)
	}
	data = layOut(data)
	if len(data) >= MaxDocument {
		return nil, tooLarge(name, int64(len(data)), MaxDocument)
	}
	return append(data, '\n'), nil
}

func checkDocument(name string, d Document, hint string) error {
	err := d.Head().validate()
	if err == nil {
		err = d.Validate()
	}
	if err != nil {
		return &Error{File: name, Msg: err.Error(), Hint: hint, Err: err}
	}
	return nil
}

const hintNotWritten = "nothing was written"

// encodeError names the field that JSON cannot hold, NaN above all.
func encodeError(name string, v any, err error) error {
	e := &Error{File: name, Msg: err.Error(), Hint: hintNotWritten, Err: err}
	var semantic *json.SemanticError
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &semantic):
		e.Field = fieldPath(typeOf(v), semantic.JSONPointer)
		if semantic.Err != nil {
			e.Msg = semantic.Err.Error()
		}
	case errors.As(err, &syntax):
		e.Field = fieldPath(typeOf(v), syntax.JSONPointer)
		e.Msg = syntax.Err.Error()
	}
	return e
}

// readLimited reads a file of at most limit bytes. The size that the file system
// states is asked first, to refuse before reading, but a pipe states none.
func readLimited(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, readError(path, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() > limit {
		return nil, tooLarge(path, info.Size(), limit)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, readError(path, err)
	}
	if int64(len(data)) > limit {
		return nil, tooLarge(path, int64(len(data)), limit)
	}
	return data, nil
}

func tooLarge(name string, size, limit int64) error {
	return &Error{
		File: name,
		Msg:  fmt.Sprintf("%d bytes, and a document has at most %d", size, limit),
		Hint: "if this is a recording (one JSON object a line), name it where a recording is asked for; else split it",
	}
}

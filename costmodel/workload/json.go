package workload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/go-json-experiment/json/jsontext"
)

// longestLine is the longest line of JSONL: documents stand beside their lengths.
const longestLine = 64 << 20

// readJSONL reads lengths from a field of the object on each line, or from lines
// that are numbers. Blank lines are skipped.
func readJSONL(name string, r io.Reader, field string) ([]units.Tokens, error) {
	in := jsonlReader{intake: intake{name: name, column: field, unit: "line"}, decoder: jsontext.NewDecoder(bytes.NewReader(nil))}
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, longestLine)
	for scan.Scan() {
		in.at++
		line := bytes.TrimSpace(scan.Bytes())
		if in.at == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if len(line) == 0 {
			continue
		}
		if err := in.object(line); err != nil {
			return nil, err
		}
	}
	switch err := scan.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: longer than %d bytes: write the lengths without their documents", name, in.at+1, longestLine)
	case err != nil:
		return nil, fmt.Errorf("%s:%d: %w", name, in.at+1, err)
	}
	return in.done()
}

// jsonlReader reads objects of one file; its decoder is used again for each.
type jsonlReader struct {
	intake
	line    bytes.Reader
	decoder *jsontext.Decoder
}

// object reads the length of one line. The first object decides the field where
// none was named.
func (in *jsonlReader) object(line []byte) error {
	if line[0] != '{' {
		return in.number(line)
	}
	if in.column == "" {
		names, err := in.numbers(line)
		if err != nil {
			return err
		}
		i, err := choose(fmt.Sprintf("%s:%d", in.name, in.at), names, "")
		if err != nil {
			return err
		}
		in.column = names[i]
	}
	found := false
	var length error
	err := in.walk(line, func(name string, value jsontext.Value) {
		if name == in.column {
			found, length = true, in.value(value)
		}
	})
	switch {
	case err != nil:
		return err
	case !found:
		return in.missing(line)
	}
	return length
}

// value reads a length as JSON holds it.
func (in *jsonlReader) value(v jsontext.Value) error {
	switch v.Kind() {
	case '0':
		return in.add(string(v))
	case '[', '{':
		return in.bad("holds a list or an object: name the field that holds its number of tokens")
	case 'n':
		return in.bad("null: %w", errNull)
	}
	return in.bad("%s: is no number: want the tokens of a sequence, such as 8192", shorten(string(v)))
}

func (in *jsonlReader) missing(line []byte) error {
	var names []string
	err := in.walk(line, func(name string, _ jsontext.Value) { names = append(names, name) })
	if err != nil {
		return err
	}
	return fmt.Errorf("%s:%d: no field %q%s; there are %s", in.name, in.at, shorten(in.column), spelling.Hint(in.column, names), strings.Join(quoted(names), ", "))
}

var errNull = errors.New("leave sequences of unknown length out")

// number reads a line that is no object.
func (in *jsonlReader) number(line []byte) error {
	if in.column != "" {
		return in.bad("%q: is no object: every line must have the field", shorten(string(line)))
	}
	return in.add(string(line))
}

// numbers are the names of the fields that hold numbers.
func (in *jsonlReader) numbers(line []byte) ([]string, error) {
	var numbers, all []string
	err := in.walk(line, func(name string, value jsontext.Value) {
		all = append(all, name)
		if value.Kind() == '0' {
			numbers = append(numbers, name)
		}
	})
	if len(numbers) == 0 && err == nil {
		err = in.bad("no field is a number: name the one that holds the tokens of the sequence; there are %s", strings.Join(quoted(all), ", "))
	}
	return numbers, err
}

// walk visits the fields of an object that is the whole line.
func (in *jsonlReader) walk(line []byte, visit func(name string, value jsontext.Value)) error {
	d := in.decoder
	in.line.Reset(line)
	d.Reset(&in.line)
	torn := func(err error) error {
		at := in.intake
		at.column = ""
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return at.bad("the object is cut off: remove the line, or write the file again")
		}
		return at.bad("is no JSON object: %s", notJSON(err))
	}
	if _, err := d.ReadToken(); err != nil {
		return torn(err)
	}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return torn(err)
		}
		key := name.String()
		value, err := d.ReadValue()
		if err != nil {
			return torn(err)
		}
		visit(key, value)
	}
	if _, err := d.ReadToken(); err != nil {
		return torn(err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return torn(errors.New("there is more behind it: put one object on a line"))
	}
	return nil
}

// notJSON says where JSON ends, without the words that its reader puts around it.
func notJSON(err error) string {
	var wrong *jsontext.SyntacticError
	if errors.As(err, &wrong) && wrong.Err != nil {
		return fmt.Sprintf("byte %d: %v", wrong.ByteOffset+1, wrong.Err)
	}
	return err.Error()
}

// readJSON reads a histogram, an object of ranges and counts or shares such as
// {"[0,32)": 0.03}, or an array of lengths.
func readJSON(name string, r io.Reader) (*Sample, error) {
	d := jsontext.NewDecoder(r)
	fail := func(err error) error {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: is empty or cut off: write an object of ranges and counts, or an array of lengths", name)
		}
		return fmt.Errorf("%s: %s: write an object of ranges and counts, or an array of lengths", name, notJSON(err))
	}
	open, err := d.ReadToken()
	if err != nil {
		return nil, fail(err)
	}
	sample := &Sample{}
	switch open.Kind() {
	case '[':
		sample.Lengths, err = readArray(name, d, fail)
	case '{':
		sample.Histogram, err = readBins(name, d, fail)
	default:
		return nil, fmt.Errorf("%s: begins with %s: want an object of ranges and counts, or an array of lengths", name, shorten(open.String()))
	}
	if err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, fail(err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: there is more behind its one value; a file with an object on each line is called .jsonl", name)
	}
	return sample, nil
}

func readArray(name string, d *jsontext.Decoder, fail func(error) error) ([]units.Tokens, error) {
	in := intake{name: name, unit: "row"}
	for d.PeekKind() != ']' {
		value, err := d.ReadValue()
		if err != nil {
			return nil, fail(err)
		}
		in.at++
		if k := value.Kind(); k == '{' || k == '[' {
			return nil, in.bad("%s: is no length: write the lengths alone, or an object on each line, without the brackets around all, and call the file .jsonl", shorten(string(value)))
		}
		if err := in.add(string(value)); err != nil {
			return nil, err
		}
	}
	return in.done()
}

func readBins(name string, d *jsontext.Decoder, fail func(error) error) (*Histogram, error) {
	h := &Histogram{}
	for d.PeekKind() != '}' {
		token, err := d.ReadToken()
		if err != nil {
			return nil, fail(err)
		}
		key := token.String()
		value, err := d.ReadValue()
		if err != nil {
			return nil, fail(err)
		}
		bin, err := parseRange(key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if bin.Weight, err = parseWeight(string(value)); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", name, shorten(key), err)
		}
		h.Bins = append(h.Bins, bin)
	}
	return h.named(name)
}

package workload

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/internal/units"
)

// MaxLength is longer than any sequence that anyone trains.
const MaxLength = units.Tokens(1) << 31

// MaxLengths is the most lengths a file may hold: half a gigabyte of them.
const MaxLengths = 1 << 26

// Format is a file format of lengths.
type Format string

// The formats. JSON is a histogram, an object of ranges and counts, or an array
// of lengths.
const (
	Text    Format = "text" // a length a line
	CSV     Format = "csv"  // also separated by tabs or semicolons; lengths or a histogram
	JSONL   Format = "jsonl"
	JSON    Format = "json"
	Parquet Format = "parquet"
)

// FormatOf tells the format by the end of a file's name; false where it says
// nothing, as with "lengths" or "/dev/stdin", which are read as text.
func FormatOf(name string) (Format, bool) {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".txt", ".text", ".lengths":
		return Text, true
	case ".csv", ".tsv":
		return CSV, true
	case ".jsonl", ".ndjson":
		return JSONL, true
	case ".json":
		return JSON, true
	case ".parquet", ".pq":
		return Parquet, true
	}
	return Text, false
}

// Options says how a file is read.
type Options struct {
	Format Format // "" is that of the file's name
	Column string // name of the column of lengths; "" finds it if it is unambiguous
}

// Sample is the content of a file: lengths in order, or a histogram of them.
type Sample struct {
	Lengths   []units.Tokens
	Histogram *Histogram // nil if the file lists single lengths
}

// noDocument refuses evenkeel's own documents by their name: their first key is no length.
func noDocument(name string, r io.ReaderAt) error {
	head := make([]byte, 4<<10)
	n, _ := r.ReadAt(head, 0) // whose errors the reader of the format meets again
	if schema, err := doc.SchemaOf(head[:n]); err == nil && strings.HasPrefix(schema, "evenkeel.") {
		return fmt.Errorf("%s: is a document of schema %s, which lists no lengths: name a file of lengths, or see evenkeel show %s", name, shorten(schema), name)
	}
	return nil
}

// Read reads lengths or a histogram from r of the given size. name is the file's name in
// errors. A parquet file is read by random access, all others as a stream in little
// memory.
//
// Every error names the file, the line or row, the value and the way out.
func Read(name string, r io.ReaderAt, size int64, o Options) (*Sample, error) {
	format := o.Format
	if format == "" {
		format, _ = FormatOf(name)
	}
	if err := noText(name, r); err != nil {
		return nil, err
	}
	if format == JSON || format == JSONL {
		if err := noDocument(name, r); err != nil {
			return nil, err
		}
	}
	stream := io.NewSectionReader(r, 0, size)
	switch format {
	case Text:
		if o.Column != "" {
			return nil, fmt.Errorf("%s: is read as text, which has no columns: leave --column out, or call the file .csv, .jsonl or .parquet", name)
		}
		lengths, err := readText(name, stream)
		return &Sample{Lengths: lengths}, err
	case CSV:
		return readCSV(name, stream, o.Column)
	case JSONL:
		lengths, err := readJSONL(name, stream, o.Column)
		return &Sample{Lengths: lengths}, err
	case JSON:
		if o.Column != "" {
			return nil, fmt.Errorf("%s: is read as one JSON value, which has no columns: leave --column out, or write an object a line and call the file .jsonl", name)
		}
		return readJSON(name, stream)
	case Parquet:
		lengths, err := readParquet(name, r, size, o.Column)
		return &Sample{Lengths: lengths}, err
	}
	return nil, fmt.Errorf("%s: unknown format %q; there are text, csv, jsonl, json and parquet", name, format)
}

// noText is the error of a file that is not what its name says from its first byte on. A
// byte order mark before text is passed over.
func noText(name string, r io.ReaderAt) error {
	head := make([]byte, 3)
	n, _ := r.ReadAt(head, 0)
	if head = head[:n]; string(head) == "\ufeff" {
		return nil
	}
	if what, do := doc.WholeFile(head); do != "" {
		return fmt.Errorf("%s: %s; %s", name, what, do)
	}
	return nil
}

// readText reads a length a line. Blank lines and what follows a # are skipped.
func readText(name string, r io.Reader) ([]units.Tokens, error) {
	const longest = 64 << 10
	in := intake{name: name, unit: "line"}
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, longest)
	for scan.Scan() {
		in.at++
		line := scan.Text()
		if in.at == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := in.add(line); err != nil {
			return nil, err
		}
	}
	switch err := scan.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: longer than %d bytes: put one length on a line", name, in.at+1, longest)
	case err != nil:
		return nil, fmt.Errorf("%s:%d: %w", name, in.at+1, err)
	}
	return in.done()
}

// intake collects the lengths of one column of one file.
type intake struct {
	name    string
	column  string // "" if there are no columns
	unit    string // what `at` counts: lines or rows
	at      int
	lengths []units.Tokens
}

// bad is an error about the place that is being read.
func (in *intake) bad(format string, args ...any) error {
	place := fmt.Sprintf("%s:%d: ", in.name, in.at)
	if in.unit == "row" {
		place = fmt.Sprintf("%s: row %d: ", in.name, in.at)
	}
	if in.column != "" {
		place += fmt.Sprintf("column %s: ", in.column)
	}
	return fmt.Errorf("%s%w", place, fmt.Errorf(format, args...))
}

// add reads one length as it is written.
func (in *intake) add(text string) error {
	l, err := parseLength(text)
	if err != nil {
		return in.bad("%w", err)
	}
	return in.push(l)
}

func (in *intake) push(l units.Tokens) error {
	if len(in.lengths) >= MaxLengths {
		return in.bad("more than %d lengths: plan from a sample of them, or from a histogram", MaxLengths)
	}
	in.lengths = append(in.lengths, l)
	return nil
}

// done returns the lengths, of which there must be some.
func (in *intake) done() ([]units.Tokens, error) {
	if len(in.lengths) == 0 {
		return nil, fmt.Errorf("%s: holds no lengths: write the tokens of one sequence on each line", in.name)
	}
	return in.lengths, nil
}

// parseLength reads a length: a whole number, also as tables with gaps write
// it, "1024.0".
func parseLength(text string) (units.Tokens, error) {
	if v, err := strconv.ParseInt(text, 10, 64); err == nil && v >= 1 && v <= int64(MaxLength) {
		return units.Tokens(v), nil
	}
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case text == "":
		return 0, errors.New("empty: want the number of tokens of a sequence; leave sequences of unknown length out")
	case errors.Is(err, strconv.ErrRange) || err == nil && v > float64(MaxLength):
		return 0, fmt.Errorf("%s: above %d tokens: are these bytes or characters? of several columns name the one that counts tokens with --column", shorten(text), int64(MaxLength))
	case err != nil && thousands.MatchString(text):
		return 0, fmt.Errorf("%q: thousands set apart, or several lengths: put each on a line of its own, in digits alone", shorten(text))
	case err != nil && len(strings.FieldsFunc(text, isSeparator)) > 1:
		return 0, fmt.Errorf("%q: more than one value: put one length on a line, or name the file .csv and the column", shorten(text))
	case err != nil || math.IsNaN(v):
		return 0, fmt.Errorf("%q: is no number: want the tokens of a sequence, such as 8192", shorten(text))
	case v < 0:
		return 0, fmt.Errorf("%s: negative: want the tokens of a sequence, such as 8192", shorten(text))
	case v == 0:
		return 0, fmt.Errorf("%s: a sequence of no tokens trains nothing: leave it out", shorten(text))
	case v != math.Trunc(v):
		return 0, fmt.Errorf("%s: not a whole number of tokens: is this the right column?", shorten(text))
	}
	return units.Tokens(v), nil
}

// thousands are numbers as spreadsheets show them.
var thousands = regexp.MustCompile(`^\d{1,3}(,\d{3})+$`)

func isSeparator(r rune) bool { return r == ' ' || r == '\t' || r == ',' || r == ';' }

// shorten keeps a quoted value to what an error can show.
func shorten(text string) string {
	const most = 40
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// lengthNames are what data sets call a column of lengths.
func lengthNames() []string {
	return []string{
		"length", "lengths", "len", "n_tokens", "num_tokens", "token_count", "token_counts", "tokens", "ntokens", "seq_len", "seqlen", "seq_length",
		"sequence_length", "input_length", "token_length", "length_tokens",
	}
}

// choose picks the column that holds the lengths: the one named, else the only
// one, else the only one with a usual name.
func choose(name string, columns []string, want string) (int, error) {
	listed := strings.Join(quoted(columns), ", ")
	if want != "" {
		if i := slices.Index(columns, want); i >= 0 {
			if j := slices.Index(columns[i+1:], want); j >= 0 {
				return 0, fmt.Errorf("%s: columns %d and %d are both called %q: rename one, or say which by its number", name, i+1, i+j+2, shorten(want))
			}
			return i, nil
		}
		if i, err := strconv.Atoi(want); err == nil && i >= 1 && i <= len(columns) {
			return i - 1, nil
		}
		return 0, fmt.Errorf("%s: no column %q%s; there are %s", name, shorten(want), spelling.Hint(want, columns), listed)
	}
	if len(columns) == 1 {
		return 0, nil
	}
	found := -1
	for i, c := range columns {
		if !slices.Contains(lengthNames(), strings.ToLower(c)) {
			continue
		}
		if found >= 0 {
			return 0, fmt.Errorf("%s: both %q and %q may hold the lengths: say which with --column; there are %s", name, columns[found], c, listed)
		}
		found = i
	}
	if found < 0 {
		return 0, fmt.Errorf("%s: no column is called as lengths are: say with --column which holds them; there are %s", name, listed)
	}
	return found, nil
}

// quoted makes names safe to print, and few.
func quoted(names []string) []string {
	const most = 30
	var out []string
	for i, n := range names {
		if i == most {
			return append(out, fmt.Sprintf("and %d more", len(names)-most))
		}
		out = append(out, strconv.Quote(shorten(n)))
	}
	return out
}

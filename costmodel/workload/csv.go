package workload

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// readCSV reads lengths from a column, or a histogram from a column of ranges,
// bounds or lengths, or two of where bins begin and end, beside one of counts. The column is named, or given by its
// number from 1; a file without a header is one whose first line holds numbers.
// Commas, tabs and semicolons separate; lines that begin with # are skipped.
func readCSV(name string, r io.Reader, column string) (*Sample, error) {
	t, header, err := openCSV(name, r)
	if err != nil {
		return nil, err
	}
	if column == "" {
		if c, ok := findHistogram(t.columns, header); ok {
			h, err := t.histogram(c)
			return &Sample{Histogram: h}, err
		}
	}
	i, err := choose(name, t.columns, column)
	if err != nil {
		return nil, err
	}
	in := intake{name: name, column: t.columns[i], unit: "line"}
	if len(t.columns) == 1 && !header {
		in.column = ""
	}
	err = t.each(func(line int, cells []string) error {
		in.at = line
		return in.add(strings.TrimSpace(cells[i]))
	})
	if err != nil {
		return nil, err
	}
	lengths, err := in.done()
	return &Sample{Lengths: lengths}, err
}

// openCSV reads the first row: the names of the columns, or their numbers where
// it is no header.
func openCSV(name string, r io.Reader) (t *csvTable, header bool, err error) {
	limited := &recordLimit{r: r}
	buffered := bufio.NewReader(limited)
	if bom, err := buffered.Peek(3); err == nil && string(bom) == "\ufeff" {
		_, _ = buffered.Discard(3) // what was just peeked
	}
	rows := csv.NewReader(buffered)
	rows.ReuseRecord, rows.Comment, rows.Comma = true, '#', separator(buffered)
	first, err := rows.Read()
	switch {
	case errors.Is(err, io.EOF):
		return nil, false, fmt.Errorf("%s: is empty: write a header and the tokens of one sequence on each line", name)
	case err != nil:
		return nil, false, csvError(name, err)
	}
	t = &csvTable{name: name, rows: rows, limited: limited, columns: make([]string, len(first))}
	header = isHeader(first)
	for i, cell := range first {
		t.columns[i] = strconv.Itoa(i + 1)
		if header {
			t.columns[i] = strings.TrimSpace(cell)
		}
	}
	if !header {
		t.pending = slices.Clone(first)
		t.line, _ = rows.FieldPos(0)
	}
	return t, header, nil
}

// csvTable is a table that is read row by row.
type csvTable struct {
	name    string
	rows    *csv.Reader
	limited *recordLimit
	columns []string
	pending []string // the first row, where it is no header
	line    int      // of the first row
}

func (t *csvTable) each(row func(line int, cells []string) error) error {
	for {
		cells, err := t.pending, error(nil)
		line := t.line
		if t.pending = nil; cells == nil {
			t.limited.read = 0
			if cells, err = t.rows.Read(); err == nil {
				line, _ = t.rows.FieldPos(0)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return csvError(t.name, err)
		}
		if err := row(line, cells); err != nil {
			return err
		}
	}
}

// csvError puts the file's name and the line before the reader's complaint.
func csvError(name string, err error) error {
	var p *csv.ParseError
	switch {
	case errors.As(err, &p) && errors.Is(err, csv.ErrFieldCount):
		return fmt.Errorf("%s:%d: not as many fields as the first line has: is it cut off, or a separator too many?", name, p.Line)
	case errors.As(err, &p):
		return fmt.Errorf("%s:%d: %w: mend the quotes, or write the lengths alone, one a line", name, p.StartLine, p.Err)
	}
	return fmt.Errorf("%s: %w", name, err)
}

// separator is the most frequent one of the first line.
func separator(r *bufio.Reader) rune {
	head, _ := r.Peek(r.Size()) // a shorter file is no error here
	line, _, _ := strings.Cut(string(head), "\n")
	best := ','
	for _, c := range []rune{'\t', ';'} {
		if strings.Count(line, string(c)) > strings.Count(line, string(best)) {
			best = c
		}
	}
	return best
}

// isHeader: every cell is a name, or empty, and one is a name. Names begin with
// no digit, sign or point, so that a bad number is told and not taken for one.
func isHeader(cells []string) bool {
	names := 0
	for _, c := range cells {
		c = strings.TrimSpace(c)
		if c == "" {
			continue
		}
		if _, err := strconv.ParseFloat(c, 64); err == nil || strings.ContainsAny(c[:1], "0123456789+-.[(") {
			return false
		}
		names++
	}
	return names > 0
}

// recordLimit ends a record that does not end: a quote that is never closed
// would take the rest of the file into memory.
type recordLimit struct {
	r    io.Reader
	read int
}

const longestRecord = 64 << 20

func (l *recordLimit) Read(b []byte) (int, error) {
	if l.read > longestRecord {
		return 0, fmt.Errorf("a record longer than %d bytes: a quote is perhaps not closed", longestRecord)
	}
	n, err := l.r.Read(b)
	l.read += n
	return n, err
}

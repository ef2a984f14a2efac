package importer

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/internal/doc"
)

// csvVisitor is told what a table holds. The slices are valid during the call.
type csvVisitor struct {
	head func(columns []string) error         // names in lower case
	row  func(line int, cells []string) error // as many cells as columns
	bad  func(line int, reason string) error  // a line that is no row
	raw  func(first string) error             // before head: the first line as it stands; may refuse the file
}

// maxTableLine is longer than any row of a table; what has longer lines is
// something else.
const maxTableLine = 1 << 20

// readCSV reads comma-separated text line by line. A quoted cell ends on its
// line: encoding/csv would read the rest of a file into one cell where a quote
// is missing. A last line without its newline may have lost digits, so it is
// no row.
func readCSV(name string, r io.Reader, v csvVisitor) error {
	var columns, cells []string
	last := 0
	torn, err := doc.LineReader{MaxLine: maxTableLine}.Read(name, r, func(line int, data []byte) error {
		last = line
		text := string(data)
		if columns == nil {
			if strings.HasPrefix(text, "\xff\xfe") || strings.HasPrefix(text, "\xfe\xff") {
				return fmt.Errorf("%s: is UTF-16; save it as UTF-8", name)
			}
			text = strings.TrimPrefix(text, "\ufeff")
			columns = header(text)
			if v.raw != nil {
				if err := v.raw(text); err != nil {
					return err
				}
			}
			return v.head(columns)
		}
		var ok bool
		if cells, ok = split(cells[:0], text); !ok {
			return v.bad(line, "a quote is not closed")
		}
		switch {
		case len(cells) != len(columns):
			return v.bad(line, "the number of cells is not that of the header")
		case slices.EqualFunc(cells, columns, strings.EqualFold):
			return nil // files that were put one behind the other
		}
		return v.row(line, cells)
	})
	var e *doc.Error
	if errors.As(err, &e) && e.Hint != "" {
		e.Hint = "it is no table of one row a line"
	}
	switch {
	case err != nil:
		return err
	case columns == nil:
		return fmt.Errorf("%s: holds no complete line; a table begins with a line that names its columns", name)
	case torn:
		return v.bad(last+1, "the last line has no end: it may be cut short")
	}
	return nil
}

func header(text string) []string {
	names, _ := split(nil, text)
	for i, n := range names {
		names[i] = strings.ToLower(n)
	}
	return names
}

// split cuts a line at its commas and appends the cells, without quotes and
// outer spaces. It reports whether every quote is closed.
func split(cells []string, text string) ([]string, bool) {
	for {
		text = strings.TrimLeft(text, " \t")
		if !strings.HasPrefix(text, `"`) {
			cell, rest, more := strings.Cut(text, ",")
			cells = append(cells, strings.TrimRight(cell, " \t"))
			if !more {
				return cells, true
			}
			text = rest
			continue
		}
		cell, rest, ok := quotedCell(text[1:])
		if !ok {
			return cells, false
		}
		cells = append(cells, cell)
		rest = strings.TrimLeft(rest, " \t")
		if rest == "" {
			return cells, true
		}
		if rest[0] != ',' {
			return cells, false
		}
		text = rest[1:]
	}
}

// quotedCell reads up to the closing quote; two quotes stand for one.
func quotedCell(text string) (cell, rest string, ok bool) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, `"`)
		if !found {
			return "", "", false
		}
		b.WriteString(before)
		if !strings.HasPrefix(after, `"`) {
			return b.String(), after, true
		}
		b.WriteByte('"')
		text = after[1:]
	}
}

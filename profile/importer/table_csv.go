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
	head func(columns []string) error         // names in lower case; again where they come in another order
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
	x, last := csvLines{name: name, v: v}, 0
	torn, err := doc.LineReader{MaxLine: maxTableLine}.Read(name, r, func(line int, data []byte) error {
		last = line
		if x.columns == nil {
			return x.first(string(data))
		}
		return x.next(line, string(data))
	})
	var e *doc.Error
	if errors.As(err, &e) && e.Hint != "" {
		e.Hint = "it is no table of one row a line"
	}
	switch {
	case err != nil:
		return err
	case x.columns == nil:
		return fmt.Errorf("%s: holds no complete line; a table begins with a line that names its columns", name)
	case torn:
		return v.bad(last+1, "the last line has no end: it may be cut short")
	}
	return nil
}

// csvLines reads the lines of a table one by one.
type csvLines struct {
	name           string
	v              csvVisitor
	columns, cells []string // no columns before the first line; cells are used again
}

// first reads the line that names the columns.
func (x *csvLines) first(text string) error {
	if strings.HasPrefix(text, "\xff\xfe") || strings.HasPrefix(text, "\xfe\xff") {
		return fmt.Errorf("%s: is UTF-16; save it as UTF-8", x.name)
	}
	text = strings.TrimPrefix(text, "\ufeff")
	x.columns = header(text)
	if x.v.raw != nil {
		if err := x.v.raw(text); err != nil {
			return err
		}
	}
	return x.v.head(x.columns)
}

// next reads any other line.
func (x *csvLines) next(line int, text string) error {
	var ok bool
	if bare, marked := strings.CutPrefix(text, "\ufeff"); marked { // a file that was put behind another begins so
		if x.cells, ok = split(x.cells[:0], bare); ok && len(x.cells) == len(x.columns) && x.names() {
			text = bare
		}
	}
	if x.cells, ok = split(x.cells[:0], text); !ok {
		return x.v.bad(line, "a quote is not closed")
	}
	switch {
	case len(x.cells) != len(x.columns):
		return x.v.bad(line, "the number of cells is not that of the header")
	case slices.EqualFunc(x.cells, x.columns, strings.EqualFold):
		return nil // files that were put one behind the other
	case x.names():
		return x.again(line, header(text))
	}
	return x.v.row(line, x.cells)
}

// names says whether a line names columns as the first one does: half of its cells are
// names of those. No row has as many.
func (x *csvLines) names() bool {
	known := 0
	for _, c := range x.cells {
		if c != "" && slices.ContainsFunc(x.columns, func(n string) bool { return len(n) == len(c) && strings.EqualFold(n, c) }) {
			known++
		}
	}
	return known >= 2 && 2*known >= len(x.columns)
}

// again takes a header further down, of a table that was put behind another. The same names
// in another order hold for the rows below. With other names, such as that of another unit,
// the two are no one table.
func (x *csvLines) again(line int, named []string) error {
	if slices.Equal(slices.Sorted(slices.Values(named)), slices.Sorted(slices.Values(x.columns))) {
		x.columns = named
		return x.v.head(named)
	}
	what := "one of them twice"
	if i := slices.IndexFunc(named, func(n string) bool { return !slices.Contains(x.columns, n) }); i >= 0 {
		what = "with " + quoted(named[i]) + ", which is not among the first line's"
	}
	return fmt.Errorf("%s:%d: the line names columns again, %s; import what stands below it as a file of its own", x.name, line, what)
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

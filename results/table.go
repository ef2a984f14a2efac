package results

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
)

// Width is the most columns that anything here prints: two thirds of a wide
// terminal, and what a pull request shows without a scroll bar.
const Width = 120

// gap is the space between two columns.
const gap = "  "

// printer writes text until the first error, which it keeps: a rendering is
// dozens of writes and none of them has another way out.
type printer struct {
	w       io.Writer
	err     error
	further string // flags of every calibration that is advised
}

// advised is Advised with the printer's flags.
func (p *printer) advised(text string) string { return Advised(text, p.further) }

// Advised gives the command that a text advises at its end the flags that all have. What
// it is to measure replaces what another measured, and a longer one is not bounded in points.
func Advised(text, flags string) string {
	const command = "evenkeel calibrate"
	i := strings.LastIndex(text, command)
	if i < 0 || flags == "" {
		return text
	}
	before, own := text[:i+len(command)], text[i+len(command):]
	further := strings.Fields(flags)
	if strings.Contains(own, "--budget") {
		further = without(further, "--points")
	}
	for _, word := range strings.Fields(own) {
		if name, _, _ := strings.Cut(word, "="); strings.HasPrefix(name, "--") {
			further = without(further, strings.TrimRight(name, ".,;:)"))
		}
	}
	return strings.Join(append([]string{before}, further...), " ") + own
}

// without leaves a flag and its value out of flags.
func without(flags []string, flag string) []string {
	var kept []string
	for i := 0; i < len(flags); i++ {
		switch {
		case flags[i] == flag:
			if i+1 < len(flags) && !strings.HasPrefix(flags[i+1], "-") {
				i++
			}
		case !strings.HasPrefix(flags[i], flag+"="):
			kept = append(kept, flags[i])
		}
	}
	return kept
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, strings.Map(printable, fmt.Sprintf(format, args...)))
	}
}

// printable is a character, or a sign for one that a terminal would obey: documents come
// from anywhere, and their reasons, warnings and names are printed as they are.
func printable(r rune) rune {
	if unicode.IsControl(r) && r != '\n' && r != '\t' {
		return unicode.ReplacementChar
	}
	return r
}

// para prints a paragraph behind a head, broken between words at Width; its
// later lines hang below the text, by at least two spaces.
func (p *printer) para(head, text string) {
	indent := max(2, len(head))
	for i, line := range wrap(holdCommand(p.advised(text)), Width-indent) {
		if i > 0 {
			head = strings.Repeat(" ", indent)
		}
		p.printf("%s%s\n", head, strings.ReplaceAll(line, held, " "))
	}
}

// held stands for a space at which a line is not broken.
const held = "\x00"

// holdCommand keeps a command at the end of a text in one piece, so that it can
// be copied from the page.
func holdCommand(text string) string {
	i := strings.LastIndex(text, ": evenkeel ")
	if i < 0 {
		return text
	}
	return text[:i+2] + strings.ReplaceAll(text[i+2:], " ", held)
}

// column is one column of a table: its title, which may have several lines,
// whether it holds numbers (right-aligned), and the width at which its words
// are broken, 0 for never.
type column struct {
	title  string
	number bool
	most   int
}

// table collects rows under columns. Sections are lines across the table, so
// that what many rows share is said once.
type table struct {
	columns  []column
	rows     [][]string
	sections map[int]string // by the row they stand before
}

func newTable(columns ...column) *table {
	return &table{columns: columns, sections: map[int]string{}}
}

// row adds a row; a cell too many or too few is a mistake of the caller.
func (t *table) row(cells ...string) {
	if len(cells) != len(t.columns) {
		panic(fmt.Sprintf("results: %d cells for %d columns", len(cells), len(t.columns)))
	}
	for i, c := range t.columns {
		if c.most > 0 {
			cells[i] = strings.Join(wrap(cells[i], c.most), "\n")
		}
	}
	t.rows = append(t.rows, cells)
}

// section puts a line before the next row.
func (t *table) section(title string) { t.sections[len(t.rows)] = title }

// render lays the table out. There are no rules and no borders: columns are
// told apart by space, and numbers stand right-aligned under their title, so
// that what is printed can be read, copied and diffed.
func (t *table) render(p *printer) {
	if p.err != nil || len(t.rows) == 0 {
		return
	}
	var buf strings.Builder
	tb := tablewriter.NewTable(&buf, tablewriter.WithRenderer(renderer.NewBlueprint(bare())), tablewriter.WithConfig(t.config()))
	tb.Header(titlesOf(t.columns))
	if p.err = tb.Bulk(t.rows); p.err != nil {
		return
	}
	if p.err = tb.Render(); p.err == nil {
		t.print(p, strings.Split(strings.TrimSuffix(buf.String(), "\n"), "\n"))
	}
}

// print writes the rendered lines with the sections in between. Every row is as
// many lines as its tallest cell, so the lines tell where the rows begin.
func (t *table) print(p *printer, lines []string) {
	next := tallest(titlesOf(t.columns))
	for _, line := range lines[:next] {
		p.printf("%s\n", strings.TrimRight(line, " "))
	}
	for i, row := range t.rows {
		if s, ok := t.sections[i]; ok {
			p.printf("%s\n", s)
		}
		for _, line := range lines[next : next+tallest(row)] {
			p.printf("%s\n", strings.TrimRight(line, " "))
		}
		next += tallest(row)
	}
}

func titlesOf(columns []column) []string {
	var titles []string
	for _, c := range columns {
		titles = append(titles, c.title)
	}
	return titles
}

func tallest(cells []string) int {
	most := 1
	for _, c := range cells {
		most = max(most, 1+strings.Count(c, "\n"))
	}
	return most
}

func bare() tw.Rendition {
	return tw.Rendition{
		Borders: tw.BorderNone,
		Symbols: tw.NewSymbols(tw.StyleASCII),
		Settings: tw.Settings{
			Separators: tw.Separators{BetweenColumns: tw.Off, BetweenRows: tw.Off, ShowHeader: tw.Off},
			Lines:      tw.LinesNone,
		},
	}
}

func (t *table) config() tablewriter.Config {
	var align []tw.Align
	for _, c := range t.columns {
		if c.number {
			align = append(align, tw.AlignRight)
		} else {
			align = append(align, tw.AlignLeft)
		}
	}
	cells := tw.CellConfig{
		Formatting: tw.CellFormatting{AutoFormat: tw.Off, AutoWrap: tw.WrapNone},
		Alignment:  tw.CellAlignment{PerColumn: align},
		Padding:    tw.CellPadding{Global: tw.Padding{Right: gap, Overwrite: true}},
	}
	return tablewriter.Config{Header: cells, Row: cells, Behavior: tw.Behavior{TrimSpace: tw.Off}}
}

// wrap breaks text between words into lines of at most `width`; a longer word
// has a line of its own.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

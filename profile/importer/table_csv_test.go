package importer

import (
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func readAll(text string) (got []string, err error) {
	err = readCSV("x", strings.NewReader(text), csvVisitor{
		head: func(c []string) error { got = append(got, "head "+strings.Join(c, "|")); return nil },
		row: func(line int, cells []string) error {
			got = append(got, fmt.Sprintf("%d %s", line, strings.Join(cells, "|")))
			return nil
		},
		bad: func(line int, reason string) error {
			got = append(got, fmt.Sprintf("%d bad: %s", line, reason))
			return nil
		},
	})
	return got, err
}

func TestReadCSV(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"A,b\n1,2\n", []string{"head a|b", "2 1|2"}},
		{"\n\nA,b\r\n\r\n1,2\r\n", []string{"head a|b", "5 1|2"}},
		{"a,b\n1,\"x, y\"\n\"\",\"q\"\"q\"\n", []string{"head a|b", "2 1|x, y", `3 |q"q`}},
		{"a,b\n,\n", []string{"head a|b", "2 |"}},
		{"a,b\n1\n1,2,3\n1,\"2\n", []string{"head a|b", "2 bad: the number of cells is not that of the header", "3 bad: the number of cells is not that of the header", "4 bad: a quote is not closed"}},
		{"a,b\n1,2\n3,4", []string{"head a|b", "2 1|2", "3 bad: the last line has no end: it may be cut short"}},
		{"a,b\nA,B\n1,2\n", []string{"head a|b", "3 1|2"}},
	} {
		got, err := readAll(c.text)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v; want %q", c.text, got, err, c.want)
		}
	}
}

// What the standard library writes on one line is read back, but for spaces at
// the ends of cells.
func FuzzReadCSV(f *testing.F) {
	f.Add("1", "x, \"y\"", "")
	f.Add(" a ", "\"", "\ufeff,")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if strings.ContainsAny(a+b+c, "\r\n") {
			return
		}
		var text strings.Builder
		w := csv.NewWriter(&text)
		w.UseCRLF = len(a)%2 == 1
		want := []string{a, b, c}
		_ = w.Write([]string{"one", "two", "three"}) // to memory
		_ = w.Write(want)
		w.Flush()
		rows := 0
		err := readCSV("x", strings.NewReader(text.String()), csvVisitor{
			head: func([]string) error { return nil },
			bad:  func(_ int, reason string) error { return errors.New(reason) },
			row: func(_ int, cells []string) error {
				rows++
				for i := range want {
					if strings.Trim(cells[i], " \t") != strings.Trim(want[i], " \t") {
						return fmt.Errorf("%q, want %q", cells, want)
					}
				}
				return nil
			},
		})
		headAgain := strings.EqualFold(a, "one") && strings.EqualFold(b, "two") && strings.EqualFold(c, "three")
		if err != nil || rows != 1 && !headAgain {
			t.Fatalf("%q: %d rows, %v", text.String(), rows, err)
		}
	})
}

// Anything at all ends, and no row has another number of cells than the header.
func FuzzReadAnything(f *testing.F) {
	f.Add("a,b\n1,\"2\n\n3,4")
	f.Fuzz(func(t *testing.T, text string) {
		columns := 0
		_ = readCSV("x", strings.NewReader(text), csvVisitor{
			head: func(c []string) error { columns = len(c); return nil },
			bad:  func(int, string) error { return nil },
			row: func(line int, cells []string) error {
				if len(cells) != columns || line < 2 {
					t.Fatalf("line %d: %d cells of %d", line, len(cells), columns)
				}
				return nil
			},
		})
	})
}

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
		{"a,b\n1,2\nB,a\n3,4\na,b\n5,6\n", []string{"head a|b", "2 1|2", "head b|a", "4 3|4", "head a|b", "6 5|6"}},
		{"a,b,c\na,2,3\n", []string{"head a|b|c", "2 a|2|3"}}, // a word that is a name as well
	} {
		got, err := readAll(c.text)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v; want %q", c.text, got, err, c.want)
		}
	}
}

// A table put behind another may name its columns in another order, but no other ones:
// their rows would be read under the first one's names.
func TestHeadersFurtherDown(t *testing.T) {
	for text, want := range map[string]string{
		"a,b,c\n1,2,3\na,C,d\n": `x:3: the line names columns again, with "d", which is not among the first line's; import what stands below it`,
		"a,b,c\na,b,b\n":        `x:2: the line names columns again, one of them twice; import`,
	} {
		if _, err := readAll(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v\nwant %s", text, err, want)
		}
	}
	const head = "gpu,dtype,m,n,k,latency_us\nl4,bf16,64,128,256,9\n"
	m := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", head+"gpu,dtype,m,k,n,latency_us\nl4,bf16,64,256,128,9\n"))
	if got := shapesOf(m); len(got) != 2 || got[0] != got[1] {
		t.Errorf("%q", got)
	}
	m = mustImport(t, tableFormat(), Options{}, inMemory("a.csv", "\ufeff"+head+"\ufeff"+head)) // as spreadsheets write them
	if got := shapesOf(m); len(got) != 2 || got[0] != got[1] {
		t.Errorf("%q", got)
	}
	_, err := importInto(tableFormat(), Options{}, inMemory("a.csv", head+"gpu,dtype,m,n,k,latency_ms\nl4,bf16,64,128,256,0.009\n"))
	if err == nil || !strings.HasPrefix(err.Error(), `a.csv:3: the line names columns again, with "latency_ms"`) {
		t.Errorf("times in another unit: %v", err)
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
		names := 0 // of columns: such a row is a header again, or refused as one
		for _, c := range want {
			if slices.Contains([]string{"one", "two", "three"}, strings.ToLower(strings.Trim(c, " \t"))) {
				names++
			}
		}
		if names < 2 && (err != nil || rows != 1) {
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

package workload

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/parquet-go/parquet-go"
)

func readString(name, text, column string) (*Sample, error) {
	return Read(name, strings.NewReader(text), int64(len(text)), Options{Column: column})
}

func TestLengthsAreRead(t *testing.T) {
	for _, c := range []struct{ name, text, column, want string }{
		{"a.txt", "1024\n# a comment\n\n 17 # of a title\n2147483648", "", "[1024 17 2147483648]"},
		{"lengths", "\ufeff5\r\n6\r\n", "", "[5 6]"},
		{"a.txt", "1024.0\n1e3\n", "", "[1024 1000]"},
		{"a.csv", "5\n6\n", "", "[5 6]"},
		{"a.csv", "id,length\nx,5\ny,6\n", "", "[5 6]"},
		{"a.csv", ",n_tokens,text\n0,5,\"a\nb\"\n1,6,c\n", "", "[5 6]"},
		{"a.csv", "tokens,length\n1,5\n2,6\n", "tokens", "[1 2]"},
		{"a.csv", "3,5\n4,6\n", "2", "[5 6]"},
		{"a.tsv", "id\tlength\nx\t5\n", "", "[5]"},
		{"a.csv", "id;length\nx;5\n", "", "[5]"},
		{"a.csv", "length,count\n7,2\n", "length", "[7]"},
		{"a.jsonl", `{"text":"a","length":5}` + "\n\n" + `{"length":6,"text":"b"}`, "", "[5 6]"},
		{"a.jsonl", `{"x":5,"y":6}`, "y", "[6]"},
		{"a.jsonl", "5\n6\n", "", "[5 6]"},
		{"a.jsonl", `{"schema":"others/v1","length":5}`, "", "[5]"},
		{"a.json", "[5, 6]", "", "[5 6]"},
	} {
		s, err := readString(c.name, c.text, c.column)
		if err != nil {
			t.Errorf("%s %q: %v", c.name, c.text, err)
		} else if got := fmt.Sprintf("%d", s.Lengths); got != c.want || s.Histogram != nil {
			t.Errorf("%s %q: got %s, want %s", c.name, c.text, got, c.want)
		}
	}
}

func TestBadLengthsAreNamed(t *testing.T) {
	for _, c := range []struct{ name, text, column, want string }{
		{"a.txt", "", "", "a.txt: holds no lengths: write the tokens of one sequence on each line"},
		{"a.txt", "# none\n", "", "a.txt: holds no lengths: write the tokens of one sequence on each line"},
		{"a.txt", "\x1f\x8b\x08\x00", "", "a.txt: is compressed with gzip; decompress it first, such as with gunzip -k"},
		{"a.csv", "\x1f\x8b\x08\x00", "", "a.csv: is compressed with gzip; decompress it first, such as with gunzip -k"},
		{"a.jsonl", "\xff\xfe{\x00", "", "a.jsonl: is UTF-16; save it as UTF-8"},
		{"a.json", `{"schema": "evenkeel.plan/v2", "tool": "evenkeel 0.1.0", "cut": "of`, "", "a.json: is a document of schema evenkeel.plan/v2, which lists no lengths: name a file of lengths, or see evenkeel show a.json"},
		{"a.jsonl", "{\"schema\": \"evenkeel.recording/v1\"}\n{\"n\": 3}\n", "", "a.jsonl: is a document of schema evenkeel.recording/v1, which lists no lengths: name a file of lengths, or see evenkeel show a.jsonl"},
		{"a.txt", "5\nNaN\n", "", `a.txt:2: "NaN": is no number: want the tokens of a sequence, such as 8192`},
		{"a.txt", "5\n-3\n", "", "a.txt:2: -3: negative: want the tokens of a sequence, such as 8192"},
		{"a.txt", "0\n", "", "a.txt:1: 0: a sequence of no tokens trains nothing: leave it out"},
		{"a.txt", "1.5\n", "", "a.txt:1: 1.5: not a whole number of tokens: is this the right column?"},
		{"a.txt", "2147483649\n", "", "a.txt:1: 2147483649: above 2147483648 tokens: are these bytes or characters? of several columns name the one that counts tokens with --column"},
		{"a.txt", "1e999\n", "", "a.txt:1: 1e999: above 2147483648 tokens: are these bytes or characters? of several columns name the one that counts tokens with --column"},
		{"a.txt", "5 6\n", "", `a.txt:1: "5 6": more than one value: put one length on a line, or name the file .csv and the column`},
		{"a.csv", "id,length\nx,\"1,024\"\n", "", `a.csv:2: column length: "1,024": thousands set apart, or several lengths: put each on a line of its own, in digits alone`},
		{"a.csv", "range,count\n0-511,10\n512+,3\n", "", `a.csv:3: column range: "512+": has an open end: say where it begins and ends, as in 1025-2048`},
		{"a.json", `{"<512": 10}`, "", `a.json: "<512": has an open end: say where it begins and ends, as in 1025-2048`},
		{"a.json", `{"1,024": 10}`, "", `a.json: "1,024": thousands set apart, or a range? write a length as 1024, a range as 11-50 or [32,64)`},
		{"a.csv", "range,count\n\"1,024-2,048\",10\n", "", `a.csv:2: column range: "1,024-2,048": thousands set apart, or a range? write a length as 1024, a range as 11-50 or [32,64)`},
		{"a.json", `[{"length": 5}]`, "", `a.json: row 1: {"length": 5}: is no length: write the lengths alone, or an object on each line, without the brackets around all, and call the file .jsonl`},
		{"a.json", `[5, 6]`, "length", "a.json: is read as one JSON value, which has no columns: leave --column out, or write an object a line and call the file .jsonl"},
		{"a.txt", "5\n12x4", "", `a.txt:2: "12x4": is no number: want the tokens of a sequence, such as 8192`},
		{"a.txt", strings.Repeat("7", 70000), "", "a.txt:1: longer than 65536 bytes: put one length on a line"},
		{"a.txt", "5\n", "length", "a.txt: is read as text, which has no columns: leave --column out, or call the file .csv, .jsonl or .parquet"},
		{"a.csv", "", "", "a.csv: is empty: write a header and the tokens of one sequence on each line"},
		{"a.csv", "length\n", "", "a.csv: holds no lengths: write the tokens of one sequence on each line"},
		{"a.csv", "id,length\nx,5\ny\n", "", "a.csv:3: not as many fields as the first line has: is it cut off, or a separator too many?"},
		{"a.csv", "id,length\nx,5\n\"y,6\n", "", `a.csv:3: extraneous or missing " in quoted-field: mend the quotes, or write the lengths alone, one a line`},
		{"a.csv", "id,length\nx,5\ny,\n", "", "a.csv:3: column length: empty: want the number of tokens of a sequence; leave sequences of unknown length out"},
		{"a.csv", "id,length\nx,nan\n", "", `a.csv:2: column length: "nan": is no number: want the tokens of a sequence, such as 8192`},
		{"a.csv", "12x\n5\n", "", `a.csv:1: "12x": is no number: want the tokens of a sequence, such as 8192`},
		{"a.csv", "a,b\n1,2\n", "", `a.csv: no column is called as lengths are: say with --column which holds them; there are "a", "b"`},
		{"a.csv", "tokens,length\n1,2\n", "", `a.csv: both "tokens" and "length" may hold the lengths: say which with --column; there are "tokens", "length"`},
		{"a.csv", "tokens,length\n1,2\n", "lenght", `a.csv: no column "lenght" (did you mean "length"?); there are "tokens", "length"`},
		{"a.csv", "range,number\n\"[5, 2]\",3\n", "", `a.csv:2: column range: "[5, 2]": holds no length`},
		{"a.csv", "upper,count\n5,2\n5,1\n", "", "a.csv:3: column upper: 5: the bound before is 5: bounds must rise"},
		{"a.csv", "upper,count\n5,-2\n", "", `a.csv:2: column count: "-2": want a count or a share of 0 or more`},
		{"a.csv", "range,count\n1-5,0\n", "", "a.csv: in rising order, 1 bins with 0 lengths in all: want at least one"},
		{"a.csv", "range,count\n1-5,1\n5-9,1\n", "", "a.csv: in rising order, bin 2: begins at 5 tokens, and the one before ends at 5: bins must rise and not overlap"},
		{"a.jsonl", "", "", "a.jsonl: holds no lengths: write the tokens of one sequence on each line"},
		{"a.jsonl", `{"length":5}` + "\n" + `{"length":`, "", "a.jsonl:2: the object is cut off: remove the line, or write the file again"},
		{"a.jsonl", `{"length":5}` + "\n" + `{"len":6}`, "", `a.jsonl:2: no field "length"; there are "len"`},
		{"a.jsonl", `{"length":null}`, "length", "a.jsonl:1: column length: null: leave sequences of unknown length out"},
		{"a.jsonl", `{"length":"5"}`, "length", `a.jsonl:1: column length: "5": is no number: want the tokens of a sequence, such as 8192`},
		{"a.jsonl", `{"length":[1,2]}`, "length", "a.jsonl:1: column length: holds a list or an object: name the field that holds its number of tokens"},
		{"a.jsonl", `{"text":"a"}`, "", `a.jsonl:1: no field is a number: name the one that holds the tokens of the sequence; there are "text"`},
		{"a.jsonl", `{"length":2.5}`, "", "a.jsonl:1: column length: 2.5: not a whole number of tokens: is this the right column?"},
		{"a.jsonl", `{"length":5} {"length":6}`, "", "a.jsonl:1: is no JSON object: there is more behind it: put one object on a line"},
		{"a.json", "", "", "a.json: is empty or cut off: write an object of ranges and counts, or an array of lengths"},
		{"a.json", `{"[0,32)": 0.5`, "", "a.json: is empty or cut off: write an object of ranges and counts, or an array of lengths"},
		{"a.json", `{"[0,32)": NaN}`, "", "a.json: byte 12: invalid character 'N' at start of value: write an object of ranges and counts, or an array of lengths"},
		{"a.json", `[5, NaN]`, "", "a.json: byte 5: invalid character 'N' at start of value: write an object of ranges and counts, or an array of lengths"},
		{"a.jsonl", `{"length":NaN}`, "", "a.jsonl:1: is no JSON object: byte 11: invalid character 'N' at start of value"},
		{"a.json", `{"abc": 0.5}`, "", `a.json: "abc": is no number: want the tokens of a sequence, such as 8192`},
		{"a.json", `[5, 0]`, "", "a.json: row 2: 0: a sequence of no tokens trains nothing: leave it out"},
		{"a.json", `3`, "", "a.json: begins with 3: want an object of ranges and counts, or an array of lengths"},
		{"a.parquet", "PAR1", "", "a.parquet: does not end as a parquet file does: it was cut short or is damaged; write or fetch it again"},
	} {
		_, err := readString(c.name, c.text, c.column)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s %q:\n got %v\nwant %s", c.name, shorten(c.text), err, c.want)
		}
	}
}

func parquetFile[T any](t testing.TB, rows []T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[T](&b)
	if _, err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type tokensRow struct {
	Text   string   `parquet:"text"`
	Length int64    `parquet:"length"`
	Score  *float64 `parquet:"score"`
	IDs    []int32  `parquet:"ids"`
}

func TestParquetIsRead(t *testing.T) {
	var rows []tokensRow
	var want []units.Tokens
	for i := range 10_000 {
		v := float64(i + 1)
		rows = append(rows, tokensRow{strings.Repeat("a", i%50), int64(i%5000 + 1), &v, []int32{1, 2}})
		want = append(want, units.Tokens(i%5000+1))
	}
	rows[17].Score = nil
	half := 2.5
	rows[16].Score = &half
	data := parquetFile(t, rows)
	read := func(column string) ([]units.Tokens, error) {
		return readParquet("a.parquet", bytes.NewReader(data), int64(len(data)), column)
	}
	if got, err := read(""); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %d lengths, %v", len(got), err)
	}
	for column, want := range map[string]string{
		"score":    "a.parquet: row 17: column score: 2.5: not a whole number of tokens: is this the right column?",
		"ids":      "a.parquet: row 2: column ids: holds lists: name a column that holds their lengths",
		"text":     `a.parquet: row 1: column text: holds values of type BYTE_ARRAY, no numbers: name another column`,
		"n_tokens": `a.parquet: no column "n_tokens"; there are "text", "length", "score", "ids"`,
	} {
		if _, err := read(column); err == nil || err.Error() != want {
			t.Errorf("%s: got %v\nwant %s", column, err, want)
		}
	}
	rows[16].Score = rows[15].Score
	data = parquetFile(t, rows)
	if _, err := read("score"); err == nil || err.Error() != "a.parquet: row 18: column score: null: leave sequences of unknown length out" {
		t.Errorf("null: %v", err)
	}
}

// A damaged file is refused or read; it never panics and takes no more memory
// than it has bytes for.
func TestDamagedParquet(t *testing.T) {
	data := parquetFile(t, []struct {
		Length int32 `parquet:"length"`
	}{{5}, {6}, {7}})
	for i := range data {
		for _, b := range []byte{0, 0xff, data[i] ^ 1} {
			damaged := slices.Clone(data)
			damaged[i] = b
			if _, err := readParquet("a.parquet", bytes.NewReader(damaged), int64(len(damaged)), ""); err != nil && !strings.HasPrefix(err.Error(), "a.parquet") {
				t.Fatalf("byte %d: %v", i, err)
			}
		}
	}
	for n := range data {
		if _, err := readParquet("a.parquet", bytes.NewReader(data[:n]), int64(n), ""); err == nil {
			t.Fatalf("cut at %d: read", n)
		}
	}
}

func TestHistogramsAreRead(t *testing.T) {
	want := &Histogram{Bins: []Bin{{1, 10, 2}, {11, 50, 3}}}
	for name, text := range map[string]string{
		"range.csv": "range,number,percentage(%)\n\"[0, 10]\",2,40\n\"[11, 50]\",3,60\n",
		"upper.csv": "upper,count\n10,2\n50,3\n",
		"dash.csv":  "bucket;share\n11-50;3\n0-10;2\n",
		"half.json": `{"[0,11)": 2, "(10,50]": 3}`,
		"ends.csv":  "low,high,count\n0,10,2\n11,50,3\n",
		"edges.csv": "count,bin_end,bin_start\n3,51,11\n2,11,0\n",
	} {
		s, err := readString(name, text, "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !slices.Equal(s.Histogram.Bins, want.Bins) {
			t.Errorf("%s: got %v, want %v", name, s.Histogram.Bins, want.Bins)
		}
	}
	// Where the first bin begins counts, and what is called a length before it.
	for text, want := range map[string][]Bin{
		"lower,upper,count\n1000,2000,5\n":     {{1000, 2000, 5}},
		"start,end,length,count\n0,9,8,1\n":    {{8, 8, 1}},
		"min,max,share\n64,64,1\n65,100,0.5\n": {{64, 64, 1}, {65, 100, 0.5}},
	} {
		if s, err := readString("a.csv", text, ""); err != nil || !slices.Equal(s.Histogram.Bins, want) {
			t.Errorf("%q: %v, %v", text, s, err)
		}
	}
	for text, want := range map[string]string{
		"low,high,count\n-1,10,2\n":        "a.csv:2: column high: begins at -1: negative",
		"low,high,count\n1,10,2\n5,20,1\n": "bins must rise and not overlap",
		"low,high,count\n10,5,2\n":         "bin 1: 10 to 5 tokens: its end is before its beginning",
		"low,high,count\n1,x,2\n":          `a.csv:2: column high: "x": is no number`,
	} {
		if _, err := readString("a.csv", text, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	s, err := readString("value.csv", "length,count\n8,1\n4,3\n", "")
	if err != nil || !slices.Equal(s.Histogram.Bins, []Bin{{4, 4, 3}, {8, 8, 1}}) {
		t.Errorf("value.csv: %v, %v", s, err)
	}
}

func TestDrawsFollowTheHistogram(t *testing.T) {
	h := &Histogram{Bins: []Bin{{1, 10, 0.2}, {11, 50, 0.5}, {51, 60, 0}, {100, 1000, 0.3}, {1001, 2000, 0}}}
	if err := h.Validate(); err != nil {
		t.Fatal(err)
	}
	const n = 100_000
	got := h.Draw(n, 3)
	counts := make([]int, len(h.Bins))
	for _, l := range got {
		i := slices.IndexFunc(h.Bins, func(b Bin) bool { return b.Low <= l && l <= b.High })
		if i < 0 {
			t.Fatalf("%d is in no bin", l)
		}
		counts[i]++
	}
	for i, b := range h.Bins { // 5 standard deviations of a share
		if d := float64(counts[i])/n - b.Weight; math.Abs(d) > 5*math.Sqrt(0.25/n) || b.Weight == 0 && counts[i] > 0 {
			t.Errorf("bin %d: %d of %d", i, counts[i], n)
		}
	}
	if !slices.Equal(got[:50], h.Draw(50, 3)) || slices.Equal(got[:50], h.Draw(50, 4)) {
		t.Error("draws do not follow their seed alone")
	}
}

// A Pareto tail, of which only the shares in wide bins are known, is drawn again
// as it was, also beyond the last bound that is known.
func TestDrawsKeepATail(t *testing.T) {
	const fall, start = 1.7, 1000.0
	share := func(l float64) float64 { return math.Pow(l/start, -fall) } // of longer ones
	h := &Histogram{}
	last := units.Tokens(start - 1)
	for _, high := range []units.Tokens{4999, 19_999, 1 << 30} {
		h.Bins = append(h.Bins, Bin{Low: last + 1, High: high, Weight: share(float64(last+1)) - share(float64(high+1))})
		last = high
	}
	got := h.Draw(200_000, 5)
	for _, l := range []float64{2000, 8000, 40_000, 160_000} {
		n := 0
		for _, k := range got {
			if float64(k) >= l {
				n++
			}
		}
		want := share(l) * float64(len(got))
		if math.Abs(float64(n)-want) > 5*math.Sqrt(want) {
			t.Errorf("%d of %d reach %v, want %.0f", n, len(got), l, want)
		}
	}
}

// Published histograms of data sets, where they are at hand.
func TestRecordedHistogramsAreRead(t *testing.T) {
	dir := os.Getenv("EVENKEEL_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	files, err := filepath.Glob(filepath.Join(dir, "traces", "seqlen", "*.*"))
	if err != nil || len(files) == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the recordings are missing below %s; set EVENKEEL_DATA", dir)
		}
		t.Skipf("the recordings are missing below %s; set EVENKEEL_DATA to their folder", dir)
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		s, err := Read(path, f, info.Size(), Options{})
		if err != nil || s.Histogram == nil {
			t.Errorf("%v, %v", s, err)
			continue
		}
		if lines := bytes.Count(must2(os.ReadFile(path)), []byte("\n")); len(s.Histogram.Bins) < lines-2 {
			t.Errorf("%s: %d bins of %d lines", path, len(s.Histogram.Bins), lines)
		}
	}
}

func must2(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// millions is a million lengths in every format.
func millions(t testing.TB) map[string]string {
	type row struct {
		Length int64 `parquet:"length"`
	}
	rows := make([]row, 1_000_000)
	for i := range rows {
		rows[i].Length = int64(1 + i%5000)
	}
	return map[string]string{
		"a.txt":     strings.Repeat("1234\n567\n", 500_000),
		"a.csv":     "id,length\n" + strings.Repeat("a,1234\nb,567\n", 500_000),
		"a.jsonl":   strings.Repeat(`{"id":"a","length":1234}`+"\n", 1_000_000),
		"a.json":    "[" + strings.Repeat("1234,", 999_999) + "567]",
		"a.parquet": string(parquetFile(t, rows)),
	}
}

func TestAMillionLines(t *testing.T) {
	for name, text := range millions(t) {
		s, err := readString(name, text, "")
		if err != nil || len(s.Lengths) != 1_000_000 {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func BenchmarkMillionLines(b *testing.B) {
	for name, text := range millions(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := readString(name, text, ""); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func fuzzRead(f *testing.F, name string, seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s), "")
		f.Add([]byte(s), "length")
	}
	f.Fuzz(func(t *testing.T, data []byte, column string) {
		s, err := Read(name, bytes.NewReader(data), int64(len(data)), Options{Column: column})
		if err != nil {
			if !strings.HasPrefix(err.Error(), name) {
				t.Fatalf("the error does not name the file: %v", err)
			}
			return
		}
		if s.Histogram != nil {
			if err := s.Histogram.Validate(); err != nil {
				t.Fatal(err)
			}
			s.Lengths = s.Histogram.Draw(100, 1)
		}
		if len(s.Lengths) == 0 {
			t.Fatal("no lengths and no error")
		}
		for _, l := range s.Lengths {
			if l < 1 || l > MaxLength {
				t.Fatalf("length %d", l)
			}
		}
	})
}

func FuzzReadText(f *testing.F) { fuzzRead(f, "a.txt", "5\n6 # x\n", "NaN", "1e400\n", "\ufeff1") }

func FuzzReadCSV(f *testing.F) {
	fuzzRead(f, "a.csv", "id,length\nx,5\n", "range,number\n\"[0, 10]\",3\n", "upper,count\n5,1\n9,0\n", "low,high,count\n0,5,1\n5,9,2\n", "5\n6\n", "a;b\n\"", "length\n\n")
}

func FuzzReadJSONL(f *testing.F) {
	fuzzRead(f, "a.jsonl", `{"length":5}`+"\n"+`{"length":6}`, "5\n", `{"length":[`, `{}`, `{"a":{"b":1},"length":1e3}`)
}

func FuzzReadJSON(f *testing.F) {
	fuzzRead(f, "a.json", `{"[0,32)":0.5,"[32,64)":0.5}`, "[1,2]", "{", `{"1-2":1e308,"3-4":1e308}`)
}

func FuzzReadParquet(f *testing.F) {
	fuzzRead(f, "a.parquet", "PAR1", string(parquetFile(f, []struct {
		Length int32    `parquet:"length"`
		Score  *float64 `parquet:"score"`
	}{{5, nil}, {6, nil}})))
}

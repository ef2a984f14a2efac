package doc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
)

// collect returns the lines that o reads from in as "number:content" words.
func collect(o LineReader, in io.Reader) (got string, torn bool, err error) {
	var all []string
	torn, err = o.Read("x.rec.jsonl", in, func(line int, data []byte) error {
		all = append(all, fmt.Sprintf("%d:%s", line, data))
		return nil
	})
	return strings.Join(all, "|"), torn, err
}

func TestReadLines(t *testing.T) {
	for _, c := range []struct {
		in, want string
		torn     bool
		accepted string // with AcceptUnterminated
	}{
		{"", "", false, ""},
		{"a\n", "1:a", false, "1:a"},
		{"a\nb\n", "1:a|2:b", false, "1:a|2:b"},
		{"a\nb", "1:a", true, "1:a|2:b"},
		{"b", "", true, "1:b"},
		{"a\r\nb\r\n", "1:a|2:b", false, "1:a|2:b"},
		{"a\r\r\nb\r", "1:a\r", true, "1:a\r|2:b"},
		{"\n\na\n \t\nb\n", "3:a|5:b", false, "3:a|5:b"},
		{"a\n  ", "1:a", false, "1:a"},
		{"\r\n", "", false, ""},
		{"a\x00b\n\x00\x00", "1:a\x00b", true, "1:a\x00b|2:\x00\x00"},
	} {
		for _, chop := range []bool{false, true} {
			reader := func() io.Reader {
				if chop {
					return iotest.OneByteReader(strings.NewReader(c.in))
				}
				return strings.NewReader(c.in)
			}
			if got, torn, err := collect(LineReader{}, reader()); got != c.want || torn != c.torn || err != nil {
				t.Errorf("%q: %q torn=%v (%v), want %q torn=%v", c.in, got, torn, err, c.want, c.torn)
			}
			if got, torn, err := collect(LineReader{AcceptUnterminated: true}, reader()); got != c.accepted || torn || err != nil {
				t.Errorf("%q accepted: %q torn=%v (%v), want %q", c.in, got, torn, err, c.accepted)
			}
		}
	}
}

// TestLineLengths goes around every limit and buffer boundary.
func TestLineLengths(t *testing.T) {
	for _, limit := range []int{1, 5, readBuffer - 2, readBuffer - 1, readBuffer, readBuffer + 1, 3*readBuffer + 7} {
		for _, length := range []int{1, limit - 1, limit, limit + 1, limit + 2, 4 * readBuffer} {
			if length < 1 {
				continue
			}
			content := strings.Repeat("x", length)
			for _, end := range []string{"\n", "\r\n"} {
				got, torn, err := collect(LineReader{MaxLine: limit}, strings.NewReader(content+end+"y"+end))
				if length <= limit && (got != "1:"+content+"|2:y" || torn || err != nil) {
					t.Errorf("limit %d, length %d, end %q: %d bytes, %v, %v", limit, length, end, len(got), torn, err)
				}
				var e *Error
				if length > limit && (!errors.As(err, &e) || e.Line != 1 || got != "") {
					t.Errorf("limit %d, length %d, end %q: not refused: %v", limit, length, end, err)
				}
			}
		}
	}
}

func TestReadLinesErrors(t *testing.T) {
	const hint = "; it is damaged, or no file of one JSON object a line; delete the line or name another file"
	_, _, err := collect(LineReader{MaxLine: 10}, strings.NewReader("a\n\n0123456789ab\n"))
	if want := "x.rec.jsonl:3: a line of 12 bytes or more, and a line has at most 10" + hint; err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	broken := io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(syscall.EIO))
	got, torn, err := collect(LineReader{}, broken)
	if want := "x.rec.jsonl:2: cannot be read: input/output error"; err == nil || err.Error() != want || got != "1:a" || torn {
		t.Errorf("got %q torn=%v %v\nwant %s", got, torn, err, want)
	}
	stop := errors.New("enough")
	calls := 0
	torn, err = ReadLines("x", strings.NewReader("a\nb\nc"), 0, func(int, []byte) error { calls++; return stop })
	if err != stop || torn || calls != 1 {
		t.Errorf("error of f: %v after %d calls", err, calls)
	}
}

// endless gives x for ever and counts what was taken.
type endless struct{ taken int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	e.taken += len(p)
	return len(p), nil
}

// TestEndlessLine: a line of any length costs the limit, not its length.
func TestEndlessLine(t *testing.T) {
	e := &endless{}
	_, err := ReadLines("x.rec.jsonl", e, 1<<20, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "x.rec.jsonl:1: a line of 1114112 bytes or more, and a line has at most 1048576") {
		t.Errorf("got %v", err)
	}
	if e.taken > 1<<20+2*readBuffer {
		t.Errorf("read %d bytes of a line of at most %d", e.taken, 1<<20)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _ = ReadLines("x", &endless{}, 1<<20, nil)
	runtime.ReadMemStats(&after)
	// Doubling from 64 KiB to 1 MiB allocates less than 2 MiB in all.
	if n := after.TotalAlloc - before.TotalAlloc; n > 3<<20 {
		t.Errorf("%d bytes allocated to refuse a line of 1 MiB", n)
	}
}

func FuzzReadLines(f *testing.F) {
	f.Add([]byte("a\nb\r\n\n \nc"), uint8(3))
	f.Add([]byte("\r\r\n\x00"), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, limit uint8) {
		o := LineReader{MaxLine: 1 + int(limit)}
		// The naive way: split everything, look at each piece.
		var want []string
		long := false
		pieces := bytes.Split(data, []byte{'\n'})
		for i, p := range pieces {
			p = bytes.TrimSuffix(p, []byte{'\r'})
			if len(p) > o.MaxLine {
				long = true
				break
			}
			if len(bytes.TrimSpace(p)) > 0 && i < len(pieces)-1 {
				want = append(want, fmt.Sprintf("%d:%s", i+1, p))
			}
		}
		torn := !long && len(bytes.TrimSpace(pieces[len(pieces)-1])) > 0
		got, gotTorn, err := collect(o, bytes.NewReader(data))
		if got != strings.Join(want, "|") || gotTorn != torn || (err != nil) != long {
			t.Fatalf("%q limit %d: %q torn=%v %v, want %q torn=%v long=%v", data, o.MaxLine, got, gotTorn, err, want, torn, long)
		}
	})
}

func BenchmarkReadLines100k(b *testing.B) {
	data := bytes.Repeat([]byte(`{"op":"gemm","shape":{"q_len":4096,"kv_len":4096},"times_s":[0.001,0.00101,0.00099]}`+"\n"), 100_000)
	b.Run("lines", func(b *testing.B) { benchmarkLines(b, data, func(int, []byte) error { return nil }) })
	b.Run("decoded", func(b *testing.B) {
		var r record
		benchmarkLines(b, data, func(line int, data []byte) error { return DecodeStrict("x", line, data, &r) })
	})
}

func benchmarkLines(b *testing.B, data []byte, f func(int, []byte) error) {
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if torn, err := ReadLines("x", bytes.NewReader(data), 0, f); torn || err != nil {
			b.Fatal(torn, err)
		}
	}
}

// A folder has no lines: no number of one is named.
func TestLinesOfAFolder(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = ReadLines(dir, f, 0, func(int, []byte) error { return nil })
	if want := dir + ": cannot be read: is a directory; name a file in it"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

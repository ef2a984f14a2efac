package doc

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

type entry struct {
	ID   int            `json:"id"`
	Text string         `json:"text"`
	Raw  jsontext.Value `json:"raw,omitzero"`
}

func mustOpen(t *testing.T, path string) *Journal {
	t.Helper()
	j, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func mustAppend(t *testing.T, j *Journal, v any) {
	t.Helper()
	if err := j.Append(v); err != nil {
		t.Fatal(err)
	}
}

func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.rec.jsonl")
	j := mustOpen(t, path)
	mustAppend(t, j, entry{ID: 1, Text: "two\nlines", Raw: jsontext.Value("{\n \"a\": 1\n}")})
	mustAppend(t, j, map[string]int{"b": 2, "a": 1})
	const want = `{"id":1,"text":"two\nlines","raw":{"a":1}}` + "\n" + `{"a":1,"b":2}` + "\n"
	if got := readFile(t, path); got != want || j.Size() != int64(len(want)) || j.Dropped() != 0 {
		t.Errorf("size %d, dropped %d, file:\n%s", j.Size(), j.Dropped(), got)
	}
	if err := j.Close(); err != nil || j.Close() != nil {
		t.Errorf("close: %v", err)
	}
	j = mustOpen(t, path)
	mustAppend(t, j, entry{ID: 3})
	var lines []string
	err := j.Read(func(line int, data []byte) error {
		lines = append(lines, fmt.Sprintf("%d:%s", line, data))
		return nil
	})
	if got := strings.Join(lines, "|"); err != nil || got != `1:{"id":1,"text":"two\nlines","raw":{"a":1}}|2:{"a":1,"b":2}|3:{"id":3,"text":""}` {
		t.Errorf("%s, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o600 != 0o600 || info.Mode().Perm()&0o133 != 0 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// TestJournalTornAtEveryByte cuts a journal wherever a writer may have died, opens it
// again and goes on: every whole line is there once, and so is the next one.
func TestJournalTornAtEveryByte(t *testing.T) {
	dir := t.TempDir()
	whole := ""
	for i := range 4 {
		whole += fmt.Sprintf(`{"id":%d,"text":"%s"}`+"\n", i, strings.Repeat("é", i))
	}
	for cut := 0; cut <= len(whole); cut++ {
		path := filepath.Join(dir, fmt.Sprint(cut))
		if err := os.WriteFile(path, []byte(whole[:cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		kept := whole[:strings.LastIndexByte(whole[:cut], '\n')+1]
		j := mustOpen(t, path)
		if j.Dropped() != int64(cut-len(kept)) || j.Size() != int64(len(kept)) {
			t.Fatalf("cut at %d: dropped %d, size %d", cut, j.Dropped(), j.Size())
		}
		mustAppend(t, j, entry{ID: 9})
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if got := readFile(t, path); got != kept+`{"id":9,"text":""}`+"\n" {
			t.Fatalf("cut at %d: file\n%s", cut, got)
		}
	}
}

func TestJournalLongTornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	for _, extra := range []int{readBuffer - 1, readBuffer, readBuffer + 1, 3 * readBuffer} {
		if err := os.WriteFile(path, []byte("{}\n{"+strings.Repeat("x", extra)), 0o600); err != nil {
			t.Fatal(err)
		}
		j := mustOpen(t, path)
		if j.Dropped() != int64(extra+1) || readFile(t, path) != "{}\n" {
			t.Errorf("%d: dropped %d, file of %d bytes", extra, j.Dropped(), len(readFile(t, path)))
		}
		_ = j.Close()
	}
}

func TestOpenJournalErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	locked := filepath.Join(dir, "locked")
	mustOpen(t, locked)
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	const foreign = ": not a journal, each line of which is a whole JSON object; it was left as it is; choose another name"
	for _, c := range []struct{ path, want string }{
		{locked, ": another process is writing it; wait until it has ended, or choose another name"},
		{dir, ": cannot be opened: is a directory; choose another place"},
		{filepath.Join(locked, "x"), ": cannot be opened: not a directory; choose another place"},
		{filepath.Join(dir, "none", "x"), ": cannot be opened: no such file or directory; choose another place"},
		{pipe, ": not a regular file; a journal has to be one: choose another name"},
		{write("notes.txt", "dear diary"), `: "dear diary"` + foreign},
		{write("config.json", "{\n  \"hidden_size\": 4096\n}"), `: "{"` + foreign},
		{write("list.json", "[1,2]\n"), `: "[1,2]"` + foreign},
		{write("image", strings.Repeat("\x00", 2*readBuffer)), `: "` + strings.Repeat("\\x00", 37) + `..."` + foreign},
	} {
		before, _ := os.ReadFile(strings.TrimSuffix(c.path, "pipe"))
		if _, err := OpenJournal(c.path); err == nil || err.Error() != c.path+c.want {
			t.Errorf("got %v\nwant %s", err, c.path+c.want)
		}
		if after, _ := os.ReadFile(strings.TrimSuffix(c.path, "pipe")); string(after) != string(before) {
			t.Errorf("%s was changed from %q to %q", c.path, before, after)
		}
	}
	for name, content := range map[string]string{"zeros": "\x00\x00", "blank": "\n\n", "indented": "\n {\"a\":1}\n", "torn": `{"a`} {
		if _, err := OpenJournal(write(name, content)); err != nil {
			t.Error(err)
		}
	}
}

// TestJournalLockEnds: the lock is given up by Close, and by nothing else.
func TestJournalLockEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	j := mustOpen(t, path)
	if got := readFile(t, path); got != "" { // opening and closing it elsewhere in the process
		t.Fatal(got)
	}
	if _, err := OpenJournal(path); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Fatalf("second writer: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, path)
}

func TestAppendRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	j := mustOpen(t, path)
	for _, c := range []struct {
		v    any
		want string
	}{
		{[]int{1}, ": [1]: a journal line has to be a JSON object; nothing was written"},
		{(*entry)(nil), ": null: a journal line has to be a JSON object; nothing was written"},
		{map[string][]float64{"times_s": {1, math.NaN()}}, ": times_s[1]: unsupported value: NaN; nothing was written"},
		{entry{Text: "\xff"}, ": text: invalid UTF-8; nothing was written"},
		{entry{Text: strings.Repeat("x", MaxLine)}, fmt.Sprintf(": a line of %d bytes, and a line has at most %d; nothing was written; split it", MaxLine+len(`{"id":0,"text":""}`), MaxLine)},
	} {
		if err := j.Append(c.v); err == nil || err.Error() != path+c.want {
			t.Errorf("got %v\nwant %s", err, path+c.want)
		}
	}
	if got := readFile(t, path); got != "" {
		t.Errorf("file: %q", got)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	closed := path + ": the journal is closed; open it again"
	if err := j.Append(entry{}); err == nil || err.Error() != closed || !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := j.Read(nil); err == nil || err.Error() != closed {
		t.Errorf("got %v", err)
	}
}

// memoryFile is a disk that fails on request. A failing write leaves its first short
// bytes behind, as a full disk does.
type memoryFile struct {
	data                                []byte
	write, sync, truncate, read, closed error
	short                               int
	silent                              bool // a short write without an error
}

func (m *memoryFile) Write(p []byte) (int, error) {
	if m.write == nil && !m.silent {
		m.data = append(m.data, p...)
		return len(p), nil
	}
	n := min(m.short, len(p))
	m.data = append(m.data, p[:n]...)
	return n, m.write
}

func (m *memoryFile) ReadAt(p []byte, off int64) (int, error) {
	if m.read != nil {
		return 0, m.read
	}
	if off >= int64(len(m.data)) {
		return 0, io.EOF
	}
	n := copy(p, m.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memoryFile) Truncate(size int64) error {
	if m.truncate == nil {
		m.data = m.data[:size]
	}
	return m.truncate
}

func (m *memoryFile) Sync() error  { return m.sync }
func (m *memoryFile) Close() error { return m.closed }

// TestJournalOnFailingDisk: after each fault the file holds the acknowledged lines and
// no other byte, and the same line can be added once the fault is gone.
func TestJournalOnFailingDisk(t *testing.T) {
	const (
		one, two = `{"id":1,"text":""}` + "\n", `{"id":2,"text":""}` + "\n"
		hint     = "; all lines before it are safe; free space and run again"
	)
	for _, c := range []struct {
		fault memoryFile
		want  string
	}{
		{memoryFile{write: syscall.ENOSPC}, "no space left on device"},
		{memoryFile{write: syscall.ENOSPC, short: 7}, "no space left on device"},
		{memoryFile{write: syscall.EIO, short: len(two)}, "input/output error"},
		{memoryFile{silent: true, short: 7}, "short write"},
		{memoryFile{sync: syscall.EIO}, "input/output error"},
	} {
		m := c.fault
		m.write, m.sync, m.silent = nil, nil, false
		j, err := newJournal("x.rec.jsonl", &m, 0)
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, j, entry{ID: 1})
		m.write, m.sync, m.silent = c.fault.write, c.fault.sync, c.fault.silent
		want := "x.rec.jsonl: a line could not be added: " + c.want + hint
		for range 2 {
			if err := j.Append(entry{ID: 2}); err == nil || err.Error() != want {
				t.Errorf("got %v\nwant %s", err, want)
			}
			if string(m.data) != one || j.Size() != int64(len(one)) {
				t.Errorf("%s: size %d, file %q", c.want, j.Size(), m.data)
			}
		}
		m.write, m.sync, m.silent = nil, nil, false
		mustAppend(t, j, entry{ID: 2})
		if string(m.data) != one+two {
			t.Errorf("%s: file %q", c.want, m.data)
		}
	}
}

// TestJournalThatCannotBeCut: the torn line stays for now, no further line is put
// behind it, and it goes as soon as that is possible.
func TestJournalThatCannotBeCut(t *testing.T) {
	m := &memoryFile{write: syscall.ENOSPC, short: 4, truncate: syscall.EIO}
	j, err := newJournal("x", m, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := "x: a line could not be added: no space left on device, nor removed (input/output error): " +
		"the last line may be torn, or be there twice after the next run; all lines before it are safe; free space and run again"
	if err := j.Append(entry{}); err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	m.write = nil
	want = "x: a torn line cannot be removed: input/output error; what was acknowledged is safe; run again"
	if err := j.Append(entry{}); err == nil || err.Error() != want || string(m.data) != `{"id` {
		t.Errorf("got %v, file %q\nwant %s", err, m.data, want)
	}
	m.truncate = nil
	mustAppend(t, j, entry{ID: 5})
	if string(m.data) != `{"id":5,"text":""}`+"\n" {
		t.Errorf("file %q", m.data)
	}
	m.closed = syscall.EIO
	if err := j.Close(); err == nil || err.Error() != "x: cannot be closed: input/output error; check the disk" {
		t.Errorf("got %v", err)
	}
}

func TestNewJournalOnFailingDisk(t *testing.T) {
	for _, c := range []struct {
		m    memoryFile
		want string
	}{
		{memoryFile{read: syscall.EIO}, "x: cannot be read: input/output error; choose another name"},
		{memoryFile{truncate: syscall.EPERM}, "x: its torn last line cannot be removed: operation not permitted; copy the file to another place"},
		{memoryFile{sync: syscall.EIO}, "x: its torn last line cannot be removed: input/output error; copy the file to another place"},
	} {
		c.m.data = []byte("{}\n{")
		if _, err := newJournal("x", &c.m, 4); err == nil || err.Error() != c.want {
			t.Errorf("got %v\nwant %s", err, c.want)
		}
	}
}

func TestJournalFromManyGoroutines(t *testing.T) {
	j := mustOpen(t, filepath.Join(t.TempDir(), "x"))
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := j.Append(entry{ID: i}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[int]bool{}
	err := j.Read(func(line int, data []byte) error {
		var e entry
		err := DecodeStrict("x", line, data, &e)
		seen[e.ID] = true
		return err
	})
	if err != nil || len(seen) != 20 {
		t.Errorf("%d of 20 lines, %v", len(seen), err)
	}
}

func FuzzJournalReopen(f *testing.F) {
	f.Add([]byte(`{"id":1}` + "\n" + `{"id"`))
	f.Add([]byte("\x00\x00"))
	f.Add([]byte("{\n}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &memoryFile{data: append([]byte(nil), data...)}
		j, err := newJournal("x", m, int64(len(data)))
		if err != nil {
			checkError(t, err, data)
			if string(m.data) != string(data) {
				t.Fatalf("%q refused but changed to %q", data, m.data)
			}
			return
		}
		kept := string(data[:strings.LastIndexByte(string(data), '\n')+1])
		if j.Dropped() != int64(len(data)-len(kept)) || string(m.data) != kept {
			t.Fatalf("%q opened as %q, %d dropped", data, m.data, j.Dropped())
		}
		mustAppend(t, j, entry{ID: 1})
		again, err := newJournal("x", m, int64(len(m.data)))
		if err != nil || again.Dropped() != 0 || string(m.data) != kept+`{"id":1,"text":""}`+"\n" {
			t.Fatalf("%q, one line later: %q, %v", data, m.data, err)
		}
	})
}

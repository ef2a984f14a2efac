package doc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"
)

// journalFile is what a journal needs of its file, so that tests can fill the disk.
type journalFile interface {
	io.Writer // at the end, as with O_APPEND
	io.ReaderAt
	Sync() error
	Truncate(size int64) error
	Close() error
}

// Journal is a file of one JSON object a line that only grows, has one writer, and
// survives that writer's death at any moment. A line is acknowledged when
// [Journal.Append] has returned nil; it is then on the disk. A line that was not may
// still be found after a crash, but then it is whole.
type Journal struct {
	path    string
	mu      sync.Mutex
	f       journalFile // nil after Close
	size    int64       // end of the last acknowledged line
	dirty   bool        // there may be bytes beyond size
	dropped int64
}

// OpenJournal opens the journal at path for appending, or makes it, and locks it until
// [Journal.Close] or the end of the process. A last line without newline, left by a
// writer that died, is cut off: see [Journal.Dropped]. The error is an [*Error] that
// names path: the file cannot be opened, another process holds the lock, or the
// content is not lines of JSON objects, in which case nothing was changed.
func OpenJournal(path string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, fileMode)
	if err != nil {
		return nil, ioError(path, "cannot be opened", err, "choose another place")
	}
	j, err := openLocked(path, f)
	if err != nil {
		_ = f.Close() // err is the news; nothing was written through f
		return nil, err
	}
	return j, nil
}

func openLocked(path string, f *os.File) (*Journal, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, ioError(path, "cannot be opened", err, "choose another place")
	}
	if !info.Mode().IsRegular() {
		return nil, &Error{File: path, Msg: "not a regular file", Hint: "a journal has to be one: choose another name"}
	}
	if err := lock(path, f); err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err != nil { // again: another writer may have held it until now
		return nil, ioError(path, "cannot be opened", err, "choose another place")
	}
	if info.Size() == 0 {
		if err := syncDir(filepath.Dir(path)); err != nil {
			return nil, ioError(path, "cannot be made durable", err, "choose another place")
		}
	}
	return newJournal(path, f, info.Size())
}

// lock takes an exclusive lock without waiting. flock rather than fcntl: the latter is
// lost when the process closes any descriptor of the file, such as one it read from.
func lock(path string, f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for errors.Is(err, unix.EINTR) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return &Error{File: path, Msg: "another process is writing it", Hint: "wait until it has ended, or choose another name", Err: err}
	case err != nil:
		return ioError(path, "cannot be locked", err, "choose a place on a local disk")
	}
	return nil
}

// newJournal takes over an open file of the given size.
func newJournal(path string, f journalFile, size int64) (*Journal, error) {
	end, err := lastNewline(f, size)
	if err != nil {
		return nil, ioError(path, "cannot be read", err, "choose another name")
	}
	if err := checkContent(path, f, size, end); err != nil {
		return nil, err
	}
	if end < size {
		if err := f.Truncate(end); err != nil {
			return nil, ioError(path, "its torn last line cannot be removed", err, "copy the file to another place")
		}
		if err := f.Sync(); err != nil {
			return nil, ioError(path, "its torn last line cannot be removed", err, "copy the file to another place")
		}
	}
	return &Journal{path: path, f: f, size: end, dropped: size - end}, nil
}

// lastNewline returns the offset behind the last newline before size, or 0.
func lastNewline(r io.ReaderAt, size int64) (int64, error) {
	buf := make([]byte, readBuffer)
	for end := size; end > 0; {
		start := max(0, end-readBuffer)
		part := buf[:end-start]
		if _, err := r.ReadAt(part, start); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return start + int64(i) + 1, nil
		}
		end = start
	}
	return 0, nil
}

// checkContent refuses a file that was never a journal, before its last line is cut off
// and lines are added: a name given by mistake, such as a model's indented config.json,
// must not cost the user that file. A journal begins with a line that is an object or
// the torn beginning of one, or, where a machine lost power during its first line, with
// zeros.
func checkContent(path string, r io.ReaderAt, size, end int64) error {
	head := make([]byte, min(size, readBuffer))
	if _, err := r.ReadAt(head, 0); err != nil && err != io.EOF {
		return ioError(path, "cannot be read", err, "choose another name")
	}
	text := bytes.TrimLeft(head, " \t\r\n")
	first, _, whole := bytes.Cut(text, []byte{'\n'})
	unwritten := end == 0 && size <= readBuffer && len(bytes.Trim(head, "\x00")) == 0
	if len(text) == 0 || unwritten || text[0] == '{' && (!whole || jsontext.Value(first).IsValid()) {
		return nil
	}
	return &Error{
		File: path, Value: fmt.Sprintf("%q", shorten(firstWords(text))),
		Msg:  "not a journal, each line of which is a whole JSON object",
		Hint: "it was left as it is; choose another name",
	}
}

// Dropped returns how many bytes of a torn last line were cut off when opening.
func (j *Journal) Dropped() int64 { return j.dropped }

// Size returns the length of the journal in bytes: all acknowledged lines.
func (j *Journal) Size() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.size
}

// Read calls f with each acknowledged line, as [ReadLines] does: what a resumed run has
// to skip. f must not append to j.
func (j *Journal) Read(f func(line int, data []byte) error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.f == nil {
		return j.closed()
	}
	_, err := ReadLines(j.path, io.NewSectionReader(j.f, 0, j.size), 0, f)
	return err
}

// Append writes v, which must encode as a JSON object, as one line with one write, and
// returns nil once it is on the disk. After an error, such as a full disk, the line is
// cut off again, so that the journal stays readable and the same call can be repeated;
// the error is an [*Error] that names the file. Append may be called concurrently.
func (j *Journal) Append(v any) error {
	line, err := j.encode(v)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.f == nil {
		return j.closed()
	}
	if j.dirty {
		if err := j.rollBack(); err != nil {
			return ioError(j.path, "a torn line cannot be removed", err, "what was acknowledged is safe; run again")
		}
	}
	n, err := j.f.Write(line)
	if err == nil && n < len(line) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = j.f.Sync()
	}
	if err != nil {
		return j.failed(err)
	}
	j.size += int64(len(line))
	return nil
}

// failed undoes a write of which nothing is certain.
func (j *Journal) failed(cause error) error {
	e := ioError(j.path, "a line could not be added", cause, "all lines before it are safe; free space and run again")
	if err := j.rollBack(); err != nil {
		e.Msg += fmt.Sprintf(", nor removed (%s): the last line may be torn, or be there twice after the next run", reason(err))
	}
	return e
}

func (j *Journal) rollBack() error {
	err := j.f.Truncate(j.size)
	j.dirty = err != nil
	return err
}

func (j *Journal) encode(v any) ([]byte, error) {
	line, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return nil, encodeError(j.path, v, err)
	}
	if line[0] != '{' {
		return nil, &Error{File: j.path, Value: shorten(string(line)), Msg: "a journal line has to be a JSON object", Hint: hintNotWritten}
	}
	if len(line) > MaxLine {
		return nil, &Error{
			File: j.path, Msg: fmt.Sprintf("a line of %d bytes, and a line has at most %d", len(line), MaxLine),
			Hint: hintNotWritten + "; split it",
		}
	}
	return append(line, '\n'), nil
}

// Close gives up the lock and the file. A second Close does nothing.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.f == nil {
		return nil
	}
	err := j.f.Close()
	j.f = nil
	if err != nil {
		return ioError(j.path, "cannot be closed", err, "check the disk")
	}
	return nil
}

func (j *Journal) closed() error {
	return &Error{File: j.path, Msg: "the journal is closed", Hint: "open it again", Err: os.ErrClosed}
}

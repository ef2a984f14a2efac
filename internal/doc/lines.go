package doc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// MaxLine is the longest journal line in bytes, without its newline: what [ReadLines]
// accepts by default and [Journal.Append] writes at most.
const MaxLine = 16 << 20

// readBuffer is how much is read at once. A line that fits is handed on in place.
const readBuffer = 64 << 10

// LineReader reads a file of one JSON object a line. The zero value reads journals.
type LineReader struct {
	// MaxLine is the longest line accepted, in bytes without its newline; 0 means the
	// package's MaxLine.
	MaxLine int
	// AcceptUnterminated hands on a last line without newline as if it had one. It is
	// for files that others wrote: in a journal such a line was never acknowledged.
	AcceptUnterminated bool
}

// ReadLines is [LineReader.Read] for journals; maxLine 0 means [MaxLine].
func ReadLines(name string, r io.Reader, maxLine int, f func(line int, data []byte) error) (torn bool, err error) {
	return LineReader{MaxLine: maxLine}.Read(name, r, f)
}

// Read calls f with the number, from 1, and the content of each line of r, without its
// newline or CR LF; blank lines are counted and passed over. data is valid only during
// the call. torn says that the last line lacked its newline and was therefore dropped.
//
// It stops at the first error of f and returns it as it is. An error of its own is an
// [*Error] with name and line: r failed, or a line is too long, which is noticed
// without holding more than the limit in memory.
func (o LineReader) Read(name string, r io.Reader, f func(line int, data []byte) error) (torn bool, err error) {
	limit := o.MaxLine
	if limit <= 0 {
		limit = MaxLine
	}
	s := lineScanner{r: bufio.NewReaderSize(r, readBuffer), limit: limit}
	for line := 1; ; line++ {
		data, err := s.next()
		data = bytes.TrimSuffix(data, []byte{'\r'})
		switch {
		case err == errLineTooLong || len(data) > limit:
			return false, s.tooLong(name, line)
		case err != nil && err != io.EOF:
			e := readError(name, err)
			if !errors.Is(err, syscall.EISDIR) {
				e.Line = line
			}
			return false, e
		}
		last := err == io.EOF
		blank := len(bytes.TrimSpace(data)) == 0
		if last && !blank && !o.AcceptUnterminated {
			return true, nil
		}
		if !blank {
			if err := f(line, data); err != nil {
				return false, err
			}
		}
		if last {
			return false, nil
		}
	}
}

var errLineTooLong = errors.New("line too long")

type lineScanner struct {
	r     *bufio.Reader
	limit int
	long  []byte // a line that did not fit into r's buffer; reused
	seen  int    // bytes of the current line read so far
}

// next returns the next line without its newline, and io.EOF with the last one, which
// has none and may be empty.
func (s *lineScanner) next() ([]byte, error) {
	s.long, s.seen = s.long[:0], 0
	for {
		part, err := s.r.ReadSlice('\n')
		if err == nil {
			part = part[:len(part)-1]
		}
		s.seen += len(part)
		if s.seen > s.limit+1 { // one more: it may turn out to be the CR of a CR LF
			return nil, errLineTooLong
		}
		if err != bufio.ErrBufferFull && len(s.long) == 0 {
			return part, err
		}
		s.hold(part)
		if err != bufio.ErrBufferFull {
			return s.long, err
		}
	}
}

// hold appends part to the long line. append alone might allocate far more than the
// limit, since it doubles.
func (s *lineScanner) hold(part []byte) {
	if need := len(s.long) + len(part); need > cap(s.long) {
		grown := make([]byte, len(s.long), max(need, min(2*need, s.limit+1)))
		copy(grown, s.long)
		s.long = grown
	}
	s.long = append(s.long, part...)
}

func (s *lineScanner) tooLong(name string, line int) error {
	return &Error{
		File: name, Line: line,
		Msg:  fmt.Sprintf("a line of %d bytes or more, and a line has at most %d", s.seen, s.limit),
		Hint: "it is damaged, or no file of one JSON object a line; delete the line or name another file",
	}
}

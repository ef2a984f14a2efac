package importer

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// mender makes JSON of what profilers write: they print NaN and infinity as
// bare words (occupancy of an empty grid) and leave control characters and
// single backslashes in strings (names from other languages, paths); editors
// put a byte order mark before it. It also bounds the memory a value may take.
type mender struct {
	in    io.Reader
	buf   [1 << 15]byte
	out   []byte // mended
	next  int    // of out to hand out
	err   error
	depth int
	size  int // bytes since the last comma or bracket outside events
	state mendState
	word  []byte // a bare word so far
}

type mendState int

const (
	mendOutside mendState = iota
	mendWord
	mendString
	mendEscape
)

// maxEvent bounds one event, and any value outside events. The longest seen
// are call stacks of some 100 KB.
const maxEvent = 64 << 20

// eventDepth is how deep events lie: object, traceEvents, event.
const eventDepth = 3

// Read implements io.Reader.
func (m *mender) Read(p []byte) (int, error) {
	for m.next == len(m.out) && m.err == nil {
		m.fill()
	}
	n := copy(p, m.out[m.next:])
	m.next += n
	if n == 0 {
		return 0, m.err
	}
	return n, nil
}

func (m *mender) fill() {
	n, err := m.in.Read(m.buf[:])
	m.out, m.next = m.out[:0], 0
	for rest := m.buf[:n]; len(rest) > 0; {
		if m.state == mendString { // the greater part of a trace
			plain := plainLength(rest)
			m.out = append(m.out, rest[:plain]...)
			if rest = rest[plain:]; len(rest) == 0 {
				break
			}
		}
		m.step(rest[0])
		rest = rest[1:]
	}
	if err != nil {
		m.flush()
		m.err = err
	}
	if m.size += n; m.size > maxEvent && m.err == nil {
		m.err = fmt.Errorf("a value of more than %d bytes: not a trace of the PyTorch profiler", maxEvent)
	}
}

// plainLength is how many bytes of a string stand for themselves.
func plainLength(text []byte) int {
	for i, b := range text {
		if b == '"' || b == '\\' || b < ' ' {
			return i
		}
	}
	return len(text)
}

// step takes one byte.
func (m *mender) step(b byte) {
	switch m.state {
	case mendString:
		m.inString(b)
	case mendEscape:
		m.escaped(b)
	case mendWord:
		if wordByte(b) && len(m.word) < 32 {
			m.word = append(m.word, b)
			return
		}
		m.flush()
		m.outside(b)
	default:
		m.outside(b)
	}
}

func (m *mender) inString(b byte) {
	switch {
	case b == '\\':
		m.state = mendEscape
		return
	case b == '"':
		m.state = mendOutside
	case b < ' ':
		b = ' '
	}
	m.out = append(m.out, b)
}

// escaped takes the byte after a backslash. One that escapes nothing stands for
// itself.
func (m *mender) escaped(b byte) {
	m.state = mendString
	if strings.IndexByte(`"\/bfnrtu`, b) < 0 {
		m.out = append(m.out, '\\', '\\')
		m.inString(b)
		return
	}
	m.out = append(m.out, '\\', b)
}

func (m *mender) outside(b byte) {
	switch b {
	case '"':
		m.state = mendString
	case '{', '[':
		m.depth++
		m.restart()
	case '}', ']':
		m.depth--
		m.restart()
	case ',':
		m.restart()
	case 0xef, 0xbb, 0xbf: // a byte order mark
		return
	default:
		if wordByte(b) {
			m.state = mendWord
			m.word = append(m.word[:0], b)
			return
		}
	}
	m.out = append(m.out, b)
}

// restart begins a new count at the borders of events.
func (m *mender) restart() {
	if m.depth < eventDepth {
		m.size = 0
	}
}

// flush hands out a bare word: null for what is no number in JSON.
func (m *mender) flush() {
	if m.state != mendWord {
		return
	}
	m.state = mendOutside
	if last := m.word[len(m.word)-1]; last < '0' || last > '9' { // numbers are the rule
		switch string(bytes.TrimLeft(bytes.ToLower(m.word), "+-")) {
		case "nan", "inf", "infinity", "nan(ind)", "nan(snan)", "none":
			m.out = append(m.out, "null"...)
			return
		}
	}
	m.out = append(m.out, m.word...)
}

func wordByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '+' || b == '.' || b == '(' || b == ')'
}

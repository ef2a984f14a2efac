package doc

import (
	"bytes"
	"unicode/utf8"
)

// leafWidth is the most characters of an object or list that is put on one line.
const leafWidth = 120

// layOut puts every object and list that holds no other on a line of its own
// where it is short: a law has hundreds of numbers in pairs, which one below the
// other nobody reads and which would take twice the space. data is valid JSON,
// indented.
func layOut(data []byte) []byte {
	out := make([]byte, 0, len(data))
	open := -1 // where in out the innermost container begins, as long as it holds no other
	inText := false
	for i := 0; i < len(data); i++ {
		c := data[i]
		out = append(out, c)
		switch {
		case inText && c == '\\':
			i++
			out = append(out, data[i])
		case c == '"':
			inText = !inText
		case inText:
		case c == '{' || c == '[':
			open = len(out) - 1
		case c == '}' || c == ']':
			if open >= 0 {
				out = joined(out, open)
			}
			open = -1
		}
	}
	return out
}

// joined puts the container from `open` on, which ends the bytes, on one line
// if it fits.
func joined(out []byte, open int) []byte {
	lines := bytes.Split(out[open:], []byte("\n"))
	short := make([]byte, 0, leafWidth)
	for i, line := range lines {
		if i > 0 {
			line = bytes.TrimLeft(line, " ")
			if i > 1 && i < len(lines)-1 {
				short = append(short, ' ')
			}
		}
		short = append(short, line...)
	}
	if utf8.RuneCount(short) > leafWidth {
		return out
	}
	return append(out[:open], short...)
}

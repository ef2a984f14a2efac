package doc

import (
	"bytes"
	"unicode/utf8"
)

// leafWidth is the most characters of an object or list that is put on one line.
const leafWidth = 120

// layOut puts every object and list that holds no other on a line of its own
// where it is short, and fills lines with the numbers of a longer one: a law has
// hundreds of numbers, which one below the other nobody reads and which would take
// twice the space. data is valid JSON, indented.
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
// if it fits, and on as few as hold it if it has numbers alone.
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
	switch {
	case utf8.RuneCount(short) <= leafWidth:
		return append(out[:open], short...)
	case ofNumbers(lines):
		return append(out[:open], filled(lines)...)
	}
	return out
}

// ofNumbers says whether lines are a list's or an object's, each but the first and the last
// one number or a true or false, with its key in an object.
func ofNumbers(lines [][]byte) bool {
	for i, line := range lines {
		line = bytes.TrimLeft(line, " ")
		if i == 0 || i == len(lines)-1 {
			continue
		}
		if line[0] == '"' {
			_, line, _ = bytes.Cut(line, []byte(`": `))
		}
		if len(line) == 0 || !bytes.ContainsAny(line[:1], "-0123456789tf") {
			return false
		}
	}
	return true
}

// filled puts as many numbers on a line as leafWidth takes, the brackets on lines of
// their own.
func filled(lines [][]byte) []byte {
	out, width := bytes.Clone(lines[0]), leafWidth
	for _, line := range lines[1 : len(lines)-1] {
		number := bytes.TrimLeft(line, " ")
		if width += 1 + len(number); width <= leafWidth {
			out = append(append(out, ' '), number...)
			continue
		}
		out, width = append(append(out, '\n'), line...), len(number)
	}
	return append(append(out, '\n'), lines[len(lines)-1]...)
}

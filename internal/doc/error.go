package doc

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"
)

// maxShown is how many characters of a bad value or key an error repeats.
const maxShown = 40

// Error is trouble with a file: where it is, what stands there, what is wrong with
// it and the way out. Every part but File and Msg may be empty.
type Error struct {
	// File is the name as the caller gave it.
	File string
	// Line and Col count from 1; Col counts bytes. 0 is unknown.
	Line, Col int
	// Field is the path of the JSON value, such as shape.dims[3].n.
	Field string
	// Value is what stands there, as written, shortened to 40 characters.
	Value string
	// Msg says what is wrong.
	Msg string
	// Hint is the way out.
	Hint string
	// Err is the cause, for errors.Is and errors.As; Msg already tells it.
	Err error
}

// Error returns file:line: field: value: message; hint, without the absent parts. The
// column is told only where no field says more precisely where to look.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		b.WriteString(":" + strconv.Itoa(e.Line))
		if e.Col > 0 && e.Field == "" {
			b.WriteString(":" + strconv.Itoa(e.Col))
		}
	}
	for _, part := range []string{e.Field, e.Value, e.Msg} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// readError is an Error about a file that cannot be read.
func readError(path string, err error) *Error {
	hint := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Error{File: path, Msg: "no such file", Err: err}
	case errors.Is(err, syscall.EISDIR):
		hint = "name a file in it"
	case errors.Is(err, fs.ErrPermission):
		hint = "ask its owner for the right to, or name a copy"
	}
	return ioError(path, "cannot be read", err, hint)
}

// writeError is an Error about a file that could not be put in place; there was
// none before if there is not even a folder for it.
func writeError(path string, err error) *Error {
	hint := "the file is as it was; free space or choose another place"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = "make the folder it is to stand in, or choose another place"
	case errors.Is(err, fs.ErrPermission):
		hint = "choose a place that you may write to"
	}
	return ioError(path, "cannot be written", err, hint)
}

// ioError is an Error about the file as a whole.
func ioError(path, what string, err error, hint string) *Error {
	return &Error{File: path, Msg: what + ": " + reason(err), Hint: hint, Err: err}
}

// reason is the system's own word for err ("no space left on device"), without the
// operation and the temporary names that Go's errors put before it.
func reason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// shorten cuts s to maxShown characters, the last three being dots if it was longer.
func shorten(s string) string {
	if utf8.RuneCountInString(s) <= maxShown {
		return s
	}
	return string([]rune(s)[:maxShown-3]) + "..."
}

package doc

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
)

// WriteLines makes the JSON objects that fill hands to its argument, one a line,
// the content of path. It is [WriteAtomic] for what is too long to hold in
// memory: the lines go to a temporary file beside path, which is synced and
// renamed over it when fill has returned nil. After an error of fill, which is
// returned as it is, and after an [*Error] of the file system, path is as it was.
//
// The same values give the same bytes.
func WriteLines(path string, fill func(write func(line any) error) error) error {
	return writeLines(createExclusive, path, fill)
}

func writeLines(create createFunc, path string, fill func(write func(line any) error) error) error {
	target := Target(path)
	info, _ := os.Stat(target)
	if info != nil && !info.Mode().IsRegular() {
		return linesThrough(path, fill)
	}
	f, temp, err := createTemp(create, filepath.Dir(target), fileMode)
	if err != nil {
		return writeError(path, err)
	}
	l := &lines{path: path, f: f, w: bufio.NewWriterSize(f, readBuffer)}
	if err := l.finish(fill(l.write), true); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return l.publish(temp, target, info)
}

// publish gives the temporary file its name.
func (l *lines) publish(temp, target string, old fs.FileInfo) error {
	var err error
	if old != nil {
		err = os.Chmod(temp, old.Mode().Perm())
	}
	if err == nil {
		err = os.Rename(temp, target)
	}
	if err != nil {
		return writeError(l.path, errors.Join(err, os.Remove(temp)))
	}
	if err := syncDir(filepath.Dir(target)); err != nil {
		return ioError(l.path, "written, but it may not survive a power cut", err, "write it again")
	}
	return nil
}

// linesThrough writes to something that is there and is no regular file.
func linesThrough(path string, fill func(write func(line any) error) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return ioError(path, "cannot be written", err, "choose another name")
	}
	l := &lines{path: path, f: f, w: bufio.NewWriterSize(f, readBuffer)}
	return l.finish(fill(l.write), false)
}

// lines writes JSON objects to an open file.
type lines struct {
	path string
	f    writableFile
	w    *bufio.Writer
}

func (l *lines) write(v any) error {
	data, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return encodeError(l.path, v, err)
	}
	if _, err := l.w.Write(append(data, '\n')); err != nil {
		return writeError(l.path, err)
	}
	return nil
}

// finish closes the file after an error of whoever filled it, or with what is
// still buffered.
func (l *lines) finish(filled error, sync bool) error {
	if filled != nil {
		return errors.Join(filled, l.f.Close())
	}
	err := l.w.Flush()
	if err == nil && sync {
		err = l.f.Sync()
	}
	if err = errors.Join(err, l.f.Close()); err != nil {
		return writeError(l.path, err)
	}
	return nil
}

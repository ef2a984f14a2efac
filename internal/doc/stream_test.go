package doc

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// numbered writes n lines.
func numbered(n int) func(write func(any) error) error {
	return func(write func(any) error) error {
		for i := range n {
			if err := write(map[string]int{"line": i}); err != nil {
				return err
			}
		}
		return nil
	}
}

// left lists what lies in a directory.
func left(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestWriteLines(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.jsonl")
	for _, n := range []int{3, 20_000, 0} { // each over the one before
		if err := WriteLines(path, numbered(n)); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil || strings.Count(string(data), "\n") != n || n > 0 && !strings.HasPrefix(string(data), "{\"line\":0}\n") {
			t.Fatalf("%d lines: %.40q, %v", n, data, err)
		}
		if got := left(t, dir); got != "x.jsonl" {
			t.Errorf("left over: %s", got)
		}
	}
}

// A file keeps its content, and nothing is left over, whatever fails.
func TestWriteLinesFailures(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.jsonl")
	if err := os.WriteFile(path, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("no more")
	fails := func(write func(any) error) error {
		if err := write("x"); err != nil {
			return err
		}
		return stop
	}
	if err := WriteLines(path, fails); !errors.Is(err, stop) || err.Error() != "no more" {
		t.Errorf("the error of fill: %v", err)
	}
	if err := WriteLines(path, func(write func(any) error) error { return write(math.NaN()) }); err == nil || !strings.Contains(err.Error(), "x.jsonl: ") {
		t.Errorf("NaN: %v", err)
	}
	if err := WriteLines(filepath.Join(dir, "no", "x"), numbered(1)); err == nil || !strings.Contains(err.Error(), "cannot be written: no such file or directory") {
		t.Errorf("no folder: %v", err)
	}
	for _, c := range []struct {
		name string
		file fullFile
		want string
	}{
		{"write", fullFile{write: syscall.ENOSPC}, "no space left on device"},
		{"sync", fullFile{sync: syscall.EIO}, "input/output error"},
		{"close", fullFile{close: syscall.EDQUOT}, "disk quota exceeded"},
	} {
		create := func(name string, mode fs.FileMode) (writableFile, error) {
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
			c.file.File = f
			return &c.file, err
		}
		err := writeLines(create, path, numbered(20_000))
		if err == nil || !strings.Contains(err.Error(), path+": cannot be written: "+c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if data, _ := os.ReadFile(path); string(data) != "old\n" || left(t, dir) != "x.jsonl" {
		t.Errorf("%q, left over: %s", data, left(t, dir))
	}
	if err := WriteLines(path, numbered(1)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: permissions are to stay", info.Mode(), err)
	}
}

// A link stays one, and what is no regular file is written to as it is.
func TestWriteLinesElsewhere(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(target, nil, 0o644), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	if err := WriteLines(link, numbered(1)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	if data, _ := os.ReadFile(target); err != nil || info.Mode()&fs.ModeSymlink == 0 || string(data) != "{\"line\":0}\n" {
		t.Errorf("%v, %q, %v", info.Mode(), data, err)
	}
	if err := WriteLines("/dev/null", numbered(3)); err != nil {
		t.Errorf("/dev/null: %v", err)
	}
	if err := WriteLines("/dev/full", numbered(3)); err == nil || !strings.Contains(err.Error(), "/dev/full: cannot be written: no space left on device") {
		t.Errorf("/dev/full: %v", err)
	}
	if err := WriteLines(dir, numbered(3)); err == nil {
		t.Error("a folder was written to")
	}
}

// fullFile fails where it is told to.
type fullFile struct {
	*os.File
	write, sync, close error
}

func (f *fullFile) Write(p []byte) (int, error) {
	if f.write != nil {
		return 0, f.write
	}
	return f.File.Write(p)
}

func (f *fullFile) Sync() error { return errors.Join(f.sync, f.File.Sync()) }

func (f *fullFile) Close() error { return errors.Join(f.close, f.File.Close()) }

package doc

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// faultyFile fails one of its operations; the rest reach the file on disk.
type faultyFile struct {
	*os.File
	write, sync, close error
	short              int // bytes that a failing Write still writes
}

func (f *faultyFile) Write(p []byte) (int, error) {
	if f.write == nil {
		return f.File.Write(p)
	}
	n, err := f.File.Write(p[:min(f.short, len(p))])
	return n, errors.Join(err, f.write)
}

func (f *faultyFile) Sync() error {
	if f.sync != nil {
		return f.sync
	}
	return f.File.Sync()
}

func (f *faultyFile) Close() error { return errors.Join(f.File.Close(), f.close) }

// failing returns a createFunc whose files have the faults of f.
func failing(f faultyFile) createFunc {
	return func(path string, mode fs.FileMode) (writableFile, error) {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		f := f
		f.File = file
		return &f, err
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var faults = []struct {
	f    faultyFile
	want string
}{
	{faultyFile{write: syscall.ENOSPC, short: 3}, "no space left on device"},
	{faultyFile{write: syscall.EDQUOT}, "disk quota exceeded"},
	{faultyFile{sync: syscall.EIO}, "input/output error"},
	{faultyFile{close: syscall.EROFS}, "read-only file system"},
}

func TestWriteAtomicFailures(t *testing.T) {
	for _, c := range faults {
		dir := t.TempDir()
		path := filepath.Join(dir, "x.json")
		if err := WriteAtomic(path, []byte("old")); err != nil {
			t.Fatal(err)
		}
		err := writeAtomic(failing(c.f), path, []byte("new content"))
		want := path + ": cannot be written: " + c.want + "; the file is as it was; free space or choose another place"
		if err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
		if readFile(t, path) != "old" || names(t, dir) != "x.json" {
			t.Errorf("%s: file %q, directory %s", c.want, readFile(t, path), names(t, dir))
		}
	}
}

func TestWriteAtomicPlaces(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	for _, content := range []string{"one", "two, longer", ""} {
		if err := WriteAtomic(file, []byte(content)); err != nil || readFile(t, file) != content {
			t.Errorf("%q: %v, file %q", content, err, readFile(t, file))
		}
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none", "x"): ": cannot be written: no such file or directory; make the folder it is to stand in, or choose another place",
		filepath.Join(file, "x"):        ": cannot be written: not a directory; the file is as it was; free space or choose another place",
		dir:                             ": cannot be written: is a directory; choose another name",
		"/dev/full":                     ": cannot be written: no space left on device; choose another name",
	} {
		if err := WriteAtomic(path, []byte("x")); err == nil || err.Error() != path+want {
			t.Errorf("got %v\nwant %s", err, path+want)
		}
	}
	if names(t, dir) != "file" {
		t.Errorf("left behind: %s", names(t, dir))
	}
	long := filepath.Join(dir, strings.Repeat("n", 255)) // the longest name that Linux allows
	if err := WriteAtomic(long, []byte("x")); err != nil || readFile(t, long) != "x" {
		t.Errorf("longest name: %v", err)
	}
}

func TestWriteAtomicKeepsModeAndLink(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	if err := WriteAtomic(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	if err != nil || info.Mode().Type() != fs.ModeSymlink || readFile(t, file) != "new" {
		t.Errorf("link is %v, file %q", info.Mode(), readFile(t, file))
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	// runs -> data/runs, whose latest is ../store/latest: beside data/runs, not beside runs.
	runs, store := filepath.Join(dir, "data", "runs"), filepath.Join(dir, "data", "store")
	if err := errors.Join(os.MkdirAll(runs, 0o700), os.MkdirAll(store, 0o700), os.Symlink(runs, filepath.Join(dir, "runs")), os.Symlink("../store/latest", filepath.Join(runs, "latest"))); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"made", "anew"} {
		if err := WriteAtomic(filepath.Join(dir, "runs", "latest"), []byte(data)); err != nil || readFile(t, filepath.Join(store, "latest")) != data {
			t.Errorf("through a linked folder: %v", err)
		}
	}
	first, later := filepath.Join(dir, "first"), filepath.Join(dir, "later")
	if err := errors.Join(os.Symlink(first, filepath.Join(dir, "to")), os.Symlink("to", later)); err != nil {
		t.Fatal(err)
	}
	err = WriteAtomic(later, []byte("made"))
	if info, is := os.Lstat(later); err != nil || is != nil || info.Mode().Type() != fs.ModeSymlink || readFile(t, first) != "made" {
		t.Errorf("a link to nothing yet is %v, %v, %v", info.Mode(), is, err)
	}
}

// TestWriteAtomicToPipe: a rename would have put a file in the pipe's place.
func TestWriteAtomicToPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	go func() {
		f, err := os.Open(path)
		if err != nil {
			got <- err.Error()
			return
		}
		defer f.Close()
		b, _ := io.ReadAll(f)
		got <- string(b)
	}()
	if err := WriteAtomic(path, []byte("through")); err != nil {
		t.Error(err)
	}
	if s := <-got; s != "through" {
		t.Errorf("the pipe gave %q", s)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		t.Errorf("the pipe is now %v, %v", info.Mode(), err)
	}
}

// TestWriteAtomicPassesOverLeftovers: another process with our number, on another host
// or before a reboot, may have left its temporary file.
func TestWriteAtomicPassesOverLeftovers(t *testing.T) {
	dir := t.TempDir()
	f, leftover, err := createTemp(createExclusive, dir, fileMode)
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x")
	if err := WriteAtomic(path, []byte("x")); err != nil || readFile(t, path) != "x" {
		t.Error(err)
	}
	if _, err := os.Stat(leftover); err != nil {
		t.Error("somebody else's file was taken away")
	}
}

func TestProbe(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, "a", "b")
	if err := Probe(deep); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(deep); err != nil || !info.IsDir() || names(t, deep) != "" {
		t.Errorf("after probing: %v, %s", err, names(t, deep))
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		file:                     ": cannot make this directory: not a directory; choose another directory",
		filepath.Join(file, "x"): ": cannot make this directory: not a directory; choose another directory",
	} {
		if err := Probe(path); err == nil || err.Error() != path+want {
			t.Errorf("got %v\nwant %s", err, path+want)
		}
	}
	// procfs takes no files, from root neither; the reason it gives depends on the kernel.
	if err := Probe("/proc"); err == nil || !strings.HasPrefix(err.Error(), "/proc: cannot write in this directory: ") {
		t.Errorf("got %v", err)
	}
	for _, c := range faults {
		want := deep + ": cannot write in this directory: " + c.want + "; choose another directory"
		if err := probe(failing(c.f), deep); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
		if names(t, deep) != "" {
			t.Errorf("left behind: %s", names(t, deep))
		}
	}
	denied := func(string, fs.FileMode) (writableFile, error) {
		return nil, &fs.PathError{Op: "open", Path: ".evenkeel-1-0.tmp", Err: syscall.EACCES}
	}
	if err := probe(denied, deep); err == nil || err.Error() != deep+": cannot write in this directory: permission denied; choose another directory" {
		t.Errorf("got %v", err)
	}
}

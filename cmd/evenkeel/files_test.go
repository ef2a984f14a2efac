package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestAFileThatMayNotBeReadIsSaidToBeOne(t *testing.T) {
	got := openError(&fs.PathError{Op: "open", Path: "x.rec.jsonl", Err: syscall.EACCES}).Error()
	if want := "x.rec.jsonl: cannot be read: permission denied; ask its owner for the right to, or name a copy"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// Beside /dev/null only root may make files, beside what /proc/self/fd holds nobody.
func TestAPipeIsWritableWhereNoFileCanBeMadeBesideIt(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := (output{flag: "-o", path: fmt.Sprintf("/proc/self/fd/%d", w.Fd())}).probe(); err != nil {
		t.Error(err)
	}
	if (output{flag: "-o", path: t.TempDir()}).probe() == nil {
		t.Error("a folder can be written to like a file")
	}
}

// A file is read as far as its schema should be: that it goes on does not make it torn.
func TestAnotherLongFileIsNotTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "long.json")
	if err := os.WriteFile(path, []byte(`{"a": "`+strings.Repeat("x", sniffed)+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sniff(path); err == nil || !strings.Contains(err.Error(), `no "schema" key in its first 65536 bytes; name a recording`) {
		t.Error(err)
	}
}

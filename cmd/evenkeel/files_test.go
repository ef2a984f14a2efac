package main

import (
	"fmt"
	"io/fs"
	"os"
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
	if err := probe(fmt.Sprintf("/proc/self/fd/%d", w.Fd())); err != nil {
		t.Error(err)
	}
	if probe(t.TempDir()) == nil {
		t.Error("a folder can be written to like a file")
	}
}

package main

import (
	"io/fs"
	"syscall"
	"testing"
)

func TestAFileThatMayNotBeReadIsSaidToBeOne(t *testing.T) {
	got := openError(&fs.PathError{Op: "open", Path: "x.rec.jsonl", Err: syscall.EACCES}).Error()
	if want := "x.rec.jsonl: cannot be read: permission denied; ask its owner for the right to, or name a copy"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

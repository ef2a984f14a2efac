package torch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindPythonSaysWhyNoneWillDo(t *testing.T) {
	path, version, refused, err := FindPython(t.Context(), "/no/such/python")
	var missing *NoTorchError
	if !errors.As(err, &missing) || path != "" || version != "" || len(refused) != 1 || !strings.Contains(err.Error(), "/no/such/python: no such program") {
		t.Errorf("%q %q %q %v", path, version, refused, err)
	}
}

// An interpreter of a virtual environment is named from where one stands.
func TestFindPythonByARelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("python", []byte("#!/bin/sh\necho no torch in here >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := FindPython(t.Context(), "./python"); err == nil || !strings.Contains(err.Error(), "no torch in here") {
		t.Error(err)
	}
}

// A program that is no Python says so in a sentence of its own, whose full stop ends none
// of ours: /bin/sleep wants to be tried with --help for more information.
func TestFindPythonEndsASentenceOnce(t *testing.T) {
	python := filepath.Join(t.TempDir(), "sleep")
	if err := os.WriteFile(python, []byte("#!/bin/sh\necho 'Try --help for more information.' >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := FindPython(t.Context(), python); err == nil || !strings.Contains(err.Error(), "information. Install torch") {
		t.Error(err)
	}
}

func TestTorchFindPython(t *testing.T) {
	path, version, refused, err := FindPython(t.Context(), "")
	var missing *NoTorchError
	if errors.As(err, &missing) && os.Getenv("EVENKEEL_NEED_TORCH") == "" {
		t.Skipf("%v (make test-torch installs it and makes this an error)", err)
	}
	if err != nil || path == "" || version == "" {
		t.Errorf("%q %q %q %v", path, version, refused, err)
	}
}

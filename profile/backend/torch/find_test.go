package torch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFindPythonSaysWhyNoneWillDo(t *testing.T) {
	path, version, refused, err := FindPython(t.Context(), "/no/such/python", nil)
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
	if _, _, _, err := FindPython(t.Context(), "./python", nil); err == nil || !strings.Contains(err.Error(), "no torch in here") {
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
	if _, _, _, err := FindPython(t.Context(), python, nil); err == nil || !strings.Contains(err.Error(), "information. Install torch") {
		t.Error(err)
	}
}

// Who waits hears for what: an interpreter may take a minute to import torch.
func TestAnInterpreterThatIsWaitedForIsNamed(t *testing.T) {
	python := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(python, []byte("#!/bin/sh\nsleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	named := ""
	_, _, _, err := FindPython(ctx, python, func(path string, longest time.Duration) {
		named = fmt.Sprint(path, " ", longest)
		cancel()
	})
	if !errors.Is(err, context.Canceled) || named != python+" 2m0s" {
		t.Errorf("%q, %v", named, err)
	}
}

func TestTorchFindPython(t *testing.T) {
	path, version, refused, err := FindPython(t.Context(), "", nil)
	var missing *NoTorchError
	if errors.As(err, &missing) && os.Getenv("EVENKEEL_NEED_TORCH") == "" {
		t.Skipf("%v (make test-torch installs it and makes this an error)", err)
	}
	if err != nil || path == "" || version == "" {
		t.Errorf("%q %q %q %v", path, version, refused, err)
	}
}

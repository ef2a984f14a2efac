package torch

import (
	"errors"
	"os"
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

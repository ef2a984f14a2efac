package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

func TestLargeProfilesAreRemarkedOn(t *testing.T) {
	p := &costmodel.Profile{Laws: []costmodel.Law{
		{Op: op.KindGEMM, Device: "gpu"},
		{Op: op.KindAllReduce, Group: "2 gpu over nvlink"},
		{Op: op.KindAllGather, Group: "2 gpu over nvlink"},
	}}
	path := filepath.Join(t.TempDir(), "x.profile.json")
	for size, want := range map[int]string{
		200_000: "",
		269_577: "x.profile.json has 269 KB, and a profile should have less than 200: it has 3 laws on 2 places (2 collective, 1 gemm); ",
	} {
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		var errOut bytes.Buffer
		(&app{errOut: &errOut}).remarkOnSize(path, p)
		if got := errOut.String(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%d B: %q, want %q", size, got, want)
		}
	}
}

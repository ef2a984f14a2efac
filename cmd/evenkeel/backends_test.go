package main

import (
	"context"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/profile"
)

// Where auto finds no GPU it measures the cores, but not for who says how torch should
// measure: what was measured would not be what was asked for.
func TestAutoDoesNotPassOverFlagsOfTorch(t *testing.T) {
	for flag, o := range map[string]calibration{
		"--dtype":        {backend: "auto", dtype: "bf16"},
		"--python":       {backend: "auto", python: "/opt/torch/bin/python"},
		"--allow-shared": {backend: "auto", allowShared: true},
	} {
		b, err := (&app{}).autoBackend(context.Background(), o, profile.Machine{}, nil)
		if err == nil || !strings.Contains(err.Error(), flag+": says how torch measures, and the backend is cpu") || b.Backend != nil {
			t.Errorf("%s: got %v, %v", flag, b.Backend, err)
		}
	}
}

package main

import (
	"io"
	"strings"
	"testing"
)

func TestTheShellIsToldWhatFlagsAndArgumentsTake(t *testing.T) {
	for line, want := range map[string]string{
		"calibrate --backend ":      "auto cpu torch recorded: sim: :6",
		"calibrate --choose ":       "spread adaptive :6",
		"calibrate --print-launch ": "slurm torchrun k8s :6",
		"replay --kernel ":          "auto math fa2 sdpa_flash sdpa_cudnn sdpa_efficient sdpa_cpu :6",
		"replay --parts ":           "layer loss step attention :6",
		"solve --dtype ":            "f32 bf16 f16 fp8 :6",
		"check ":                    "jsonl json :8",
		"fit ":                      "jsonl :8",
	} {
		var out strings.Builder
		code := run(append([]string{"__complete"}, strings.Split(line, " ")...), nil, &out, io.Discard)
		if got := strings.Join(strings.Fields(out.String()), " "); code != exitDone || got != want {
			t.Errorf("%s: %d %q, want %q", line, code, got, want)
		}
	}
}

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
		"show ":                     "jsonl json txt csv parquet :8",
		"show --references ":        "a100_sxm b200_sxm b60 gb200 h100_sxm h200_sxm rtx_pro_6000_server :4",
		"solve --zero ":             "zero0 zero1 zero2 zero3 auto :6",
		"solve --recompute ":        "none full auto :6",
		"solve --take ":             "ring ulysses usp usp-subset hexiseq evenkeel evenkeel-sure :4",
		"solve --tasks x --take ":   "sequential distmm-mt spindle-optimus spindle evenkeel :4",
		"solve --strategy ":         "ring ulysses usp usp-subset hexiseq evenkeel evenkeel-sure :6",
		"solve --lengths x --take ": "static adaptive bfd megatron-dynamic-cp fcp flexsp evenkeel evenkeel-sure :4",
		"serve --costs ":            "fcp flexsp-gpt-13b flexsp-gpt-30b flexsp-gpt-7b :6",
		"serve --zero ":             "zero0 zero1 zero2 zero3 :6",
		"import --from ":            "table aiconfigurator vidur galvatron kineto nccl-tests nvbandwidth nvidia-smi-topo nccl-topo :6",
		"fit --study ":              "interp heads longer ranks some-heads :6",
		"fit ":                      "jsonl :8",
	} {
		var out strings.Builder
		code := run(append([]string{"__complete"}, strings.Split(line, " ")...), nil, &out, io.Discard)
		if got := strings.Join(strings.Fields(out.String()), " "); code != exitDone || got != want {
			t.Errorf("%s: %d %q, want %q", line, code, got, want)
		}
	}
}

// Every GPU model that is known is one to borrow for, or to import for.
func TestTheShellIsToldOfGPUModels(t *testing.T) {
	for _, line := range []string{"fit --for ", "import --device "} {
		var out strings.Builder
		if code := run(append([]string{"__complete"}, strings.Split(line, " ")...), nil, &out, io.Discard); code != exitDone || !strings.Contains(out.String(), "\ngh200\n") {
			t.Errorf("%s: %d %q", line, code, &out)
		}
	}
}

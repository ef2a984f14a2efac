package main

import (
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/solver/emit"
	"github.com/spf13/cobra"
)

// complete tells the shell what a verb's flags of few values take, and which documents its
// arguments are.
func complete(verb *cobra.Command) {
	for flag, values := range completions()[verb.Name()] {
		values := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)
		if err := verb.RegisterFlagCompletionFunc(flag, values); err != nil {
			panic(err) // a flag that the verb does not have
		}
	}
	if ends := documents()[verb.Name()]; ends != nil {
		verb.ValidArgsFunction = cobra.FixedCompletions(ends, cobra.ShellCompDirectiveFilterFileExt)
	}
}

func completions() map[string]map[string][]string {
	var ops []string
	for _, spec := range op.Table() {
		if spec.Measures == op.Time {
			ops = append(ops, string(spec.Kind))
		}
	}
	dtypes := []string{"f32", "bf16", "f16"}
	return map[string]map[string][]string{
		"calibrate": {
			"backend": {"auto", "cpu", "torch", "recorded:", "sim:"}, "choose": {spreadChoice, adaptiveChoice}, "only": ops,
			"dtype": dtypes, "print-launch": {"slurm", "torchrun", "k8s"},
		},
		"replay": {
			"kernel": replay.Kernels(), "comm": {"gloo", "nccl"}, "dtype": dtypes,
			"parts": {replay.PartsLayer, replay.PartsLoss, replay.PartsStep, replay.PartsAttention},
		},
		"solve": {"dtype": append(dtypes, "fp8")},
		"emit":  {"to": emit.Names()},
	}
}

// documents are the ends of the files that verbs take as arguments.
func documents() map[string][]string {
	return map[string][]string{
		"fit": {"jsonl"}, "check": {"jsonl", "json"}, "emit": {"json"}, "replay": {"json"}, "show": {"jsonl", "json"},
	}
}

package main

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/profile/importer"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/results/profiles"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/evenkeel/evenkeel/solver/emit"
	"github.com/evenkeel/evenkeel/solver/multitask"
	"github.com/evenkeel/evenkeel/solver/pipeline"
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
		verb.ValidArgsFunction = func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			if of, err := c.Flags().GetBool("references"); err == nil && of {
				return referenceModels(), cobra.ShellCompDirectiveNoFileComp
			}
			return ends, cobra.ShellCompDirectiveFilterFileExt
		}
	}
	if verb.Name() == "solve" {
		if err := verb.RegisterFlagCompletionFunc("take", takeable); err != nil {
			panic(err)
		}
	}
}

// takeable completes --take by the strategies of what solve plans: those of one sequence, of
// batches, pipelines and tasks differ.
func takeable(c *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	add := func(name string) { names = append(names, name) }
	switch given := c.Flags().Changed; {
	case given("tasks"):
		for _, s := range multitask.Strategies() {
			add(s.Name())
		}
	case given("pipeline"), given("stages-of"):
		for _, s := range pipeline.Strategies() {
			add(s.Name())
		}
	case given("lengths"):
		for _, s := range batch.Strategies(batch.Settings{}) {
			add(s.Name())
		}
		add("evenkeel-sure")
	default:
		names = solver.Names()
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// referenceModels are the GPU models of the embedded profiles.
func referenceModels() (names []string) {
	for _, r := range profiles.All() {
		names = append(names, r.Name)
	}
	return names
}

func completions() map[string]map[string][]string {
	var ops []string
	for _, spec := range op.Table() {
		if spec.Measures == op.Time {
			ops = append(ops, string(spec.Kind))
		}
	}
	dtypes := []string{"f32", "bf16", "f16"}
	var formats, models, splits []string
	for _, f := range importer.Formats() {
		formats = append(formats, f.Name)
	}
	for _, m := range importer.Models() {
		models = append(models, m.Name)
	}
	for _, s := range fit.Splits() {
		splits = append(splits, s.Name)
	}
	zero := []string{string(costmodel.Zero0), string(costmodel.Zero1), string(costmodel.Zero2), string(costmodel.Zero3)}
	recompute := []string{string(costmodel.RecomputeNone), string(costmodel.RecomputeFull)}
	return map[string]map[string][]string{
		"calibrate": {
			"backend": {"auto", "cpu", "torch", "recorded:", "sim:"}, "choose": {spreadChoice, adaptiveChoice}, "only": ops,
			"dtype": dtypes, "print-launch": {"slurm", "torchrun", "k8s"},
		},
		"replay": {
			"kernel": replay.Kernels(), "comm": {"gloo", "nccl"}, "dtype": dtypes,
			"parts": {replay.PartsLayer, replay.PartsLoss, replay.PartsStep, replay.PartsAttention},
		},
		"solve": {
			"dtype": append(dtypes, "fp8"), "zero": append(zero, auto), "recompute": append(recompute, auto),
			"strategy": solver.Names(), "costs": publishedCosts(),
		},
		"serve":  {"zero": zero, "recompute": recompute, "costs": publishedCosts()},
		"import": {"from": append(formats, topologies()...), "device": models},
		"fit":    {"study": splits, "for": models},
		"emit":   {"to": emit.Names()},
	}
}

// documents are the ends of the files that verbs take as arguments.
func documents() map[string][]string {
	return map[string][]string{
		"fit": {"jsonl"}, "check": {"jsonl", "json"}, "emit": {"json"}, "replay": {"json"}, "show": {"jsonl", "json", "txt", "csv", "parquet"},
	}
}

package emit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// planned is what a scheduler of Megatron-LM's packed sequences, and the script around it, read:
// docs/frameworks.md has one. (NVIDIA/Megatron-LM megatron/core/datasets/data_schedule.py.)
type planned struct {
	arguments []string // each with its values
	scheduler string   // of Megatron-LM, whose place one takes that returns the groups
	lengths   []units.Tokens
	// groups are samples by micro-batch and by data- and context-parallel rank, as
	// get_groups_and_subsamples returns them: ranks with the same ones are a group.
	groups [][][]int
}

// text is the document, of words and numbers alone.
func (p planned) text() string {
	var arguments, lengths, groups []string
	for _, a := range p.arguments {
		words := strings.Fields(a)
		for i := range words {
			words[i] = strconv.Quote(words[i])
		}
		arguments = append(arguments, "    "+strings.Join(words, ", "))
	}
	for _, n := range p.lengths {
		lengths = append(lengths, fmt.Sprint(int64(n)))
	}
	for _, micro := range p.groups {
		var ranks []string
		for _, samples := range micro {
			ranks = append(ranks, strings.ReplaceAll(fmt.Sprint(samples), " ", ", "))
		}
		groups = append(groups, "    ["+strings.Join(ranks, ", ")+"]")
	}
	return fmt.Sprintf("{\n  \"arguments\": [\n%s\n  ],\n  \"scheduler\": %q,\n  \"padded_lengths_tokens\": [%s],\n  \"sample_id_groups\": [\n%s\n  ]\n}\n",
		strings.Join(arguments, ",\n"), p.scheduler, strings.Join(lengths, ", "), strings.Join(groups, ",\n"))
}

// multiple: sequences lie in twice as many chunks as there are context-parallel ranks, all as long.
func (megatron) multiple(ranks int) units.Tokens {
	if ranks == 1 {
		return 1
	}
	return units.Tokens(2 * ranks)
}

func (megatron) wide(m costmodel.Model, ranks int) error { return dividing(m, ranks) }

// staged shards the optimizer's state at most: Megatron-FSDP runs no pipelines.
func (f megatron) staged(job costmodel.Job) costmodel.Job {
	if f.fsdp(job.Zero) {
		job.Zero = costmodel.Zero1
	}
	return job
}

func (megatron) whyStaged() map[string]string {
	return map[string]string{
		fieldRanks: "the fastest choice for it", fieldStages: "as many ranks each; the fastest choice", fieldLayers: "balanced anew for its stages",
		fieldSlices: "sequences are whole", fieldChunks: "packed anew", fieldPasses: "one forward, one backward alone",
		fieldPadding: "to twice a stage's ranks", fieldRecompute: "as many layers of every stage and chunk",
		fieldZero: "Megatron-FSDP has no stages", fieldLoss: "logits at once; so is their memory",
	}
}

func (f megatron) writeStaged(v *stagedVariant, nodes []string) (text, use string) {
	n, most := v.width(), units.Tokens(0)
	for k := range v.plan.Chunks {
		most = max(most, v.tokens(k))
	}
	p := planned{scheduler: "dp_balanced", lengths: v.lengths}
	p.arguments = []string{"--tensor-model-parallel-size 1", fmt.Sprintf("--pipeline-model-parallel-size %d", len(v.plan.Stages))}
	if len(v.plan.Stages) > 1 {
		p.arguments = append(p.arguments, "--pipeline-model-parallel-layout "+layoutOf(v.plan.Stages))
	}
	p.arguments = append(p.arguments, fmt.Sprintf("--context-parallel-size %d", n))
	if n > 1 {
		p.arguments = append(p.arguments, "--cp-comm-type a2a")
	}
	p.arguments = append(p.arguments,
		"--use-varlen-dataset", "--sequence-packing-scheduler "+p.scheduler, "--calculate-per-token-loss",
		fmt.Sprintf("--max-seqlen-per-dp-cp-rank %d", int64((most+units.Tokens(n)-1)/units.Tokens(n))),
		fmt.Sprintf("--seq-length %d", int64(slices.Max(v.lengths))), "--micro-batch-size 1",
		fmt.Sprintf("--global-batch-size %d", len(v.lengths)))
	if again := v.again(); again > 0 {
		p.arguments = append(p.arguments, "--recompute-granularity full", "--recompute-method block", fmt.Sprintf("--recompute-num-layers %d", again))
	}
	p.arguments = slices.Concat(p.arguments, f.precision(v.job.DType), f.sharding(v.job))
	for _, x := range v.plan.Chunks {
		p.groups = append(p.groups, slices.Repeat([][]int{x.Whole}, n))
	}
	queues := ""
	if n > 1 {
		queues = "CUDA_DEVICE_MAX_CONNECTIONS=1 (on GPUs before Blackwell) and "
	}
	return p.text(), fmt.Sprintf("with %storchrun on %s: planned_gpt.py of docs/frameworks.md, which runs pretrain_gpt.py by it, with FILE and the arguments of model and data", queues, launched(nodes, v.ranks()))
}

// layoutOf is the layers of stages as --pipeline-model-parallel-layout reads it.
func layoutOf(stages []costs.Stage) string {
	parts := make([]string, len(stages))
	for s, x := range stages {
		parts[s] = fmt.Sprintf("t*%d", x.Layers)
	}
	return "E" + strings.Join(parts, "|") + "L"
}

func (megatron) notesStaged(v *stagedVariant) []string {
	notes := []string{"the loader has to hand over the plan's sequences in its order, none longer than planned; a run of several batches keeps its stages: plan all of them, this one too, on those of one plan (solve --stages-of), which emit keeps"}
	if len(v.plan.Stages) > 1 {
		notes = append(notes, "messages between stages are priced as sent beside computing; Megatron-LM waits for each where stages are not interleaved")
	}
	return notes
}

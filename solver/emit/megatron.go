package emit

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
)

// megatron writes arguments of Megatron-LM with TransformerEngine. One context-parallel group
// of all ranks: its neighbours exchange heads (a2a), the rest a ring (p2p); tokens lie in twice
// as many equal chunks as there are ranks, and heads, those of keys and values too, divide over
// the a2a group, for none is held twice. (NVIDIA/Megatron-LM megatron/training/arguments.py,
// core/parallel_state.py; NVIDIA/TransformerEngine context_parallel.py.)
type megatron struct{}

func (megatron) variants(x *asked, ranks []int) ([]variant, error) {
	job, n := x.plan.Job, len(ranks)
	if err := multiple(job.SeqLen, 2*n, "two chunks a rank"); n > 1 && err != nil {
		return nil, err
	}
	pairs, err := meshes(n, func(hp, _ int) error { return dividing(job.Model, hp) })
	var all []variant
	for _, p := range pairs {
		v := variant{
			ranks: ranks, hp: p[0], cp: p[1], low: true,
			layout: costmodel.Layout{Shards: headTail(len(x.plan.Ranks), ranks, job.SeqLen), Groups: grouped(ranks, p[0], true, job.Model.QHeads)},
			why: map[string]string{
				fieldGroups: "groups are neighbours, of one size", fieldTokens: "equal chunks", fieldHeads: "equal heads",
				fieldOrder: "the n-th chunk from the front and from the end", fieldRing: "in rank order",
				fieldSchedule: "TransformerEngine's own",
			},
		}
		// TransformerEngine goes through a ring backward in the reversed order.
		v.layout.OwnLast = v.cp > 1
		all = append(all, v)
	}
	return all, err
}

// sharding are the arguments that shard what each stage of ZeRO does.
func (megatron) sharding(z costmodel.ZeRO) []string {
	fsdp := func(what string) []string {
		return []string{
			"--use-megatron-fsdp", "--data-parallel-sharding-strategy " + what, "--use-distributed-optimizer",
			"--no-gradient-accumulation-fusion", "--ckpt-format fsdp_dtensor",
		}
	}
	switch z {
	case costmodel.Zero0:
		return nil
	case costmodel.Zero1:
		return []string{"--use-distributed-optimizer"}
	case costmodel.Zero2:
		return fsdp("optim_grads")
	}
	return fsdp("optim_grads_params")
}

func (f megatron) write(x *asked, v *variant) (text, use string) {
	job, n := x.plan.Job, len(v.ranks)
	lines := []string{
		"--tensor-model-parallel-size 1",
		"--pipeline-model-parallel-size 1",
		fmt.Sprintf("--context-parallel-size %d", n),
	}
	switch {
	case n == 1:
	case v.cp == 1:
		lines = append(lines, "--cp-comm-type a2a")
	case v.hp == 1:
		lines = append(lines, "--cp-comm-type p2p")
	default:
		lines = append(lines, "--cp-comm-type a2a+p2p", fmt.Sprintf("--hierarchical-context-parallel-sizes %d %d", v.hp, v.cp))
	}
	lines = append(lines,
		fmt.Sprintf("--seq-length %d", int64(job.SeqLen)), "--micro-batch-size 1",
		fmt.Sprintf("--global-batch-size %d", max(1, job.Accumulate)))
	if job.Recompute == costmodel.RecomputeFull {
		lines = append(lines, "--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1")
	}
	lines = append(lines, f.sharding(job.Zero)...)
	return strings.Join(lines, "\n") + "\n", fmt.Sprintf("torchrun on %s, in this order: ... pretrain_gpt.py $(cat FILE) and the arguments of model and data", ranksToRun(x.plan, v))
}

func (megatron) job(j costmodel.Job) costmodel.Job { return asToday(j) }

func (megatron) settings(x *asked, _ *variant) []Field {
	return ofToday(settingsOf(x.plan.Job), x.plan.Job)
}

func (megatron) notes(_ *asked, v *variant) []string {
	if v.hp == 1 || v.cp == 1 {
		return nil
	}
	return []string{"a2a+p2p takes no packed sequences (thd)"}
}

package emit

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// megatron writes arguments of Megatron-LM with TransformerEngine. One context-parallel group
// of all ranks: its neighbours exchange heads (a2a), the rest a ring (p2p); tokens lie in twice
// as many equal chunks as there are ranks, and heads, those of keys and values too, divide over
// the a2a group, for none is held twice. (NVIDIA/Megatron-LM megatron/training/arguments.py,
// core/parallel_state.py; NVIDIA/TransformerEngine context_parallel.py.)
type megatron struct{}

func (megatron) variants(x *asked, ranks []int) ([]variant, error) {
	job, n := x.plan.Job, len(ranks)
	if err := divisible(job.SeqLen, n, 2*n); err != nil {
		return nil, err
	}
	pairs, err := meshes(n, func(hp int) error { return dividing(job.Model, hp) })
	var all []variant
	for _, p := range pairs {
		v := variant{
			job: asToday(job), ranks: ranks, hp: p[0], cp: p[1], low: true, order: "head and tail chunks",
			layout: costmodel.ZigZag(equal(len(x.plan.Ranks), ranks, job.SeqLen), grouped(ranks, p[0], true, job.Model.QHeads)),
			why: map[string]string{
				fieldGroups: "neighbours, of one size", fieldTokens: "equal chunks", fieldHeads: "equal heads",
				fieldOrder: "Megatron-LM's", fieldRing: "in rank order", fieldSchedule: "TransformerEngine's own",
				fieldBuffers: "a block computed, one arriving", fieldLoss: "logits at once; so is their memory",
			},
		}
		// TransformerEngine goes through a ring backward in the reversed order.
		v.layout.OwnLast = v.ring()
		all = append(all, v)
	}
	return all, err
}

func (megatron) decides(*variant, string) bool { return true }

// fsdp says whether a stage of ZeRO takes Megatron-FSDP: the distributed optimizer shards no
// more than its state and the gradients' reduction.
func (megatron) fsdp(z costmodel.ZeRO) bool { return z != costmodel.Zero0 && z != costmodel.Zero1 }

// sharding are the arguments that shard what a job's stage of ZeRO does.
func (f megatron) sharding(job costmodel.Job) []string {
	var args []string
	switch job.Zero {
	case costmodel.Zero0:
	case costmodel.Zero1:
		args = []string{"--use-distributed-optimizer"}
	default:
		what := "optim_grads_params"
		if job.Zero == costmodel.Zero2 {
			what = "optim_grads"
		}
		args = []string{
			"--use-megatron-fsdp", "--data-parallel-sharding-strategy " + what, "--use-distributed-optimizer",
			"--no-gradient-accumulation-fusion", "--ckpt-format fsdp_dtensor",
		}
	}
	if job.OverlapZero {
		args = append(args, "--overlap-grad-reduce")
		if job.Zero != costmodel.Zero0 {
			args = append(args, "--overlap-param-gather")
		}
	}
	return args
}

// precision are the arguments of an element type.
func (megatron) precision(d op.DType) []string {
	switch d {
	case op.BF16:
		return []string{"--bf16"}
	case op.F16:
		return []string{"--fp16"}
	case op.FP8:
		return []string{"--bf16", "--fp8-format hybrid"}
	}
	return nil
}

func (f megatron) write(x *asked, v *variant) (text, use string) {
	job, n := v.job, len(v.ranks)
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
	lines = append(append(lines, f.precision(job.DType)...), f.sharding(job)...)
	queues := ""
	switch {
	case f.fsdp(job.Zero):
		queues = "CUDA_DEVICE_MAX_CONNECTIONS unset and "
	case n > 1:
		queues = "CUDA_DEVICE_MAX_CONNECTIONS=1 (on GPUs before Blackwell) and "
	}
	return strings.Join(lines, "\n") + "\n", fmt.Sprintf("with %storchrun on %s: pretrain_gpt.py $(cat FILE) and the arguments of model and data", queues, launched(nodesOf(x.plan), v.ranks))
}

func (megatron) notes(v *variant) []string {
	if v.hp == 1 || !v.ring() {
		return nil
	}
	return []string{"a2a+p2p takes no packed sequences (thd)"}
}

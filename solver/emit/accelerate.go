package emit

import (
	"fmt"
	"maps"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// accelerate writes a configuration of Hugging Face accelerate. It has either context
// parallelism (torch's, equal head-and-tail chunks in a ring) under FSDP, or Ulysses (DeepSpeed's:
// equal stretches, heads that divide, those of keys and values held several times where there are
// fewer) under its ZeRO, and not both; and as many processes on every node.
// (huggingface/accelerate utils/dataclasses.py, parallelism_config.py; deepspeedai/DeepSpeed
// runtime/sequence_parallel/ulysses_sp.py.)
type accelerate struct{}

func (accelerate) variants(x *asked, ranks []int) ([]variant, error) {
	job, n, total := asToday(x.plan.Job), len(ranks), len(x.plan.Ranks)
	if at := hosts(nodesOf(x.plan), ranks); alike(at) == 0 {
		return nil, fmt.Errorf("it starts as many processes on every node, and not as many devices of each are here as of %s: plan on equal nodes", at[0].node)
	}
	why := map[string]string{
		fieldGroups: "one ring or one all-to-all of all", fieldTokens: "equal shares", fieldHeads: "equal heads", fieldOrder: "the framework's",
		fieldRing: "one ring or none", fieldSchedule: "the framework's", fieldBuffers: "a block computed, one arriving",
		fieldLoss: "logits at once; so is their memory", fieldZero: "FSDP shards gradients too", fieldOverlap: "FSDP always overlaps",
	}
	var all []variant
	ring := divisible(job.SeqLen, n, 2*n)
	if ring == nil {
		v := variant{job: job, ranks: ranks, hp: 1, cp: n, order: "head and tail chunks", why: why}
		v.layout = costmodel.ZigZag(equal(total, ranks, job.SeqLen), grouped(ranks, 1, true, job.Model.QHeads))
		v.job.OverlapZero = true
		if z := job.Zero; z == costmodel.Zero0 || z == costmodel.Zero1 {
			v.job.Zero = costmodel.Zero2
		}
		all = append(all, v)
	}
	ulysses := divisible(job.SeqLen, n, n)
	if m := job.Model; m.QHeads%n != 0 || m.KVHeads%n != 0 && n%m.KVHeads != 0 {
		ulysses = fmt.Errorf("%d query and %d KV heads do not suit Ulysses of %d ranks", m.QHeads, m.KVHeads, n)
	}
	if ulysses == nil && n > 1 {
		v := variant{job: job, ranks: ranks, hp: n, cp: 1, order: "a stretch each", why: maps.Clone(why)}
		v.why[fieldOverlap] = "DeepSpeed's overlap_comm"
		v.layout = costmodel.Contiguous(equal(total, ranks, job.SeqLen), grouped(ranks, n, true, job.Model.QHeads))
		all = append(all, v)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w; %w", ring, ulysses)
	}
	return all, nil
}

// ulysses says which of the two a variant is.
func (accelerate) ulysses(v *variant) bool { return v.hp > 1 }

func (f accelerate) decides(v *variant, setting string) bool {
	if f.ulysses(v) {
		return setting != fieldRecompute && setting != fieldOverlap
	}
	return setting != fieldAccumulate
}

// precision is a mixed precision by accelerate's name.
func (accelerate) precision(d op.DType) string {
	switch d {
	case op.BF16, op.FP8:
		return string(d)
	case op.F16:
		return "fp16"
	}
	return "no"
}

func (f accelerate) write(x *asked, v *variant) (text, use string) {
	job, n, machines := v.job, len(v.ranks), len(hosts(nodesOf(x.plan), v.ranks))
	var b strings.Builder
	fmt.Fprintf(&b, "num_machines: %d\nnum_processes: %d\nmixed_precision: %s\n", machines, n, f.precision(job.DType))
	if f.ulysses(v) {
		fmt.Fprintf(&b, `distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: %s
  gradient_accumulation_steps: %d
parallelism_config:
  parallelism_config_dp_replicate_size: 1
  parallelism_config_dp_shard_size: 1
  parallelism_config_sp_size: %d
  parallelism_config_sp_backend: deepspeed
  parallelism_config_sp_seq_length: %d
  parallelism_config_sp_attn_implementation: flash_attention_2
`, strings.TrimPrefix(zeroName(job.Zero), "zero"), max(1, job.Accumulate), n, int64(job.SeqLen))
	} else {
		fmt.Fprintf(&b, `distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: %t
  fsdp_activation_checkpointing: %t
parallelism_config:
  parallelism_config_dp_replicate_size: 1
  parallelism_config_dp_shard_size: 1
  parallelism_config_cp_size: %d
  parallelism_config_cp_comm_strategy: alltoall
`, zeroName(job.Zero) == string(costmodel.Zero3), job.Recompute == costmodel.RecomputeFull, n)
	}
	use = "accelerate launch --config_file FILE: " + launched(nodesOf(x.plan), v.ranks)
	if machines > 1 {
		use = "accelerate launch --config_file FILE --machine_rank K --main_process_ip ADDRESS --main_process_port PORT on every node K: " + launched(nodesOf(x.plan), v.ranks)
	}
	return b.String(), use
}

func (accelerate) notes(*variant) []string { return nil }

package emit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
)

// accelerate writes a configuration of Hugging Face accelerate. It has either context
// parallelism (torch's, equal head-and-tail chunks in a ring or gathered) or Ulysses (DeepSpeed's:
// equal stretches, heads that divide, those of keys and values held several times where there are
// fewer), and not both. (huggingface/accelerate utils/dataclasses.py, parallelism_config.py;
// deepspeedai/DeepSpeed runtime/sequence_parallel/ulysses_sp.py.)
type accelerate struct{}

func (accelerate) variants(x *asked, ranks []int) ([]variant, error) {
	job, n, total := x.plan.Job, len(ranks), len(x.plan.Ranks)
	m := job.Model
	why := map[string]string{
		fieldGroups: "all in one ring or one all-to-all", fieldTokens: "equal stretches", fieldHeads: "equal heads",
		fieldOrder: "the framework's", fieldRing: "in rank order", fieldSchedule: "the framework's",
	}
	var all []variant
	ring := multiple(job.SeqLen, 2*n, "two chunks a rank")
	if ring == nil {
		all = append(all, variant{ranks: ranks, hp: 1, cp: n, why: why, layout: costmodel.Layout{
			Shards: headTail(total, ranks, job.SeqLen), Groups: grouped(ranks, 1, true, m.QHeads),
		}})
	}
	ulysses := multiple(job.SeqLen, n, "a stretch a rank")
	if m.QHeads%n != 0 || m.KVHeads%n != 0 && n%m.KVHeads != 0 {
		ulysses = errors.Join(ulysses, fmt.Errorf("%d query and %d KV heads do not suit Ulysses of %d ranks", m.QHeads, m.KVHeads, n))
	}
	if ulysses == nil && n > 1 {
		all = append(all, variant{ranks: ranks, hp: n, cp: 1, why: why, layout: costmodel.Layout{
			Shards: contiguous(total, ranks, job.SeqLen), Groups: grouped(ranks, n, true, m.QHeads),
		}})
	}
	if len(all) == 0 {
		return nil, errors.Join(ring, ulysses)
	}
	return all, nil
}

// stage is the number of a stage of ZeRO.
func stage(z costmodel.ZeRO) string {
	if z == "" {
		z = costmodel.Zero3
	}
	return strings.TrimPrefix(string(z), "zero")
}

func (accelerate) write(x *asked, v *variant) (text, use string) {
	job, n := x.plan.Job, len(v.ranks)
	var b strings.Builder
	if v.cp == 1 && n > 1 {
		fmt.Fprintf(&b, `distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: %s
  gradient_accumulation_steps: %d
num_processes: %d
parallelism_config:
  parallelism_config_dp_replicate_size: 1
  parallelism_config_dp_shard_size: 1
  parallelism_config_sp_size: %d
  parallelism_config_sp_backend: deepspeed
  parallelism_config_sp_seq_length: %d
`, stage(job.Zero), max(1, job.Accumulate), n, n, int64(job.SeqLen))
	} else {
		fmt.Fprintf(&b, `distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: %t
  fsdp_activation_checkpointing: %t
num_processes: %d
parallelism_config:
  parallelism_config_dp_replicate_size: 1
  parallelism_config_dp_shard_size: 1
  parallelism_config_cp_size: %d
`, job.Zero == costmodel.Zero3 || job.Zero == "", job.Recompute == costmodel.RecomputeFull, n, n)
	}
	return b.String(), "accelerate launch --config_file FILE, on " + ranksToRun(x.plan, v) + ", in this order"
}

func (accelerate) job(j costmodel.Job) costmodel.Job { return asToday(j) }

func (accelerate) settings(x *asked, v *variant) []Field {
	job := x.plan.Job
	all := settingsOf(job)
	recompute, zero, accumulate := all[0], all[1], all[2]
	if v.cp == 1 && len(v.ranks) > 1 {
		return ofToday(elsewhere(job, "the training script's", zero, accumulate), job)
	}
	if z := job.Zero; z == costmodel.Zero0 || z == costmodel.Zero1 {
		zero.Emitted, zero.Verdict, zero.Why = string(costmodel.Zero2), Rounded, "FSDP shards gradients and optimizer at least"
	}
	return ofToday(elsewhere(job, "the training script's", recompute, zero), job)
}

func (accelerate) notes(_ *asked, v *variant) []string {
	if v.cp == 1 && len(v.ranks) > 1 {
		return nil
	}
	return []string{"torch may gather all keys and values where a ring is priced: its cp_comm_strategy says which"}
}

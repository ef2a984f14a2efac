#!/usr/bin/env bash
# Several tasks side by side from end to end on two unequal ranks of one machine without a
# GPU: calibrate, plan four modules by every strategy, run the plans in turns on real torch
# ranks, gradients exchanged, and compare with the prediction.
#
#   bash docs/tasks_loop.sh [time to measure attention and GEMM, default 6m [and the rest, default 2m]]
#
# Needs two cores and a Python with torch (docs/torch.sh installs one). LOOP is the folder
# to write, BIN the binary, BLOCKS the passes over the plans, DEVICES the two device types if
# not those that this script would take. A quiet machine is needed.
set -euo pipefail
BUDGET=${1:-${BUDGET:-6m}} REST=${2:-${REST:-2m}} LOOP=${LOOP:-results/evidence/tasks_loop} BIN=${BIN:-bin/evenkeel}
BLOCKS=${BLOCKS:-10}

source "$(dirname "$0")/ranks.sh"

mkdir -p "$LOOP"
rm -f "$LOOP"/*.plan.* "$LOOP"/*.trace.* "$LOOP"/*.check.* "$LOOP"/{timeline.json,README.md}
cat > "$LOOP/modules.tasks.json" <<'JSON'
{
  "schema": "evenkeel.tasks/v1",
  "tool": "",
  "created": "",
  "name": "three encoders and a decoder",
  "modules": [
    {"name": "caption/vision", "task": "caption", "layers": 4, "batch_samples": 4, "shape": {"seq_len_tokens": 256, "hidden": 512, "ffn": 2048, "q_heads": 8}},
    {"name": "caption/text", "task": "caption", "layers": 2, "batch_samples": 4, "after": ["caption/vision"], "shape": {"seq_len_tokens": 320, "hidden": 512, "ffn": 1408, "q_heads": 8, "kv_heads": 4, "causal": true, "gated_mlp": true}},
    {"name": "sound/audio", "task": "sound", "layers": 3, "batch_samples": 8, "shape": {"seq_len_tokens": 192, "hidden": 384, "ffn": 1536, "q_heads": 6}},
    {"name": "sound/text", "task": "sound", "layers": 4, "batch_samples": 8, "shape": {"seq_len_tokens": 96, "hidden": 384, "ffn": 1536, "q_heads": 6}}
  ]
}
JSON
# For the width of heads, which all modules share.
cat > "$LOOP/config.json" <<'JSON'
{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 512,
  "intermediate_size": 1408,
  "num_hidden_layers": 2,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "head_dim": 64,
  "vocab_size": 256,
  "tie_word_embeddings": true
}
JSON
profiled "$BUDGET" "$REST" norm,rope,swiglu,gelu,send_recv,all_reduce,overlap,mem_capacity,mem_reserve

say "solve: four modules of two tasks on $cluster"
plans=()
for strategy in evenkeel spindle spindle-optimus distmm-mt sequential; do
  "$BIN" solve --profile "$profile" --cluster "$cluster" --tasks "$LOOP/modules.tasks.json" --take "$strategy" \
    -o "$LOOP/$strategy.plan.json" > "$LOOP/$strategy.plan.txt"
  plans+=("$LOOP/$strategy.plan.json")
done
cat "$LOOP/evenkeel.plan.txt"

say "replay: all plans in turns, $BLOCKS blocks"
"$BIN" replay "${plans[@]}" --repeats "$BLOCKS" -o "$LOOP/loop.trace.jsonl"

say "check: prediction and measurement of all, and where they differ"
judge loop --timeline "$LOOP/timeline.json"

gzip -9 -f "$LOOP/loop.trace.jsonl"
cat > "$LOOP/README.md" <<TEXT
# Several tasks on two unequal ranks of one machine

Made by \`bash docs/tasks_loop.sh $BUDGET $REST\` ($(machine)).
The ranks are \`$fast\` and \`$slow\`: unequal by what each may use of a core or of
the cores, nothing is delayed or repeated. All layers of the four modules in
\`modules.tasks.json\`, forward and backward, and the exchange of their gradients: without
embeddings, losses and optimizer.

| file | what |
| --- | --- |
| \`compute\`, \`rest\`, \`profile.json\`, \`fit.txt\`, \`check.txt\` | the calibrations ($BUDGET of attention and GEMM, $REST of the rest): recordings, the profile of both, report, errors on points set aside |
| \`*.plan.json\`, \`*.plan.txt\` | the modules planned by every strategy |
| \`loop.trace.jsonl.gz\`, \`loop.check.txt\`, \`timeline.json\` | all run in turns, $BLOCKS blocks; prediction and measurement; one block of the first plan, predicted and recorded, for Perfetto |

To check the trace again: \`gunzip -k loop.trace.jsonl.gz\`, then
\`evenkeel check loop.trace.jsonl --profile profile.json\`.
TEXT
ls -l "$LOOP"

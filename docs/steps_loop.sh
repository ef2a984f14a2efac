#!/usr/bin/env bash
# Whole training steps from end to end on two unequal ranks of one machine without a GPU:
# calibrate, plan one sequence by two strategies and several ZeRO stages, and a batch of
# unequal sequences likewise, run the plans of each in turns on real torch ranks with
# embedding, loss, exchange and optimizer, and compare with the prediction.
#
#   bash docs/steps_loop.sh [time to measure attention and GEMM, default 6m [and the rest, default 3m]]
#
# Needs two cores and a Python with torch (docs/torch.sh installs one). LOOP is the folder
# to write, BIN the binary, SEQ the one sequence, BLOCKS the passes over the plans, DEVICES
# the two device types if not those that this script would take. A quiet machine is needed.
set -euo pipefail
BUDGET=${1:-${BUDGET:-6m}} REST=${2:-${REST:-3m}} LOOP=${LOOP:-results/evidence/steps_loop} BIN=${BIN:-bin/evenkeel}
SEQ=${SEQ:-1k} BLOCKS=${BLOCKS:-10}

source "$(dirname "$0")/ranks.sh"

mkdir -p "$LOOP"
rm -f "$LOOP"/*.plan.* "$LOOP"/*.trace.* "$LOOP"/*.check.* "$LOOP"/{timeline.json,README.md}
cat > "$LOOP/config.json" <<'JSON'
{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 1024,
  "intermediate_size": 2816,
  "num_hidden_layers": 3,
  "num_attention_heads": 16,
  "num_key_value_heads": 4,
  "head_dim": 64,
  "vocab_size": 8192,
  "tie_word_embeddings": false
}
JSON
profiled "$BUDGET" "$REST"

say "solve: $SEQ tokens on $cluster"
plans=()
plan() { # name, then what solve is told
  local name=$1
  shift
  "$BIN" solve --profile "$profile" --cluster "$cluster" --model "$LOOP/config.json" --seq-len "$SEQ" \
    -o "$LOOP/$name.plan.json" "$@" > "$LOOP/$name.plan.txt"
  plans+=("$LOOP/$name.plan.json")
}
for zero in zero0 zero1 zero3; do
  plan "evenkeel-$zero" --take evenkeel --zero "$zero"
done
plan evenkeel-zero0-behind --take evenkeel --zero zero0 --overlap-zero=false
plan equal-zero3 --take ring --zero zero3
cat "$LOOP/evenkeel-zero3.plan.txt"

say "replay: all plans in turns, $BLOCKS blocks"
"$BIN" replay "${plans[@]}" --parts step --repeats "$BLOCKS" -o "$LOOP/loop.trace.jsonl"

say "check: prediction and measurement of all, and where they differ"
judge loop --timeline "$LOOP/timeline.json"

# Of such lengths the searched plan by zero0 and zero1 has two micro-batches: in one each rank is by
# itself, in the other both are one group; by zero3, where each micro-batch gathers, it has one, which
# is what adaptive finds too.
printf '%s\n' 1024 768 256 64 64 > "$LOOP/lengths.txt"
batches=()
batch() { # name, then what solve is told
  local name=batch-$1
  shift
  "$BIN" solve --profile "$profile" --cluster "$cluster" --model "$LOOP/config.json" --lengths "$LOOP/lengths.txt" \
    -o "$LOOP/$name.plan.json" "$@" > "$LOOP/$name.plan.txt"
  batches+=("$LOOP/$name.plan.json")
}
say "solve: five sequences, 1024 to 64 tokens long"
for zero in zero0 zero1 zero3; do
  batch "evenkeel-$zero" --take evenkeel --zero "$zero"
done
batch adaptive-zero3 --take adaptive --zero zero3
batch static-zero3 --take static --zero zero3
cat "$LOOP/batch-evenkeel-zero3.plan.txt"

say "replay: the plans of the batch in turns, $BLOCKS blocks"
"$BIN" replay "${batches[@]}" --model "$LOOP/config.json" --parts step --repeats "$BLOCKS" -o "$LOOP/batch.trace.jsonl"

say "check: the same of these"
judge batch

gzip -9 -f "$LOOP"/{loop,batch}.trace.jsonl
cat > "$LOOP/README.md" <<TEXT
# Whole training steps on two unequal ranks of one machine

Made by \`bash docs/steps_loop.sh $BUDGET $REST\` ($(machine)).
The ranks are \`$fast\` and \`$slow\`: unequal by what each may use of a core or of
the cores, nothing is delayed or repeated. A step is the embedding, all layers of the model
in \`config.json\` on one sequence of $SEQ tokens, or on the batch in \`lengths.txt\`, the loss,
the exchange of gradients and parameters by the plan's ZeRO stage, and AdamW. gloo here has no
reduce_scatter: all_reduce stands in.

| file | what |
| --- | --- |
| \`compute\`, \`rest\`, \`profile.json\`, \`fit.txt\`, \`check.txt\` | the calibrations ($BUDGET of attention and GEMM, $REST of the rest): recordings, the profile of both, report, errors on points set aside |
| \`*.plan.json\`, \`*.plan.txt\` | the searched layout with parameters whole (zero0, also with the exchange behind the layers), with the optimizer sharded (zero1) and with all sharded (zero3), and equal shares in a ring; of the batch the same by stage, and what people run today: groups of one size, for any batch (static) or the best for this one (adaptive), which is the searched plan by zero3 too |
| \`loop.trace.jsonl.gz\`, \`loop.check.txt\`, \`timeline.json\` | all run in turns, $BLOCKS blocks; prediction and measurement; one block of the first plan, predicted and recorded, for Perfetto |
| \`batch.trace.jsonl.gz\`, \`batch.check.txt\` | the same of the batch's plans |

To check a trace again: \`gunzip -k loop.trace.jsonl.gz\`, then
\`evenkeel check loop.trace.jsonl --profile profile.json\`.
TEXT
ls -l "$LOOP"

#!/usr/bin/env bash
# Pipelines from end to end on two unequal ranks of one machine without a GPU: calibrate,
# plan a batch of unequal sequences as a pipeline by every strategy, and in groups side by
# side; run the plans in turns on real torch ranks, and compare with the prediction.
#
#   bash docs/pipeline_loop.sh [time to measure attention and GEMM, default 6m [and the rest, default 2m]]
#
# Needs two cores and a Python with torch (docs/torch.sh installs one). LOOP is the folder
# to write, BIN the binary, BLOCKS the passes over the plans, DEVICES the two device types if
# not those that this script would take. A quiet machine is needed.
set -euo pipefail
BUDGET=${1:-${BUDGET:-6m}} REST=${2:-${REST:-2m}} LOOP=${LOOP:-results/evidence/pipeline_loop} BIN=${BIN:-bin/evenkeel}
BLOCKS=${BLOCKS:-10}

source "$(dirname "$0")/ranks.sh"

mkdir -p "$LOOP"
rm -f "$LOOP"/*.plan.* "$LOOP"/*.trace.* "$LOOP"/*.check.* "$LOOP"/{timeline.json,README.md}
cat > "$LOOP/config.json" <<'JSON'
{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 512,
  "intermediate_size": 1408,
  "num_hidden_layers": 6,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "head_dim": 64,
  "vocab_size": 4096,
  "tie_word_embeddings": true
}
JSON
printf '%s\n' 2048 1024 512 512 256 128 128 > "$LOOP/lengths.txt"
profiled "$BUDGET" "$REST"

plan() { # name, then what solve is told
  local name=$1
  shift
  "$BIN" solve --profile "$profile" --cluster "$cluster" --model "$LOOP/config.json" --lengths "$LOOP/lengths.txt" \
    --zero zero0 -o "$LOOP/$name.plan.json" "$@" > "$LOOP/$name.plan.txt"
}

say "solve: seven sequences, 2048 to 128 tokens long, on two stages of $cluster"
for strategy in evenkeel infinipipe seq1f1b 1f1b; do
  plan "$strategy" --pipeline --stages 2 --take "$strategy"
done
cat "$LOOP/evenkeel.plan.txt"
plan groups --take evenkeel

say "replay: all plans in turns, $BLOCKS blocks"
plans=("$LOOP"/{evenkeel,infinipipe,seq1f1b,1f1b,groups}.plan.json)
"$BIN" replay "${plans[@]}" --model "$LOOP/config.json" --parts loss --layers 6 --repeats "$BLOCKS" -o "$LOOP/loop.trace.jsonl"

say "check: prediction and measurement of all, and where they differ"
judge loop --timeline "$LOOP/timeline.json"

gzip -9 -f "$LOOP/loop.trace.jsonl"
cat > "$LOOP/README.md" <<TEXT
# Pipelines on two unequal ranks of one machine

Made by \`bash docs/pipeline_loop.sh $BUDGET $REST\` ($(machine)).
The ranks are \`$fast\` and \`$slow\`: unequal by what each may use of a core or of
the cores, nothing is delayed or repeated. All layers of the model in \`config.json\` and the
loss, forward and backward, over the sequences in \`lengths.txt\`: without embeddings,
exchange of gradients and optimizer, which plans count and replay does not run.

| file | what |
| --- | --- |
| \`compute\`, \`rest\`, \`profile.json\`, \`fit.txt\`, \`check.txt\` | the calibrations ($BUDGET of attention and GEMM, $REST of the rest): recordings, the profile of both, report, errors on points set aside |
| \`*.plan.json\`, \`*.plan.txt\` | the batch as a pipeline of two stages by every strategy, and in groups side by side |
| \`loop.trace.jsonl.gz\`, \`loop.check.txt\`, \`timeline.json\` | all run in turns, $BLOCKS blocks; prediction and measurement; one block of the first plan, predicted and recorded, for Perfetto |

To check the trace again: \`gunzip -k loop.trace.jsonl.gz\`, then
\`evenkeel check loop.trace.jsonl --profile profile.json\`.
TEXT
ls -l "$LOOP"

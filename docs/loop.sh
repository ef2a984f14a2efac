#!/usr/bin/env bash
# The loop from end to end on unequal ranks of one machine without a GPU:
# calibrate, plan, run the plans on real torch ranks, compare the trace with the
# prediction, and rank twelve plans of one problem.
#
#   bash docs/loop.sh [time to measure attention and GEMM, default 6m [and the rest, default 2m]]
#
# Needs two cores and a Python with torch (docs/torch.sh installs one). LOOP is
# the folder to write, BIN the binary, SEQ the sequence, BLOCKS and RANKING the
# passes over the plans of the loop and of the ranking, DEVICES the two device
# types if not those that this script would take. A quiet machine is needed:
# whatever else runs here takes part in every time.
set -euo pipefail
BUDGET=${1:-${BUDGET:-6m}} REST=${2:-${REST:-2m}} LOOP=${LOOP:-results/evidence/loop} BIN=${BIN:-bin/evenkeel}
SEQ=${SEQ:-2k} BLOCKS=${BLOCKS:-10} RANKING=${RANKING:-16}

source "$(dirname "$0")/ranks.sh"

mkdir -p "$LOOP"
rm -f "$LOOP"/*.plan.json "$LOOP"/*.trace.jsonl "$LOOP"/*.trace.jsonl.gz "$LOOP"/*.check.* "$LOOP"/timeline.json
# Wide enough that GEMMs and attention are what a layer takes, narrow enough that
# a block of 4k tokens takes seconds on one core.
cat > "$LOOP/config.json" <<'JSON'
{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 1024,
  "intermediate_size": 2816,
  "num_hidden_layers": 4,
  "num_attention_heads": 16,
  "num_key_value_heads": 4,
  "head_dim": 64,
  "vocab_size": 8192,
  "tie_word_embeddings": true
}
JSON
profiled "$BUDGET" "$REST"

plan() { # name, then what solve is told
  local name=$1
  shift
  "$BIN" solve --profile "$profile" --cluster "$cluster" --model "$LOOP/config.json" --seq-len "$SEQ" --zero zero0 \
    -o "$LOOP/$name.plan.json" "$@" > "$LOOP/plan.txt"
}

say "solve: $SEQ tokens on $cluster; the equal split is what ring attention does today"
plan evenkeel --take evenkeel
cat "$LOOP/plan.txt"
plan equal --take ring

say "replay: both plans in turns, $BLOCKS blocks"
"$BIN" replay "$LOOP/evenkeel.plan.json" "$LOOP/equal.plan.json" --repeats "$BLOCKS" -o "$LOOP/loop.trace.jsonl"

say "check: prediction and measurement of both, and where they differ"
judge loop --timeline "$LOOP/timeline.json"

say "ranking: twelve plans of the same problem"
# Plans from all over the space, the wrong way round too: rings of unequal shares, and
# all-to-all groups whose shares and heads differ. Heads in fours cut no group of
# query heads that share a key-value head.
plan ulysses --take ulysses
for shares in 1:3 5:3 3:1 15:1; do
  plan "ring-${shares/:/-}" --shares "$shares"
done
for split in "1:1 4:12" "1:1 12:4" "3:1 4:12" "3:1 12:4" "1:3 8:8"; do
  read -r shares heads <<< "$split"
  plan "group-${shares/:/-}-heads-${heads/:/-}" --shares "$shares" --q-heads "$heads"
done
rm -f "$LOOP/plan.txt"
"$BIN" replay "$LOOP"/{evenkeel,equal,ulysses}.plan.json "$LOOP"/{ring,group}-*.plan.json --repeats "$RANKING" -o "$LOOP/ranking.trace.jsonl"
judge ranking

gzip -9 -f -k "$LOOP/loop.trace.jsonl" "$LOOP/ranking.trace.jsonl"
rm -f "$LOOP/loop.trace.jsonl" "$LOOP/ranking.trace.jsonl"

cat > "$LOOP/README.md" <<TEXT
# The loop on two unequal ranks of one machine

Made by \`bash docs/loop.sh $BUDGET $REST\` ($(machine)).
The ranks are \`$fast\` and \`$slow\`: unequal by what each may use of a core or of
the cores, nothing is delayed or repeated. One layer of the model in
\`config.json\`, forward and backward, $SEQ tokens.

| file | what |
| --- | --- |
| \`compute\`, \`rest\`, \`profile.json\`, \`fit.txt\`, \`check.txt\` | the calibrations ($BUDGET of attention and GEMM, $REST of the rest): recordings, the profile of both, report, errors on points set aside |
| \`evenkeel.plan.json\`, \`equal.plan.json\` | the searched plan, and equal shares in a ring |
| \`loop.trace.jsonl.gz\`, \`loop.check.txt\`, \`timeline.json\` | both run in turns, $BLOCKS blocks; prediction and measurement; one block of the searched plan, predicted and recorded, for Perfetto |
| \`*.plan.json\`, \`ranking.trace.jsonl.gz\`, \`ranking.check.txt\` | twelve plans run in turns, $RANKING blocks: does the model order them as the machine does |

To check a trace again: \`gunzip -k loop.trace.jsonl.gz\`, then
\`evenkeel check loop.trace.jsonl --profile profile.json\`.
TEXT
ls -l "$LOOP"

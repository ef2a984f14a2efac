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

# Limits in the environment would narrow the ranks that shall have none.
unset OPENBLAS_CORETYPE ATEN_CPU_CAPABILITY MKL_ENABLE_INSTRUCTIONS ONEDNN_MAX_CPU_ISA

say() { printf '\n== %s\n' "$*"; }

# pair names the unequal device types that this machine can have: unequal numbers
# of threads from three cores on, else one thread each with unequal vector units.
pair() {
  if [ "$(nproc)" -ge 3 ]; then
    echo "cpu:2 cpu:1"
  elif [ "$(nproc)" -lt 2 ]; then
    echo "this machine has one core: the loop needs two, for two ranks" >&2
    return 1
  # Cores that run 512-bit instructions in halves are no faster by them, so that the
  # ranks would be unequal in name only.
  elif grep -qw avx2 /proc/cpuinfo && grep -qw sse4_2 /proc/cpuinfo; then
    echo "cpu:1 cpu:1@sse4"
  else
    echo "two cores whose vector units cannot be narrowed: the loop needs three cores, or x86" >&2
    return 1
  fi
}
found=${DEVICES:-$(pair)}
read -r fast slow <<< "$found"
cluster="1x(1 torch_$fast + 1 torch_$slow)"

mkdir -p "$LOOP"
# With KEEP=1 calibrations of this machine that were broken off, or are done, are
# gone on with.
[ "${KEEP:-}" = 1 ] || rm -rf "$LOOP"/compute "$LOOP"/rest
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
profile=$LOOP/profile.json

# What a plan of this problem asks for, and no more: gloo of torch 1.13 has no
# reduce-scatter, so parameters are not sharded (zero0). Attention and GEMM are
# most of a step, so they have most of the time.
measure() { # folder, budget, ops
  "$BIN" calibrate --backend torch --devices "$fast,$slow" --group-sizes 2 --only "$3" \
    --model "$LOOP/config.json" --budget "$2" --out "$LOOP/$1" > /dev/null
}
say "calibrate: $fast and $slow, each on cores of its own, and gloo between them, for $BUDGET and $REST"
measure compute "$BUDGET" attn_fwd,attn_bwd,gemm
measure rest "$REST" norm,rope,swiglu,ce_chunk,lse_merge,adamw,send_recv,all_to_all,all_to_all_v,all_gather,all_reduce,overlap,mem_capacity,mem_reserve

say "fit: one profile of both recordings"
"$BIN" fit "$LOOP"/{compute,rest}/calibration.rec.jsonl -o "$profile" > "$LOOP/fit.txt"
"$BIN" check "$LOOP"/{compute,rest}/calibration.rec.jsonl --profile "$profile" > "$LOOP/check.txt" || [ $? = 4 ]
rm -f "$LOOP"/{compute,rest}/calibration.profile.json
sed -n '/^family/,/^errors are/p' "$LOOP/check.txt"

plan() { # name, then what solve is told
  local name=$1
  shift
  "$BIN" solve --profile "$profile" --cluster "$cluster" --model "$LOOP/config.json" --seq-len "$SEQ" --zero zero0 \
    -o "$LOOP/$name.plan.json" "$@" > "$LOOP/plan.txt"
}

# judge compares a trace with the prediction. Above the limits (4) is an answer
# too, and the report says where the difference comes from.
judge() { # name, then further arguments
  local name=$1 status=0
  shift
  "$BIN" check "$LOOP/$name.trace.jsonl" --profile "$profile" "$@" > "$LOOP/$name.check.txt" || status=$?
  cat "$LOOP/$name.check.txt"
  case $status in
  0) echo "($name: within the limits)" ;;
  4) echo "($name: above the limits on this machine today; see the notes above)" ;;
  *) return "$status" ;;
  esac
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

Made by \`bash docs/loop.sh $BUDGET $REST\` ($(date -u +%F), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores).
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

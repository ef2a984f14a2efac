#!/usr/bin/env bash
# The main job from end to end on a machine without a GPU: measure this
# machine's cores, fit, plan one long sequence over its unequal device types,
# check the profile against points it never saw, draw the accuracy.
#
# Called by `make demo`. DEMO is the folder to write, BUDGET the time to
# measure for, BIN the binary.
set -euo pipefail
DEMO=${DEMO:-demo} BUDGET=${BUDGET:-75s} BIN=${BIN:-bin/evenkeel}

say() { printf '\n== %s\n' "$*"; }

mkdir -p "$DEMO"
# A small decoder-only model: the demonstration is about planning, and small
# blocks are what the measured range of one minute on a CPU covers.
cat > "$DEMO/config.json" <<'JSON'
{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 512,
  "intermediate_size": 1408,
  "num_hidden_layers": 4,
  "num_attention_heads": 8,
  "num_key_value_heads": 2,
  "head_dim": 64,
  "vocab_size": 8192,
  "tie_word_embeddings": true
}
JSON
profile=$DEMO/calibration.profile.json recording=$DEMO/calibration.rec.jsonl

say "calibrate: measure this machine for $BUDGET, fit, report ($DEMO/calibration.txt has the whole report)"
"$BIN" calibrate --model "$DEMO/config.json" --budget "$BUDGET" --out "$DEMO" > "$DEMO/calibration.txt"
sed '/^law  *measured range/,$d' "$DEMO/calibration.txt"

say "solve: 4k tokens over all cores of this machine and one core of its like, joined by the measured link"
cores=$(sed -n 's/^cpu:\([0-9]*\) .*/\1/p' "$DEMO/calibration.txt" | sort -n | tail -n 1)
"$BIN" solve --profile "$profile" --cluster "1x(1 cpu:$cores + 1 cpu:1)" --model "$DEMO/config.json" --seq-len 4k \
  -o "$DEMO/plan.json" --timeline "$DEMO/plan.trace.json" | tee "$DEMO/plan.txt"

say "check: the profile against the points that were set aside before the fit"
status=0
"$BIN" check "$recording" --profile "$profile" > "$DEMO/check.txt" || status=$?
cat "$DEMO/check.txt"
if [ "$status" = 4 ]; then
  echo "(above the limits on this machine today; on a busy machine that is the honest answer: see the notes above)"
elif [ "$status" != 0 ]; then
  exit "$status"
fi

say "show --plot: measured against predicted, and the residuals"
"$BIN" show "$profile" --plot "$DEMO/accuracy"
ls -1 "$DEMO"

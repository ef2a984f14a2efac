#!/bin/bash
# The items of docs/gpu-checklist.md on this machine's GPU, in parts that
# each stay under ten minutes. Writes what it finds into a folder, which is then
# looked through and committed as results/evidence/<gpu>/.
#
#   docs/gpu.sh look FOLDER       inventory, numerics, timing items; 4 to 8 minutes. Each
#                                 start of a worker imports the attention packages that
#                                 are installed, and flash-attn 4 compiles every shape
#                                 anew: EVENKEEL_SKIP_KERNELS=fa4,te leaves these out
#   docs/gpu.sh measure FOLDER    a full calibration of 8 minutes and a little
#   docs/gpu.sh judge FOLDER      what the recording of that says, on any machine: its
#                                 checks, plots and learning curve; 3 minutes on two cores
#   docs/gpu.sh loop FOLDER       calibrate, plan and run plans on ranks with unequal
#                                 parts of the GPU, and every attention kernel's numerics
#                                 in them; 7 to 9 minutes. SMS: how many multiprocessors
#                                 each has (default: about 5/8 and 5/16 of the GPU's);
#                                 COMPUTE and REST: times to measure attention
#                                 and GEMM, and the rest (150s, 70s)
#   docs/gpu.sh steps FOLDER      whole training steps on the GPU beside their plans, from
#                                 the profile PROFILE (default: that of measure in FOLDER);
#                                 2 to 4 minutes
#
# Uses bin/evenkeel and bin/torch.test where they are there (make gpu-binaries
# builds them, for machines without Go), else builds them. No setting of the card
# is changed.
set -euo pipefail

readonly PART="${1:?look, loop, measure, judge or steps}"
readonly OUT="${2:?a folder for the results}"
readonly BIN="${BIN:-bin}"

# evenkeel looks for a Python with torch in the same places.
if [ -z "${EVENKEEL_PYTHON:-}" ]; then
  for python in python3 /usr/bin/python3; do
    if "$python" -I -c 'import torch' 2>/dev/null; then
      export EVENKEEL_PYTHON="$python"
      break
    fi
  done
fi

mkdir -p "$OUT"
if [ ! -x "$BIN/evenkeel" ] || [ ! -x "$BIN/torch.test" ]; then
  make gpu-binaries
fi

# step NAME COMMAND...: runs it, goes on if it fails. Results are kept in
# NAME.txt, a file of its own because a test derives check.txt again; talk and
# exit codes are kept in steps.txt.
failed=0
step() {
  local name="$1" started=$SECONDS status=0
  shift
  echo "== $name: $*" | tee -a "$OUT/steps.txt"
  "$@" >"$OUT/$name.txt" 2>>"$OUT/steps.txt" || status=$?
  echo "exit status $status after $((SECONDS - started)) s" >>"$OUT/steps.txt"
  if [ "$status" != 0 ]; then
    failed=$((failed + 1))
    echo "   FAILED with $status; see the end of $OUT/steps.txt and $OUT/$name.txt:"
    tail -n 8 "$OUT/$name.txt" "$OUT/steps.txt" | sed 's/^/   /'
  fi
}

look() {
  step nvidia-smi smi_or_none -q
  step topology smi_or_none topo -m
  step dry-run "$BIN/evenkeel" calibrate --backend torch --dry-run --budget 8m
  step dry-run-json "$BIN/evenkeel" calibrate --backend torch --dry-run --budget 8m --json
  step numerics "$BIN/evenkeel" calibrate --backend torch --numerics
  step kernels "${EVENKEEL_PYTHON:-python3}" -B python/tests/test_kernels.py
  EVENKEEL_GPU=1 step timing "$BIN/torch.test" -test.v -test.run '^TestGPU[A-Z]' -test.timeout 5m
}

# smi_or_none asks the driver's own tool, which containers may lack.
smi_or_none() {
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi "$@"
  else
    echo "nvidia-smi is not installed here"
  fi
}

measure() {
  step calibration "$BIN/evenkeel" calibrate --backend torch --budget 8m --out "$OUT"
}

judge() {
  step check judged "$BIN/evenkeel" check "$OUT/calibration.rec.jsonl" --profile "$OUT/calibration.profile.json"
  step check-long judged "$BIN/evenkeel" check "$OUT/calibration.rec.jsonl" --profile "$OUT/calibration.profile.json" --min-len 4k
  step show "$BIN/evenkeel" show "$OUT/calibration.profile.json" --plot "$OUT/fit"
  step recording "$BIN/evenkeel" show "$OUT/calibration.rec.jsonl"
  step learning-curve "$BIN/evenkeel" show "$OUT/calibration.rec.jsonl" --learning-curve --plot "$OUT/learning-curve"
  if [ -f "$OUT/training.json" ]; then
    step check-training judged "$BIN/evenkeel" check "$OUT/training.json" --profile "$OUT/calibration.profile.json"
    step fit-training "$BIN/evenkeel" fit "$OUT/calibration.rec.jsonl" --training "$OUT/training.json" -o "$OUT/trained.profile.json"
    step check-training-fitted judged "$BIN/evenkeel" check "$OUT/training.json" --profile "$OUT/trained.profile.json"
    step check-training-references judged "$BIN/evenkeel" check "$OUT/training.json" --profile references
    rm -f "$OUT/trained.profile.json" "$OUT/fit-training.txt" # which the other files make again
  fi
}

# packed leaves a smaller copy of a file beside it, where a failed step left one.
packed() { [ ! -f "$1" ] || gzip -9 -f -k "$1"; }

# judged is a step whose exit status 4, above the limits, is an answer too.
judged() { "$@" || [ $? = 4 ]; }

# parts are two numbers of multiprocessors of this machine's GPU that its driver
# can set apart.
parts() {
  PYTHONPATH=python "${EVENKEEL_PYTHON:-python3}" -c '
from evenkeel.confine import sizes
fit = sizes()
print(*(max(n for n in fit if n <= most) for most in (fit[-1] * 5 // 8, fit[-1] * 5 // 16)))'
}

# The model is wide enough that GEMMs and attention are what a layer takes. Its
# layers run in milliseconds.
config() {
  cat > "$OUT/config.json" <<'JSON'
{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 4096,
  "intermediate_size": 11008,
  "num_hidden_layers": 4,
  "num_attention_heads": 32,
  "num_key_value_heads": 8,
  "head_dim": 128,
  "vocab_size": 32000,
  "tie_word_embeddings": false
}
JSON
}

# calibrated measures both parts of the GPU, one while the other idles.
calibrated() { # folder, budget, ops
  step "calibrate-$1" "$BIN/evenkeel" calibrate --backend torch --devices "gpu:0@sm$fast,gpu:0@sm$slow" --group-sizes 2 \
    --only "$3" --model "$OUT/config.json" --budget "$2" --out "$OUT/$1"
}

planned() { # name, tokens, flags of the layout
  local name="$1" tokens="$2"
  shift 2
  step "plan-$name" "$BIN/evenkeel" solve --profile "$OUT/profile.json" --cluster "1x(1 $fast_type + 1 $slow_type)" --model "$OUT/config.json" \
    --seq-len "$tokens" --dtype bf16 --zero zero0 "$@" -o "$OUT/$name.plan.json"
}

loop() {
  local fast slow fast_type slow_type kernel found
  found="${SMS:-$(parts)}"
  read -r fast slow <<< "$found"
  echo "parts of $fast and $slow multiprocessors" | tee -a "$OUT/steps.txt"
  config
  # A plan is predicted by the fastest attention kernel that was measured, so the
  # one is measured that replay runs.
  export EVENKEEL_SKIP_KERNELS=sdpa_cudnn,sdpa_efficient,varlen,fa2,fa3,fa4,te
  calibrated compute "${COMPUTE:-150s}" attn_fwd,attn_bwd,gemm
  calibrated rest "${REST:-70s}" norm,rope,swiglu,ce_chunk,lse_merge,adamw,send_recv,all_to_all,all_to_all_v,all_gather,all_reduce,mem_capacity
  step fit "$BIN/evenkeel" fit "$OUT"/{compute,rest}/calibration.rec.jsonl -o "$OUT/profile.json"
  step check-parts judged "$BIN/evenkeel" check "$OUT"/{compute,rest}/calibration.rec.jsonl --profile "$OUT/profile.json"
  read -r fast_type slow_type <<< "$(typed "$fast") $(typed "$slow")"
  # Shorter sequences go to one rank alone: messages through the host take longer
  # than what a second one computes.
  planned evenkeel 64k --take evenkeel
  planned equal 64k --take ring
  planned ulysses 64k --take ulysses
  planned uneven 16k --shares 2:1 --q-heads 22:10 # a KV head is cut between the ranks
  step replay "$BIN/evenkeel" replay "$OUT"/{evenkeel,equal,ulysses}.plan.json --kernel sdpa_flash --repeats 3 -o "$OUT/loop.trace.jsonl"
  step check-loop judged "$BIN/evenkeel" check "$OUT/loop.trace.jsonl" --profile "$OUT/profile.json" --timeline "$OUT/timeline.json"
  for kernel in sdpa_flash sdpa_cudnn sdpa_efficient math fa2; do
    step "numerics-$kernel" kernel_or_none "$kernel"
  done
  packed "$OUT/loop.trace.jsonl"
}

# typed is the device type of a part, as the profile names it.
typed() { grep -o "\"[a-z0-9_]*@sm$1\"" "$OUT/profile.json" | sort -u | head -n 1 | tr -d '"'; }

# kernel_or_none runs a plan with an attention kernel; one that is not installed
# is named and no failure.
kernel_or_none() {
  "$BIN/evenkeel" replay "$OUT/uneven.plan.json" --kernel "$1" --repeats 2 -o "$OUT/$1.trace.jsonl" 2> "$OUT/said.txt" || {
    cat "$OUT/said.txt" >&2
    grep -q "not to be had here" "$OUT/said.txt" && echo "$1 is not installed here"
  }
}

# model writes a config of the Llama family.
model() { # file, hidden, ffn, layers, query heads, KV heads, head width, vocabulary, tied
  printf '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": %d, "intermediate_size": %d,
 "num_hidden_layers": %d, "num_attention_heads": %d, "num_key_value_heads": %d, "head_dim": %d, "vocab_size": %d,
 "tie_word_embeddings": %s}\n' "${@:2}" > "$1"
}

# steps: a few layers as wide as a model of 8B parameters with a small and a large
# vocabulary, and one of 1B parameters; lengths at which 80 GB are enough.
steps() {
  local profile="${PROFILE:-$OUT/calibration.profile.json}" device plans=() size name tokens recompute
  device="$(grep -o '"name": *"[a-z0-9_]*"' "$profile" | head -n 1 | cut -d '"' -f 4)"
  mkdir -p "$OUT/plans"
  model "$OUT/plans/wide.json" 4096 11008 4 32 8 128 32000 false
  model "$OUT/plans/vocabulary.json" 4096 14336 4 32 8 128 128256 false
  model "$OUT/plans/small.json" 2048 8192 16 32 8 64 128256 true
  for size in wide-8k-none wide-32k-none wide-64k-none wide-128k-full vocabulary-16k-none vocabulary-32k-full \
    small-8k-none small-16k-full small-64k-full; do
    IFS=- read -r name tokens recompute <<< "$size"
    plans+=("$OUT/plans/$size.plan.json")
    step "plans/$size" "$BIN/evenkeel" solve --profile "$profile" --cluster "1x1 $device" --model "$OUT/plans/$name.json" \
      --seq-len "$tokens" --dtype bf16 --zero zero0 --recompute "$recompute" --take ring -o "${plans[-1]}"
  done
  if [ -f "$OUT/training.json" ]; then
    step training "${EVENKEEL_PYTHON:-python3}" python/examples/train_step.py "${plans[@]}" --measured "$OUT/training.json"
  else
    step training "${EVENKEEL_PYTHON:-python3}" python/examples/train_step.py "${plans[@]}" --kernel "${KERNEL:-sdpa_cudnn}" -o "$OUT/training.json"
  fi
  cat "$OUT/training.txt"
}

case "$PART" in
  look) look ;;
  loop) loop ;;
  measure) measure ;;
  judge) judge ;;
  steps) steps ;;
  *)
    echo "gpu.sh: $PART: want look, loop, measure, judge or steps" >&2
    exit 2
    ;;
esac
rm -f "$OUT/said.txt"
echo "$failed steps failed; the results are in $OUT"
[ "$failed" = 0 ]

#!/bin/bash
# The items of docs/gpu-checklist.md on this machine's GPU, in two parts that
# each stay under ten minutes. Writes what it finds into a folder, which is then
# looked through and committed as results/evidence/<gpu>/.
#
#   docs/gpu.sh look FOLDER       inventory, numerics, timing items; 3 to 5 minutes
#   docs/gpu.sh measure FOLDER    a full calibration of 8 minutes, its checks and plots
#
# Uses bin/evenkeel and bin/torch.test where they are there (make gpu-binaries
# builds them, for machines without Go), else builds them. No setting of the card
# is changed.
set -euo pipefail

readonly PART="${1:?look or measure}"
readonly OUT="${2:?a folder for the results}"
readonly BIN="${BIN:-bin}"

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
  step nvidia-smi nvidia-smi -q
  step topology nvidia-smi topo -m
  step dry-run "$BIN/evenkeel" calibrate --backend torch --dry-run --budget 8m
  step dry-run-json "$BIN/evenkeel" calibrate --backend torch --dry-run --budget 8m --json
  step numerics "$BIN/evenkeel" calibrate --backend torch --numerics
  EVENKEEL_GPU=1 step timing "$BIN/torch.test" -test.v -test.run GPU -test.timeout 5m
}

measure() {
  step calibrate "$BIN/evenkeel" calibrate --backend torch --budget 8m --out "$OUT"
  step check "$BIN/evenkeel" check "$OUT/calibration.rec.jsonl" --profile "$OUT/calibration.profile.json"
  step check-long "$BIN/evenkeel" check "$OUT/calibration.rec.jsonl" --profile "$OUT/calibration.profile.json" --min-len 4k
  step show "$BIN/evenkeel" show "$OUT/calibration.profile.json" --plot "$OUT/fit.svg"
  step recording "$BIN/evenkeel" show "$OUT/calibration.rec.jsonl"
  step learning-curve "$BIN/evenkeel" show "$OUT/calibration.rec.jsonl" --learning-curve --plot "$OUT/learning-curve.svg"
  gzip -9 -f -k "$OUT/calibration.rec.jsonl"
}

case "$PART" in
  look) look ;;
  measure) measure ;;
  *)
    echo "gpu.sh: $PART: want look or measure" >&2
    exit 2
    ;;
esac
echo "$failed steps failed; the results are in $OUT"
[ "$failed" = 0 ]

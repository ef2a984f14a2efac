#!/usr/bin/env bash
# Plans the batches of the published settings and of unequal GPUs by flexsp, as
# docs/flex.sh's page compares them with ours, and writes
# results/evidence/flex/flexsp.csv:
#
#   docs/flexsp.sh [out-folder]
#
# A batch takes 20 to 170 seconds of one core, the 160 published ones over an hour: one
# that both context limits leave alike is planned once. The table is written
# after every batch: end the script whenever you like, and start it again to go on.
# Rows that the table has are not made again. FLEXSP_BATCHES is which batches
# (default 0-39), FLEXSP_SETTING a part of a setting's name or lengths, for some alone
# ("wikipedia:context=192000", "mixed", "few"), FLEXSP_TIME the seconds of processor time that
# the engine has for each programme (10s): so other work on the machine takes none of
# them, where Linux counts it. One run at a time. Run docs/flex.sh after it.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-results/evidence/flex}
mkdir -p "$out"
EVENKEEL_FLEXSP=$(cd "$out" && pwd) EVENKEEL_FLEXSP_BATCHES=${FLEXSP_BATCHES:-0-39} EVENKEEL_FLEXSP_SETTING=${FLEXSP_SETTING:-} \
  EVENKEEL_FLEXSP_TIME=${FLEXSP_TIME:-10s} \
  go test ./results -count 1 -timeout 0 -v -run 'TestFlexSPEvidence$' | { grep -v '^=== \|^--- \|^PASS\|^ok' || true; }

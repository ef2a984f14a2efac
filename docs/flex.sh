#!/usr/bin/env bash
# Plans batches of unequal sequences with every strategy and writes the table and page
# of results/evidence/flex:
#
#   docs/flex.sh [out-folder]
#
# Rows that the table has already are not made again: remove batches.csv to begin
# anew. FLEXSP is how many batches of each published setting flexsp plans too
# (default 2, minutes each), FLEXSP_TIME what its solver has for each programme. A
# quiet machine is wanted: planning times are measured, and flexsp is stopped by the
# clock.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-results/evidence/flex}
mkdir -p "$out"
EVENKEEL_FLEX=$(cd "$out" && pwd) EVENKEEL_FLEXSP=${FLEXSP:-2} EVENKEEL_FLEXSP_TIME=${FLEXSP_TIME:-10s} \
  go test ./results -count 1 -timeout 0 -v -run 'TestFlexEvidence$' | grep -v '^=== \|^--- \|^PASS\|^ok' || true
ls -l "$out"

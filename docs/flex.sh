#!/usr/bin/env bash
# Plans batches of unequal sequences with every strategy but flexsp and writes the
# table and page of results/evidence/flex:
#
#   docs/flex.sh [out-folder]
#
# Rows that the table has already are not made again: remove batches.csv to begin
# anew. What flexsp plans is in flexsp.csv, which docs/flexsp.sh makes, since it takes
# hours. A quiet machine is wanted: planning times are measured.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-results/evidence/flex}
mkdir -p "$out"
EVENKEEL_FLEX=$(cd "$out" && pwd) \
  go test ./results -count 1 -timeout 0 -v -run 'TestFlexEvidence$' | { grep -v '^=== \|^--- \|^PASS\|^ok' || true; }
ls -l "$out"

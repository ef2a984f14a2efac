#!/usr/bin/env bash
# Plans batches of unequal sequences on pipelines with every strategy, by simulation, and
# writes the table and page of results/evidence/pipeline:
#
#   docs/infinipipe.sh [out-folder]
#
# Rows that the table has already are not made again: remove comparisons.csv to begin
# anew. 15 to 30 minutes on one core; planning times are measured, so that a quiet
# machine is wanted.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-results/evidence/pipeline}
mkdir -p "$out"
EVENKEEL_PIPELINES=$(cd "$out" && pwd) \
  go test ./results -count 1 -timeout 0 -v -run 'TestPipelinesEvidence$' | { grep -v '^=== \|^--- \|^PASS\|^ok' || true; }
ls -l "$out"

#!/usr/bin/env bash
# Plans several tasks side by side with every strategy, by simulation, and writes the
# table and page of results/evidence/multitask:
#
#   docs/spindle.sh [out-folder]
#
# Rows that the table has already are not made again: remove comparisons.csv to begin
# anew. About ten minutes on one core; planning times are measured, so that a quiet
# machine is wanted.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-results/evidence/multitask}
mkdir -p "$out"
EVENKEEL_TASKS=$(cd "$out" && pwd) \
  go test ./results -count 1 -timeout 0 -v -run 'TestTasksEvidence$' | { grep -v '^=== \|^--- \|^PASS\|^ok' || true; }
ls -l "$out"

#!/usr/bin/env bash
# Compares the strategies on clusters of unequal GPUs, by simulation, and writes the
# table and page of results/evidence/hexiseq:
#
#   docs/hexiseq.sh [out-folder]
#
# Rows that the table has already are not made again: remove comparisons.csv to
# begin anew. Five to fifteen minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-results/evidence/hexiseq}
mkdir -p "$out"
EVENKEEL_MIXED=$(cd "$out" && pwd) go test ./results -count 1 -timeout 0 -v -run 'TestMixedEvidence$' | { grep -v '^=== \|^--- \|^PASS\|^ok' || true; }
ls -l "$out"

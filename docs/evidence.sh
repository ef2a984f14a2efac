#!/usr/bin/env bash
# Measures again what results/evidence states about this machine, and runs the
# benchmarks. Quote ratios within one run: machines differ and are noisy.
#
# Called by `make evidence`.
set -euo pipefail
BIN=${BIN:-bin/evenkeel}
out=results/evidence/cpu
rm -f $out/calibration.*
"$BIN" calibrate --out $out > $out/calibration.txt
"$BIN" show $out/calibration.profile.json --plot $out/accuracy
"$BIN" check $out/calibration.rec.jsonl --profile $out/calibration.profile.json > $out/check.txt || [ $? = 4 ]
cat $out/check.txt

# The same through torch's CPU kernels and gloo, where they are there.
if bash docs/torch.sh; then
  out=results/evidence/torch
  mkdir -p $out
  rm -f $out/calibration.*
  "$BIN" calibrate --backend torch --group-sizes 2 --budget 2m --out $out > $out/calibration.txt
  "$BIN" calibrate --backend torch --group-sizes 2,3,4 --numerics > $out/numerics.txt
  "$BIN" check $out/calibration.rec.jsonl --profile $out/calibration.profile.json > $out/check.txt || [ $? = 4 ]
  cat $out/check.txt
  go test -run '^$' -bench Torch -benchtime 2s -count 6 ./profile/backend/torch > results/evidence/bench/torch.txt
fi

# The laws of GPUs on others' recordings, where they are there.
if [ -d "${EVENKEEL_DATA:-../shared/data}/recorded" ]; then
  bash docs/accuracy.sh
  go test ./results -count 1 -run 'TestContextParallelTimings$' -update
else
  echo "SKIPPED: results/evidence/accuracy and context_parallel need others' recordings; set EVENKEEL_DATA to their folder"
fi
# Strategies on clusters of unequal GPUs, by simulation.
rm -f results/evidence/hexiseq/comparisons.csv results/evidence/multitask/comparisons.csv
bash docs/hexiseq.sh
bash docs/spindle.sh
GOMAXPROCS=1 go test -run '^$' -bench 'PredictAttention|PredictGEMM|Curve$|FitDevice' -benchmem -count 6 ./costmodel ./fit > results/evidence/bench/laws.txt
go test -run '^$' -bench 'Fit10k|Read1M' -benchmem -count 6 ./fit ./profile > results/evidence/bench/bench.txt
{
  GOMAXPROCS=1 go test -run '^$' -bench 'Layer128|^BenchmarkTime' -benchtime 0.2s -count 6 -benchmem ./costmodel
  GOMAXPROCS=1 go test -run '^$' -bench 'SolveOnReferences' -benchtime 1x -count 3 -timeout 20m ./solver
} > results/evidence/bench/plans.txt
go tool -modfile=tools/go.mod benchstat results/evidence/bench/bench.txt > results/evidence/bench/benchstat.txt
cat results/evidence/bench/benchstat.txt

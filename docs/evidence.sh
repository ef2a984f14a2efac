#!/usr/bin/env bash
# Measures again what results/evidence/cpu states about this machine, and runs
# the benchmarks. Quote ratios within one run: machines differ and are noisy.
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
go test -run '^$' -bench 'Fit10k|Solve|Read1M|Simulate' -benchmem -count 6 ./fit ./solver ./profile ./costmodel > results/evidence/bench/bench.txt
go tool -modfile=tools/go.mod benchstat results/evidence/bench/bench.txt > results/evidence/bench/benchstat.txt
cat results/evidence/bench/benchstat.txt

#!/usr/bin/env bash
# Studies how well laws, and simpler forms beside them, predict rows of others'
# recordings that no fit saw, and writes the page of results/evidence/accuracy:
#
#   docs/accuracy.sh [recorded-folder [out-folder]]
#
# The tables are those of aiconfigurator and Vidur as CSV (columns: evenkeel import
# --help); the folder is $EVENKEEL_DATA/recorded where none is named. EVENKEEL names
# the binary; without it the one of this checkout is built. JOBS studies run at a
# time. Quarter of an hour on two cores.
set -euo pipefail
data=$(cd "${1:-${EVENKEEL_DATA:-../shared/data}/recorded}" && pwd)
out=${2:-results/evidence/accuracy}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap '[ $? = 0 ] && rm -rf "$work" || echo "what was studied is left in $work" >&2' EXIT
if [ -z "${EVENKEEL:-}" ]; then
	EVENKEEL=$work/evenkeel
	(cd "$(dirname "$0")/.." && go build -o "$EVENKEEL" ./cmd/evenkeel)
fi
export SOURCE_DATE_EPOCH=1767225600 # 2026-01-01, so that the same tables give the same bytes
export EVENKEEL work

# take imports tables under a name: take name import-flags... -- files...
take() {
	local name=$1 flags=()
	shift
	while [ "$1" != -- ]; do flags+=("$1") && shift; done
	shift
	"$EVENKEEL" -q import --from table "${flags[@]}" "$@" -o "$work/$name.rec.jsonl" > "$work/$name.txt"
	head -1 "$work/$name.txt" | sed "s|$work/||"
}

for gpu in "$data"/aiconfigurator/*/; do
	gpu=$(basename "$gpu")
	[ "$gpu" = parquet_sample ] || take "$gpu" -- "$data/aiconfigurator/$gpu"/*.csv
done
# Vidur names nodes, not GPU models; where only pairs share a bridge, the link is
# neither the model's NVLink nor its PCIe.
take vidur_a100_linear --device a100_sxm -- "$data/vidur/a100/linear_layers.csv"
take vidur_a40_linear -- "$data/vidur/a40/linear_layers.csv"
take vidur_a100_dgx --device a100_sxm -- "$data"/vidur/a100_dgx/*.csv
take vidur_a100_pairs --device a100_pcie --link nvlink_pairs -- "$data"/vidur/a100_pairwise_nvlink/*.csv
take vidur_h100_pairs --device h100_nvl --link nvlink_pairs -- "$data"/vidur/h100_pairwise_nvlink/*.csv
take vidur_a40_pairs --device a40 --link nvlink_pairs -- "$data"/vidur/a40_pairwise_nvlink/*.csv

study() {
	"$EVENKEEL" -q fit "$1" --study interp,heads,longer,ranks,some-heads --json > "${1%.rec.jsonl}.json"
	echo "studied $(basename "$1" .rec.jsonl) after $SECONDS s"
}
export -f study
# The largest first, so that no core waits for it at the end.
# shellcheck disable=SC2011 # the names are of this script
ls -S "$work"/*.rec.jsonl | xargs -P "${JOBS:-2}" -I{} bash -c 'study {}'

cd "$(dirname "$0")/.."
EVENKEEL_STUDIES=$work EVENKEEL_PAGE=$out go test ./results -count 1 -run 'TestAccuracyPage$' -args -update
ls -l "$out"

#!/bin/sh
# Makes the reference profiles of results/profiles again, byte for byte, from the
# recordings that they were fitted to, others' and, of an H200, this project's own
# (results/evidence/h200). What whole training steps take over single calls was measured on
# an H100 (results/evidence/h100) and is assumed of the others:
#
#   docs/references.sh recorded-folder out-folder [gpu...]
#
# The tables are those of aiconfigurator and Vidur as CSV (columns: evenkeel import
# --help). EVENKEEL names the binary; without it the one of this checkout is built.
# Chosen of each GPU type: the serving engine that has both attention and matrix
# products, in 16 bits, without sliding windows; bidirectional attention of head
# dimension 64; and the version of the collectives' library with the most rows. Of an H200
# the fastest attention kernel and that of packed documents; one GPU shows no collective, so
# that those of an H100 with the same links are lent.
set -eu
[ $# -ge 2 ] || { echo "usage: docs/references.sh recorded-folder out-folder [gpu...]" >&2; exit 2; }
data=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
[ $# -gt 0 ] || set -- a100_sxm b200_sxm gb200 h100_sxm rtx_pro_6000_server b60 h200_sxm

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${EVENKEEL:-}" ]; then
	EVENKEEL=$work/evenkeel
	(cd "$(dirname "$0")/.." && go build -o "$EVENKEEL" ./cmd/evenkeel)
fi
export SOURCE_DATE_EPOCH=1767225600 # 2026-01-01, so that the same tables give the same bytes

aiconfigurator='NVIDIA aiconfigurator, measured kernels and collectives|https://github.com/ai-dynamo/aiconfigurator|Apache-2.0|095f58a51c4ca8e61b66ec108d86f223f8d559ce'
vidur='Vidur, profiles of collectives|https://github.com/microsoft/vidur|MIT|7d47513363ec447a741ac5e47241580b47724fbf'

# Said of TensorRT-LLM's attention; fit/assume.go has more of it.
served="attention forward is TensorRT-LLM's, which turns positions into angles and fills a cache in the same call: kernels of training may take less. FlashAttention-2 on an A100 takes 0.67 times as long (published, 8,192 tokens, 32 heads), cuDNN on an H200 0.6 to 1.1 times as long as this of an H100 (measured, 2,048 tokens and more)"

# rows keeps the header and the rows of a table that an awk condition chooses.
rows() { awk -F, "NR==1 || ($3)" "$1" >"$2"; }

# tell says how large a profile is.
tell() { echo "$1: $(wc -c <"$out/$1.profile.json") bytes" >&2; }

here=$(cd "$(dirname "$0")/.." && pwd)
for gpu in "$@"; do
	if [ "$gpu" = h200_sxm ]; then
		[ -f "$out/h100_sxm.profile.json" ] || { echo "references.sh: h200_sxm borrows from h100_sxm: make that first" >&2; exit 2; }
		awk '/^{"t":"schedule"/ || !/"kernel":"sdpa_(efficient|flash)"/' "$here/results/evidence/h200/calibration.rec.jsonl" >"$work/$gpu.rec.jsonl"
		cp "$out/h100_sxm.profile.json" "$work"
		(
			cd "$work"
			"$EVENKEEL" -q fit "$gpu.rec.jsonl" -o "$gpu.profile.json" --borrow h100_sxm.profile.json --assume --remark "measured by this project on one H200 in six minutes; collectives are those of an H100, whose NVLinks have the same rate" \
				--remark 'left out to stay small: slower attention kernels (sdpa_flash, sdpa_efficient); results/evidence/h200 has them' >/dev/null
		)
		cp "$work/$gpu.profile.json" "$out/$gpu.profile.json"
		tell "$gpu"
		continue
	fi
	engine=trtllm library=nccl extra='' said=$served trained=''
	case $gpu in
	a100_sxm) version=2.27.3 extra=vidur ;;
	b200_sxm) version=2.27.3 ;;
	gb200) version=2.23 ;;
	h100_sxm) version=2.27.3 trained=$here/results/evidence/h100/training.json ;;
	rtx_pro_6000_server) version=2.29.2 ;;
	b60) engine=vllm library=oneccl version=2021.17.2 said= ;;
	*) echo "references.sh: no recordings of $gpu are known" >&2; exit 2 ;;
	esac
	from=$data/aiconfigurator/$gpu
	tables=$work/$gpu
	mkdir -p "$tables"
	rows "$from/context_attention_$engine.csv" "$tables/context_attention.csv" '$5=="bf16" && $13==0'
	rows "$from/gemm_$engine.csv" "$tables/gemm.csv" '$4=="bf16" || $4=="bfloat16"'
	rows "$from/$library.csv" "$tables/collectives.csv" "\$3==\"$version\" && \$5==\"fp16\""
	if [ -f "$from/encoder_attention_$engine.csv" ]; then
		rows "$from/encoder_attention_$engine.csv" "$tables/encoder_attention.csv" '$12==64'
	fi
	if [ -n "$trained" ]; then cp "$trained" "$work/training.json"; fi
	recordings=$gpu.rec.jsonl
	(cd "$work" && "$EVENKEEL" -q import --from table "$gpu"/*.csv -o "$gpu.rec.jsonl" >/dev/null)
	if [ -n "$extra" ]; then
		rows "$data/vidur/a100_dgx/send_recv.csv" "$work/send_recv.csv" '$3==2 && $4==2'
		(cd "$work" && "$EVENKEEL" -q import --from table send_recv.csv --device "$gpu" --stack vidur -o "$gpu.send_recv.rec.jsonl" >/dev/null)
		recordings="$recordings $gpu.send_recv.rec.jsonl"
	fi
	(
		cd "$work"
		# shellcheck disable=SC2086 # recordings are two words on purpose
		"$EVENKEEL" -q fit $recordings -o "$gpu.profile.json" --borrow none --assume ${trained:+--training training.json} --origin "$aiconfigurator" ${extra:+--origin "$vidur"} ${said:+--remark "$said"} \
			--remark 'left out to stay small, and there to be fitted from the same source: other serving engines and library versions, 8-bit kernels and messages, sliding windows, and bidirectional attention of head dimensions 72 and 80' \
			>/dev/null
	)
	cp "$work/$gpu.profile.json" "$out/$gpu.profile.json"
	tell "$gpu"
done

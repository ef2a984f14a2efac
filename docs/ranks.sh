# Two unequal ranks of one machine without a GPU, measured: what docs/loop.sh,
# docs/pipeline_loop.sh, docs/tasks_loop.sh and docs/steps_loop.sh begin with. Sourced; LOOP is the folder, with
# a config.json of the model in it, and BIN the binary. Sets fast, slow and cluster, and
# profile, which profiled makes.
# shellcheck shell=bash disable=SC2034

# Limits in the environment would narrow the ranks that shall have none.
unset OPENBLAS_CORETYPE ATEN_CPU_CAPABILITY MKL_ENABLE_INSTRUCTIONS ONEDNN_MAX_CPU_ISA

say() { printf '\n== %s\n' "$*"; }

# pair names the unequal device types that this machine can have: unequal numbers
# of threads from three cores on, else one thread each with unequal vector units.
pair() {
  if [ "$(nproc)" -ge 3 ]; then
    echo "cpu:2 cpu:1"
  elif [ "$(nproc)" -lt 2 ]; then
    echo "this machine has one core: the loop needs two, for two ranks" >&2
    return 1
  # Cores that run 512-bit instructions in halves are no faster by them, so that the
  # ranks would be unequal in name only.
  elif grep -qw avx2 /proc/cpuinfo && grep -qw sse4_2 /proc/cpuinfo; then
    echo "cpu:1 cpu:1@sse4"
  else
    echo "two cores whose vector units cannot be narrowed: the loop needs three cores, or x86" >&2
    return 1
  fi
}

found=${DEVICES:-$(pair)}
read -r fast slow <<< "$found"
cluster="1x(1 torch_$fast + 1 torch_$slow)"
profile=$LOOP/profile.json

# measure takes what plans of the model ask for, and no more: gloo of torch 1.13 has no
# reduce-scatter, for which all_reduce stands in.
measure() { # folder, budget, ops
  "$BIN" calibrate --backend torch --devices "$fast,$slow" --group-sizes 2 --only "$3" \
    --model "$LOOP/config.json" --budget "$2" --out "$LOOP/$1" > /dev/null
}

# profiled measures and fits. Attention and GEMM are most of a step, so they have most of
# the time. With KEEP=1 calibrations of this machine that were broken off, or are done, are
# gone on with.
profiled() { # time to measure attention and GEMM, and the rest; ops of the rest, if others
  [ "${KEEP:-}" = 1 ] || rm -rf "$LOOP"/compute "$LOOP"/rest
  say "calibrate: $fast and $slow, each on cores of its own, and gloo between them, for $1 and $2"
  measure compute "$1" attn_fwd,attn_bwd,gemm
  measure rest "$2" "${3:-norm,rope,swiglu,ce_chunk,lse_merge,adamw,send_recv,all_to_all,all_to_all_v,all_gather,all_reduce,overlap,mem_capacity,mem_reserve}"

  say "fit: one profile of both recordings"
  "$BIN" fit "$LOOP"/{compute,rest}/calibration.rec.jsonl -o "$profile" > "$LOOP/fit.txt"
  "$BIN" check "$LOOP"/{compute,rest}/calibration.rec.jsonl --profile "$profile" > "$LOOP/check.txt" || [ $? = 4 ]
  rm -f "$LOOP"/{compute,rest}/calibration.profile.json
  sed -n '/^family/,/^errors are/p' "$LOOP/check.txt"
}

# judge compares a trace with the prediction. Above the limits (4) is an answer
# too, and the report says where the difference comes from.
judge() { # name, then further arguments
  local name=$1 status=0
  shift
  "$BIN" check "$LOOP/$name.trace.jsonl" --profile "$profile" "$@" > "$LOOP/$name.check.txt" || status=$?
  cat "$LOOP/$name.check.txt"
  case $status in
  0) echo "($name: within the limits)" ;;
  4) echo "($name: above the limits on this machine today; see the notes above)" ;;
  *) return "$status" ;;
  esac
}

# machine is when and on what the evidence was made.
machine() {
  echo "$(date -u +%F), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
}
